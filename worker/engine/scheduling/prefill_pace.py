"""Size the chunks of chunked prefill, so that running streams keep their pace.

Pure: the caller passes measured durations in seconds.
"""

from __future__ import annotations

import math

#: Smallest chunk beside running streams, and the multiple of which chunks are. Smaller chunks cost
#: far more for each token than they shorten the gap.
CHUNK_TOKENS_MIN = 16
#: Share of the longest gap that a chunk is planned to fill; the rest absorbs slow chunks.
GAP_SHARE = 0.8
#: Time for decode steps while a prompt is computed, as a share of the time for its chunks.
DECODE_SHARE = 0.25
#: Most decode steps between two chunks.
DECODES_MAX = 32
#: Weight of the newest measurement in the moving average.
NEWEST = 0.5


class PrefillPace:
    """Decides how many prompt tokens to compute between the decode steps of running streams.

    Between two tokens of a stream lie one decode step and at most one chunk. The chunk is as large
    as the gap allows at the measured speed. Several decode steps follow each chunk, so that streams
    keep a share of the time.

    Args:
        gap_max_s: Longest gap between two tokens of a stream, in seconds; 0 for no limit.
        step_tokens: Most tokens in a chunk.
    """

    def __init__(self, *, gap_max_s: float, step_tokens: int) -> None:
        self._gap_max_s = gap_max_s
        self._step_tokens = step_tokens
        self._token_s: float | None = None
        self._decode_s: float | None = None
        self._decodes_left = 0

    def chunk_tokens(self, *, streams: int) -> int:
        """Return the size of the next chunk beside ``streams`` running streams; 0 for no chunk."""
        if not streams or not self._gap_max_s:
            return self._step_tokens
        if self._decodes_left > 0:
            return 0
        if self._token_s is None:
            return min(CHUNK_TOKENS_MIN, self._step_tokens)
        available_s = self._gap_max_s * GAP_SHARE - (self._decode_s or 0.0)
        fitting = int(max(0.0, available_s) / self._token_s)
        rounded = fitting - fitting % CHUNK_TOKENS_MIN
        return min(max(rounded, CHUNK_TOKENS_MIN), self._step_tokens)

    def record_chunk(self, tokens: int, seconds: float) -> None:
        """Record how long a chunk took."""
        assert tokens > 0, "an empty chunk has no speed"
        self._token_s = _average(self._token_s, seconds / tokens)
        wanted = math.ceil(DECODE_SHARE * seconds / self._decode_s) if self._decode_s else 1
        self._decodes_left = min(max(wanted, 1), DECODES_MAX)

    def record_decode(self, seconds: float) -> None:
        """Record how long a decode step took."""
        self._decodes_left -= 1
        self._decode_s = _average(self._decode_s, seconds)


def _average(known: float | None, newest: float) -> float:
    return newest if known is None else (1 - NEWEST) * known + NEWEST * newest
