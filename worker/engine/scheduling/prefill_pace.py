"""Size the chunks of chunked prefill, so that running streams keep their pace.

Pure: the caller passes measured durations in seconds.
"""

from __future__ import annotations

import math

#: Smallest chunk beside running streams. Smaller chunks cost far more for each token than they
#: shorten the gap; on a GPU the launches of one pass already take as long as many tokens.
CHUNK_TOKENS_MIN = 16
GPU_CHUNK_TOKENS_MIN = 64
#: Difference between two chunk sizes that shows how the duration grows.
SPREAD_TOKENS = 16
#: Share of the longest gap that a chunk is planned to fill; the rest absorbs slow chunks.
GAP_SHARE = 0.8
#: The same for a chunk whose size shows how the duration grows.
PROBE_SHARE = 0.9
#: Least time for a chunk, in decode steps, where not even the smallest one fits the gap.
CHUNK_DECODES_MIN = 2.0
#: Least time on a CPU for a chunk in the pass of such a step, in seconds: a smaller product is
#: slower for each token, and each pass reads the weights again.
CPU_CHUNK_S_MIN = 0.5
#: Longest pause of the streams, in seconds, in which all waiting prompts are read there.
SHORT_PAUSE_S = 2.0
#: Time for decode steps while a prompt is computed, as a share of the time for its chunks.
DECODE_SHARE = 0.25
#: Most decode steps between two chunks.
DECODES_MAX = 32
#: Weight of the newest measurement in the moving average.
NEWEST = 0.5
#: Weight of a chunk relative to the one after it.
CHUNK_DECAY = 0.75
#: A chunk that takes so many times the expected duration is ignored, unless the next one does too.
SLOW = 2.0


class ChunkTimes:
    """The duration of chunks as a line: ``a + b·n`` seconds for ``n`` tokens.

    The line is fitted by least squares, newer chunks with more weight. Chunks of one size show no
    slope: then the line keeps the slope it had, at first the one through zero.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._slope: float | None = None
        self._was_slow = False
        self._smallest = self._largest = 0

    @property
    def is_known(self) -> bool:
        """Whether a chunk was recorded."""
        return self._slope is not None

    @property
    def has_slope(self) -> bool:
        """Whether chunks of different sizes were recorded."""
        return self._largest - self._smallest >= SPREAD_TOKENS

    @property
    def token_s(self) -> float:
        """Seconds for each further token (``b``), positive."""
        assert self._slope is not None, "no chunk was recorded"
        # No start of a chunk takes negative time.
        return min(self._slope, self._seconds / self._tokens)

    @property
    def start_s(self) -> float:
        """Seconds for a chunk of any size (``a``), not negative."""
        return max(0.0, self._seconds - self.token_s * self._tokens)

    def certain_tokens(self, seconds: float) -> int:
        """Return the largest chunk that takes at most ``seconds`` on any line through the mean."""
        return int(self._tokens * seconds / self._seconds)

    def record(self, tokens: int, seconds: float) -> None:
        """Record a chunk."""
        if self._slope is not None:
            expected = self.start_s + self.token_s * tokens
            is_slow = seconds > SLOW * expected
            if is_slow and not self._was_slow:
                self._was_slow = True
                return
            self._was_slow = is_slow
        self._smallest = min(tokens, self._smallest or tokens)
        self._largest = max(tokens, self._largest)
        self._update(tokens, seconds)
        through_zero = self._seconds / self._tokens
        before = through_zero if self._slope is None else self._slope
        # As much as two chunks with that difference would show.
        trust = SPREAD_TOKENS**2 / 4
        slope = (self._covariance + trust * before) / (self._variance + trust)
        self._slope = slope if slope > 0 else through_zero

    def _update(self, tokens: int, seconds: float) -> None:
        """Update the weighted means, variance and covariance."""
        self._weight = 1 + CHUNK_DECAY * self._weight
        share = 1 / self._weight
        from_tokens, from_seconds = tokens - self._tokens, seconds - self._seconds
        self._tokens += share * from_tokens
        self._seconds += share * from_seconds
        kept = 1 - share
        self._variance = kept * (self._variance + share * from_tokens**2)
        self._covariance = kept * (self._covariance + share * from_tokens * from_seconds)


class PrefillPace:
    """Decides how many prompt tokens to compute between the decode steps of running streams.

    Between two tokens of a stream lie one decode step and at most one chunk, which is a part of
    that step where the network can compute both in one pass. The chunk is as large as the gap
    allows at the measured speed. Where a decode step and the smallest chunk do not fit the gap, no
    chunk keeps it: then one takes as long as ``CHUNK_DECODES_MIN`` steps, so that prompts are not
    starved, and at least ``CPU_CHUNK_S_MIN``. All prompts that wait are read at once there if that
    is a short pause: each further pass would read the weights again for the streams alone. After a
    chunk in a pass of its own follow several decode steps, so that streams keep a share of the
    time.

    Args:
        gap_max_s: Longest gap between two tokens of a stream, in seconds; 0 for no limit. It may be
            changed at any time.
        step_tokens: Most tokens in a chunk.
        on_gpu: Whether a decode step is in flight when a chunk starts. The duration of the chunk
            then contains that step, and the next decode step takes no time of its own.
        is_joint: Whether a chunk beside streams is computed in the pass of their decode step.
    """

    def __init__(
        self,
        *,
        gap_max_s: float,
        step_tokens: int,
        on_gpu: bool = False,
        is_joint: bool = False,
    ) -> None:
        self.gap_max_s = gap_max_s
        self._step_tokens = step_tokens
        self._on_gpu = on_gpu
        self._is_joint = is_joint
        self._tokens_min = min(GPU_CHUNK_TOKENS_MIN if on_gpu else CHUNK_TOKENS_MIN, step_tokens)
        self._times = ChunkTimes()
        #: Whether the recorded chunk took less than what was recorded.
        self._are_bounds = False
        self._decode_s: float | None = None
        self._decodes_left = 0
        self._is_decode_done = False

    def chunk_tokens(self, *, streams: int, waiting: int) -> int:
        """Return the size of the next chunk beside ``streams`` running streams; 0 for no chunk.

        Args:
            waiting: Tokens of all prompts. Where the chunk may hold all of them, it may be larger
                than ``step_tokens``.
        """
        if not streams or not self.gap_max_s:
            return self._step_tokens
        if self._decodes_left > 0:
            return 0
        if not self._times.is_known:
            return self._tokens_min
        if self._is_joint and not self.keeps_gap:
            all_s = self._times.start_s + self._times.token_s * waiting
            if all_s <= SHORT_PAUSE_S:
                return max(waiting, self._tokens_min)
        available_s = self._available_s(GAP_SHARE)
        tokens = int((available_s - self._times.start_s) / self._times.token_s)
        tokens = max(tokens, self._tokens_min)
        if not self._times.has_slope:
            # A larger chunk shows how the duration grows; the time is certain to hold it.
            certain = self._times.certain_tokens(self._available_s(PROBE_SHARE))
            tokens = max(tokens, min(certain, self._tokens_min + SPREAD_TOKENS))
        return min(tokens, self._step_tokens)

    @property
    def keeps_gap(self) -> bool:
        """Whether a decode step and the smallest chunk fit the gap, as far as is known."""
        return not self._times.is_known or (
            self._apart_s + self._times.start_s + self._times.token_s * self._tokens_min
            <= self.gap_max_s
        )

    @property
    def _apart_s(self) -> float:
        """Seconds of the decode step that a chunk does not contain."""
        return 0.0 if self._is_joint else self._decode_s or 0.0

    def _available_s(self, gap_share: float) -> float:
        """Return the seconds of the next chunk."""
        if not self.keeps_gap:
            least_s = CPU_CHUNK_S_MIN if self._is_joint and not self._on_gpu else 0.0
            steps_s = (1 + CHUNK_DECODES_MIN) * (self._decode_s or 0.0)
            return max(steps_s, least_s) - self._apart_s
        return self.gap_max_s * gap_share - self._apart_s

    def record_chunk(self, tokens: int, seconds: float, *, streams: int = 0) -> None:
        """Record how long a chunk took beside ``streams`` running streams."""
        assert tokens > 0, "an empty chunk has no speed"
        self._is_decode_done = self._on_gpu and streams > 0
        if self._is_decode_done:
            # At least a part of the chunk is its own.
            own_s, least_s = seconds - (self._decode_s or 0.0), seconds * (1 - GAP_SHARE)
            seconds = max(own_s, least_s)
            self._record(tokens, seconds, is_bound=own_s < least_s)
        else:
            self._record(tokens, seconds, is_bound=False)
        wanted = math.ceil(DECODE_SHARE * seconds / self._decode_s) if self._decode_s else 1
        self._decodes_left = min(max(wanted, 1), DECODES_MAX)

    def record_joint(self, tokens: int, seconds: float) -> None:
        """Record how long a decode step took that computed a chunk too."""
        assert tokens > 0, "an empty chunk has no speed"
        self._decodes_left = 0
        self._is_decode_done = False
        self._record(tokens, seconds, is_bound=False)

    def _record(self, tokens: int, seconds: float, *, is_bound: bool) -> None:
        """Record a chunk; of those that take at most ``seconds``, the last until others are known.

        Several of them would show too small a duration of each token.
        """
        if is_bound and self._times.is_known and not self._are_bounds:
            return
        if self._are_bounds:
            self._times = ChunkTimes()
        self._are_bounds = is_bound
        self._times.record(tokens, seconds)

    def record_decode(self, seconds: float) -> None:
        """Record how long a decode step took."""
        self._decodes_left -= 1
        if self._is_decode_done:
            self._is_decode_done = False
            return
        known = self._decode_s
        self._decode_s = seconds if known is None else (1 - NEWEST) * known + NEWEST * seconds
