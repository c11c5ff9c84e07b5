"""A ``Bench`` whose contexts are kept on disk."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from domain.kv.hashing import BlockHash
from domain.values import Sampling
from ops.blockstore.blocks import (
    BlockTarget,
    NewBlock,
    PutOutcome,
    Rejected,
    StoredBlock,
    StoreEvent,
)
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import make_block
from tests.support.models.runner_probe import Bench, Run
from tests.support.models.tiny_architectures import Architecture
from tests.support.polling import scaled, wait_until
from worker.cachestore.reports import ContextReport
from worker.cachestore.tier import DiskTier
from worker.cachestore.writer import WriterLimits
from worker.engine.ports import Admission

WAIT_S = 60.0


class GatedStore(BlockStore):
    """A store that reads and writes only while its gates are open."""

    gate: threading.Event
    write_gate: threading.Event

    def put_many(self, blocks: Sequence[NewBlock]) -> list[PutOutcome]:
        assert self.write_gate.wait(scaled(WAIT_S))
        return super().put_many(blocks)

    def get(
        self, block_hash: BlockHash, fingerprint: str, target: BlockTarget | None = None
    ) -> StoredBlock | Rejected | None:
        assert self.gate.wait(scaled(WAIT_S))
        return super().get(block_hash, fingerprint, target)


class DiskBench(Bench):
    """A process with a disk.

    Args:
        architecture: Of the network.
        directory: The store; what is there is found again.
        disk: How files are written.
        disk_budget_bytes: Cap of the store.
        limits: Of the write-behind.
        scanned: Whether the store can be read.
        more: See ``Bench``.
    """

    def __init__(
        self,
        architecture: Architecture,
        directory: Path,
        *,
        disk: Disk | None = None,
        disk_budget_bytes: int = 1 << 30,
        limits: WriterLimits | None = None,
        scanned: bool = True,
        **more: Any,
    ) -> None:
        self.events: list[StoreEvent] = []
        self.closed = False
        self.reports: list[ContextReport] = []
        clock = SystemClock()
        self.store = GatedStore(
            directory,
            budget_bytes=disk_budget_bytes,
            clock=clock,
            on_event=self.events.append,
            disk=disk or Disk(sync=False),
        )
        self.store.gate = threading.Event()
        self.store.gate.set()
        self.store.write_gate = threading.Event()
        self.store.write_gate.set()
        self.tier = DiskTier(
            self.store,
            clock=clock,
            on_event=self.events.append,
            writer_limits=limits,
        )
        self.tier.start()
        assert self.tier.wait_scanned(scaled(WAIT_S) if scanned else 0.0) is scanned
        super().__init__(architecture, tier=self.tier, on_context=self.reports.append, **more)

    def run_alone(
        self, prompt: Sequence[int], max_tokens: int = 8, sampling: Sampling | None = None
    ) -> Run:
        """Let one sequence run to its end, after what the disk has for it."""
        admission = self.admission(prompt, max_tokens, sampling)
        self.wait_for_disk(admission)
        run = self.join_as(admission)
        self.finish(run)
        return run

    def wait_for_disk(self, admission: Admission) -> None:
        wait_until(lambda: not self.runner.must_wait(admission), what="the blocks on disk")

    def hold_reads(self) -> None:
        self.store.gate.clear()

    def let_read(self) -> None:
        self.store.gate.set()

    def hold_writes(self) -> None:
        self.store.write_gate.clear()

    def let_write(self) -> None:
        self.store.write_gate.set()

    def wait_until_it_writes(self) -> None:
        """Wait until the pause after a failure is over."""
        wait_until(lambda: self.tier.write(make_block()) is not None, what="a write")
        self.settle()

    def settle(self) -> None:
        self.reuse.save_all(scaled(WAIT_S))
        assert self.tier.flush(scaled(WAIT_S))

    def close(self) -> None:
        """End in order, once: what was kept is on disk afterwards."""
        if self.closed:
            return
        self.closed = True
        self.let_read()
        self.let_write()
        for uid in list(self.runs):
            self.runner.remove(uid)
        self.reuse.save_all(scaled(WAIT_S))
        super().close()
        assert self.tier.close(scaled(WAIT_S))
