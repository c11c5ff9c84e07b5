"""A block store on a directory that tests may inspect and damage."""

from __future__ import annotations

from pathlib import Path

from ops.blockstore.blocks import NewBlock, StoreEvent
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from tests.support.fakes.time import FakeClock

BUDGET_BYTES = 1 << 20


class StoreWorld:
    """A directory and the open store on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.events: list[StoreEvent] = []
        self.disk: Disk = Disk(sync=False)
        self.store = self.reopen()

    def reopen(self, *, budget_bytes: int = BUDGET_BYTES) -> BlockStore:
        self.store = BlockStore(
            self.root,
            budget_bytes=budget_bytes,
            clock=self.clock,
            on_event=self.events.append,
            disk=self.disk,
        )
        self.report = self.store.scan()
        return self.store

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def file_of(self, block: NewBlock) -> Path:
        return next(path for path in self.files() if path.name.startswith(block.hash.hex()))
