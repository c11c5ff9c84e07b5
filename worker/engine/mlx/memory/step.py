"""Measures the working set of a step on the loaded network, and remembers it in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx

from domain.kv.plan import StepMemory
from domain.values import Sampling
from worker.engine.mlx.rows.running_sequences import (
    TOGETHER_PIECES_MAX,
    JoinRequest,
    RunningSequences,
)
from worker.engine.mlx.sampler import BatchSampler, SamplerRow

#: Most prompt tokens that are computed to measure a piece. A longer piece is extrapolated: what a
#: layer keeps is proportional to the tokens of the piece.
PROBE_TOKENS = 128
#: Pieces of the prompt. Buffers are freed by other threads, so that a peak varies by a tenth: the
#: difference of the first and the last is divided by their distance.
_PIECES = 4
#: Token ids of the prompts are below this number.
_IDS = 16
#: A sampling with each filter and penalty, so that the sampler keeps all its copies of the logits.
_SAMPLING = Sampling(
    temperature=1.0,
    top_p=0.9,
    top_k=40,
    min_p=0.01,
    repetition_penalty=1.1,
    xtc_probability=1.0,
    seed=1,
)


def measure_step(
    network: Any,  # noqa: ANN401 - mlx-lm ships no types
    *,
    ragged: bool,
    piece_tokens: int,
    batch: int,
) -> StepMemory:
    """Return the working set of the largest prefill piece and of a decode step, beside the caches.

    Pieces of one prompt are computed: attention scores that are stored show as the difference of
    their peaks, and grow with the context. This is also the warm-up of the network.

    Args:
        network: An mlx-lm model.
        ragged: Whether it computes rows of unequal length in one pass.
        piece_tokens: Prompt tokens computed in one piece.
        batch: Sequences decoded in one step.
    """
    probe = _Probe(network, ragged=ragged)
    tokens = min(piece_tokens, PROBE_TOKENS)
    first, *_, last = probe.prefill_peaks(tokens)
    slope = max(0, last - first) / ((_PIECES - 1) * tokens)
    fixed = max(0.0, first - slope * tokens)
    scale = piece_tokens / tokens
    # Short prompts are prefilled together, in several pieces' worth of tokens.
    together = TOGETHER_PIECES_MAX if ragged else 1
    return StepMemory(
        fixed_bytes=int(scale * max(fixed * together, first)) + probe.decode_peak(batch),
        token_bytes=int(scale * slope),
    )


class _Probe:
    def __init__(self, network: Any, *, ragged: bool) -> None:  # noqa: ANN401 - mlx-lm ships no types
        self._sampler = BatchSampler(lambda _: self._sequences.sampled)
        self._sequences = RunningSequences(
            network, self._sampler, row_bytes=lambda _: 0, ragged=ragged
        )

    def prefill_peaks(self, tokens: int) -> list[int]:
        """Return the working sets of the pieces of a prompt."""
        uid = self._insert(_PIECES * tokens + 1)
        peaks = [_peak_of(lambda: self._sequences.prefill(tokens)) for _ in range(_PIECES)]
        self._raise_failed()
        self._sequences.remove([uid])
        mx.clear_cache()
        return peaks

    def decode_peak(self, batch: int) -> int:
        """Return the working set of a decode step of short sequences."""
        sequences = self._sequences
        uids = [self._insert(2) for _ in range(batch)]
        for uid in uids:
            self._sampler.add(uid, SamplerRow(_SAMPLING, 0, None))
        while sequences.is_prefilling:
            sequences.prefill(1)
            sequences.start_decoding()
            self._raise_failed()
        sequences.decode()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        # The pass that the first call starts ends in the second.
        for _ in range(2):
            sequences.decode()
        peak = mx.get_peak_memory() - before
        sequences.remove(uids)
        mx.clear_cache()
        return max(0, peak)

    def _insert(self, tokens: int) -> int:
        prompt = [index % _IDS for index in range(tokens)]
        return self._sequences.insert(JoinRequest(prompt=prompt))

    def _raise_failed(self) -> None:
        for fault in self._sequences.take_failed():
            raise fault.error


def _peak_of(work: Callable[[], object]) -> int:
    """Return the most bytes that ``work`` needed beyond what it leaves."""
    mx.reset_peak_memory()
    work()
    return max(0, mx.get_peak_memory() - mx.get_active_memory())


#: Measures that the file holds; the oldest are dropped.
_ENTRIES_MAX = 32


class StepFile:
    """Measured steps by key. A file that is missing or garbled is empty.

    Args:
        path: The file; its directory exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> StepMemory | None:
        """Return the measure of a key, ``None`` where there is none."""
        entry = self._entries().get(key)
        try:
            return None if entry is None else StepMemory(**entry)
        except TypeError:
            return None

    def put(self, key: str, step: StepMemory) -> None:
        """Remember a measure. A file that cannot be written is left as it is."""
        entries = self._entries()
        entries.pop(key, None)
        entries[key] = asdict(step)
        kept = dict(list(entries.items())[-_ENTRIES_MAX:])
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.write_text(json.dumps(kept), encoding="utf-8")
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)

    def _entries(self) -> dict[str, dict[str, int]]:
        try:
            entries = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        is_valid = isinstance(entries, dict) and all(
            isinstance(entry, dict) for entry in entries.values()
        )
        return entries if is_valid else {}
