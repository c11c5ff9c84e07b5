"""Reads how much KV cache this worker holds, and what its drafts won, for its pulse."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from domain.kv.contexts import MemoryStats
from domain.kv.hashing import BlockHash
from domain.values import CacheFigures, DraftFigures, JobId, Priority, WaitingFor, WaitingJob
from ops.observe.counter_file import Figures, added
from worker.cachestore.tier import DiskTier


class HeldBlocks(Protocol):
    """The blocks of one model; safe to use from any thread."""

    @property
    def pool(self) -> Container[object]:
        """The names of the blocks in memory."""
        ...

    def forget(self, names: Sequence[BlockHash]) -> object:
        """Delete blocks in memory and on disk."""
        ...


class HasMemory(Protocol):
    """A runner that reports its blocks in memory and its drafts."""

    @property
    def drafts(self) -> DraftFigures:
        """What speculation has done so far; from any thread."""
        ...

    @property
    def prefix_cache(self) -> HeldBlocks | None:
        """The blocks in memory and on the disk; ``None`` if none are cached."""
        ...

    def memory(self) -> MemoryStats | None:
        """Return the figures, ``None`` if no blocks are cached; from any thread."""
        ...


_Runner = TypeVar("_Runner", bound=HasMemory)


@dataclass(slots=True, eq=False)
class CacheGauge:
    """Reads the sizes of memory and disk.

    Attributes:
        tier: The disk; ``None`` where blocks stay in memory.
        on_evicted: Receives the blocks evicted from memory since the last reading, and their bytes.
        clock: Seconds.
    """

    tier: DiskTier | None
    on_evicted: Callable[[int, int], None]
    clock: Callable[[], float] = time.monotonic
    _runner: HasMemory | None = field(default=None, init=False)
    _evicted: int = field(default=0, init=False)
    #: When each job was first seen to wait for memory.
    _waits_since_s: dict[JobId, float] = field(default_factory=dict, init=False)

    def watch(self, runner: _Runner) -> _Runner:
        """Read the memory of this runner from now on; returns the runner."""
        self._runner, self._evicted = runner, 0
        return runner

    def record_waiting(self, waiting: Iterable[WaitingJob]) -> None:
        """Record which jobs wait in the engine now; call it before each reading."""
        now_s, known = self.clock(), self._waits_since_s
        self._waits_since_s = {
            job.id: known.get(job.id, now_s)
            for job in waiting
            if job.waiting_for is WaitingFor.MEMORY and job.priority is Priority.INTERACTIVE
        }

    def read(self) -> CacheFigures | None:
        """Return the figures; ``None`` if no blocks are cached."""
        memory = None if self._runner is None else self._runner.memory()
        if memory is None:
            return None
        blocks = memory.blocks
        evicted, self._evicted = memory.evicted_blocks - self._evicted, memory.evicted_blocks
        if evicted > 0:
            self.on_evicted(evicted, evicted * (memory.used_bytes // max(1, blocks)))
        now_s = self.clock()
        full_since_s = min(self._waits_since_s.values(), default=now_s)
        figures = CacheFigures(
            ram_blocks=blocks,
            ram_used_bytes=memory.used_bytes,
            ram_budget_bytes=memory.budget_bytes,
            ram_held_bytes=memory.held_bytes,
            full_s=round(now_s - full_since_s, 3),
            ram_live_bytes=memory.live_bytes,
            weights_bytes=memory.weights_bytes,
            ceiling_bytes=memory.ceiling_bytes,
        )
        if self.tier is None:
            return figures
        disk = self.tier.stats()
        return replace(
            figures,
            disk=self.tier.state().value,
            disk_blocks=disk.blocks,
            disk_used_bytes=disk.size_bytes,
            disk_budget_bytes=disk.budget_bytes,
        )

    def read_drafts(self) -> DraftFigures | None:
        """Return what speculation has done; ``None`` before there is a runner."""
        return None if self._runner is None else replace(self._runner.drafts)

    def find_blocks(self, names: Sequence[BlockHash]) -> tuple[list[bool], list[bool]]:
        """Return whether memory and disk have each block; from any thread."""
        cache, tier = self._blocks(), self.tier
        in_memory = [cache is not None and name in cache.pool for name in names]
        return in_memory, [tier is not None and tier.contains(name) for name in names]

    def forget_blocks(self, names: Sequence[BlockHash]) -> None:
        """Delete blocks in memory and on disk; from any thread."""
        if (cache := self._blocks()) is not None:
            cache.forget(names)
        elif self.tier is not None:
            self.tier.forget(names)

    def _blocks(self) -> HeldBlocks | None:
        return None if self._runner is None else self._runner.prefix_cache

    def counted(self) -> Figures:
        """Return what the caches of this process have done so far, by metric family."""
        counted: Figures = {} if self.tier is None else self.tier.counted()
        if self._runner is None:
            return counted
        memory, drafts = self._runner.memory(), self._runner.drafts
        ours: dict[str, dict[str, float]] = {
            "spec_decode_num_drafts_total": {"": float(drafts.drafts)},
            "spec_decode_num_draft_tokens_total": {"": float(drafts.drafted_tokens)},
            "spec_decode_num_accepted_tokens_total": {"": float(drafts.accepted_tokens)},
        }
        if memory is not None:
            ours["eviction_total"] = {"ram": float(memory.evicted_blocks)}
        return added(counted, ours)
