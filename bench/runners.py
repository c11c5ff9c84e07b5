"""Runners on the weights of a whole model, for benchmarks that need no server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.values import Sampling
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.polling import wait_until
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admission, Admitted

_WAIT_S: Final = 120.0
CONTEXTS_BYTES: Final = 4_000_000_000


def make_runner(
    weights: LoadedWeights,
    *,
    piece_tokens: int | None = None,
    reuse: bool = True,
    tier: DiskTier | None = None,
) -> BatchRunner:
    """Return a loaded runner; several may use the same weights, one after another."""
    runner = BatchRunner(
        load_weights=lambda: weights,
        prefill_step_tokens=piece_tokens,
        kv_budget_bytes=CONTEXTS_BYTES,
        reuse=reuse,
        tier=tier,
    )
    runner.load()
    return runner


def end_runner(runner: BatchRunner) -> None:
    """Free the contexts; ``close`` would also end MLX's streams, which the next runner needs."""
    if runner.prefix_cache is not None:
        runner.prefix_cache.close()


def make_admission(prompt: Sequence[int], tokens: int) -> Admission:
    """Return a greedy sequence."""
    return Admission(
        tokens=tuple(prompt),
        first_index=0,
        max_new_tokens=tokens,
        sampling=Sampling(temperature=0),
    )


def insert(runner: BatchRunner, prompt: Sequence[int], tokens: int) -> Admitted:
    """Add a greedy sequence to the next step."""
    admitted = runner.insert(make_admission(prompt, tokens))
    assert admitted is not None, "the budget holds the contexts"
    return admitted


def first_token_s(runner: BatchRunner, prompt: Sequence[int]) -> float:
    """Return the seconds to the first and only token of an answer."""
    begin = time.perf_counter()
    insert(runner, prompt, tokens=1)
    while not runner.step().tokens:
        pass
    return time.perf_counter() - begin


class DiskRunner:
    """A runner whose contexts are kept on the disk.

    Attributes:
        restored: Tokens that came back from memory or disk so far.
    """

    def __init__(self, weights: LoadedWeights, place: Path) -> None:
        clock = SystemClock()
        store = BlockStore(place, budget_bytes=CONTEXTS_BYTES, clock=clock)
        self.tier = DiskTier(store, clock=clock)
        self.tier.start()
        assert self.tier.wait_scanned(_WAIT_S)
        self.runner = make_runner(weights, tier=self.tier)
        self.restored = 0

    def answer(self, prompt: Sequence[int], tokens: int = 16) -> tuple[list[int], float]:
        """Return greedy tokens, and the seconds to the first of them."""
        begin, first_s, found = time.perf_counter(), 0.0, list[int]()
        admission = make_admission(prompt, tokens)
        wait_until(lambda: not self.runner.must_wait(admission), what="the blocks on disk")
        assert self.runner.insert(admission) is not None
        while len(found) < tokens:
            result = self.runner.step()
            self.restored += sum(result.restored.values())
            found += [token for _, token, _ in result.tokens]
            if found and not first_s:
                first_s = time.perf_counter() - begin
        return found, first_s

    def save(self) -> float:
        """Write every context, and return the seconds until the disk has them."""
        cache = self.runner.prefix_cache
        assert cache is not None
        begin = time.perf_counter()
        cache.save_all(_WAIT_S)
        assert self.tier.flush(_WAIT_S)
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the runner and the threads of the disk."""
        end_runner(self.runner)
        assert self.tier.close(_WAIT_S)


def stored_bytes(place: Path) -> int:
    """Return the size of all files of a store."""
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
