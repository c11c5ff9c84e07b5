"""Applies numbered random changes to copies of one recorded log and judges each."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from bench.tampering.judge import Judgement, content_of, judge
from bench.tampering.mutations import change_bytes, change_row
from bench.tampering.sample import LOG_NAME, record_sample
from ops.log.admin.checkpoint_files import CHECKPOINTS_NAME, KEY_NAME, LAST_NAME
from ops.log.archives import DIRECTORY
from ops.log.sqlite_driver import driver_module

#: What is changed, and how often of 100 times.
TARGETS = {
    "database": 45,
    "row": 20,
    "wal": 10,
    "archive": 12,
    "heads": 10,
    "last head": 2,
    "key": 1,
}
#: Changes of one call of a process.
_CHUNK = 250


@dataclass(frozen=True, slots=True)
class Change:
    """One change and its effect."""

    number: int
    target: str
    kind: str
    judgement: Judgement


class Tamperer:
    """Changes copies of one recorded log.

    Args:
        directory: Empty; gets the recorded log and the copies.
        seed: Determines the log's texts and all changes.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self._seed = seed
        self._copy = directory / "copy"
        self._open, self._closed = directory / "open", directory / "closed"
        record_sample(self._open, seed=seed)
        shutil.copytree(self._open, self._closed)
        _close(self._closed)
        # Closing the last connection to a log empties its write-ahead log: read a copy.
        shutil.copytree(self._closed, self._copy)
        self._original = content_of(self._copy)

    def change(self, number: int) -> Change:
        """Apply the change with this number to a fresh copy and judge it."""
        at = random.Random(f"{self._seed} {number}")
        target = at.choices(list(TARGETS), list(TARGETS.values()))[0]
        sample = self._open if target == "wal" else self._closed
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(sample, self._copy)
        kind = self._apply(target, at)
        return Change(number, target, kind, judge(self._copy, self._original))

    def _apply(self, target: str, at: random.Random) -> str:
        if target == "row":
            return change_row(self._copy / LOG_NAME, at)
        (archive,) = (self._copy / DIRECTORY).iterdir()
        files = {
            "database": self._copy / LOG_NAME,
            "wal": self._copy / f"{LOG_NAME}-wal",
            "archive": archive,
            "heads": self._copy / CHECKPOINTS_NAME,
            "last head": self._copy / LAST_NAME,
            "key": self._copy / KEY_NAME,
        }
        return change_bytes(files[target], at)


def _close(directory: Path) -> None:
    """Move the write-ahead log into the database, as an orderly end does."""
    with closing(driver_module().connect(str(directory / LOG_NAME))) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def run(mutations: int, seed: int, *, processes: int = 1) -> Iterator[Change]:
    """Yield the changes and their effects.

    Args:
        mutations: How many.
        seed: Determines the changes.
        processes: How many work at once; 1 works in this process.
    """
    chunks = [
        (seed, range(first, min(first + _CHUNK, mutations)))
        for first in range(0, mutations, _CHUNK)
    ]
    if processes == 1:
        for chunk in chunks:
            yield from _changes(chunk)
        return
    with get_context("spawn").Pool(processes) as pool:
        for changes in pool.imap(_changes, chunks):
            yield from changes


def _changes(chunk: tuple[int, range]) -> list[Change]:
    seed, numbers = chunk
    with tempfile.TemporaryDirectory(prefix="semantic-tampering-") as directory:
        tamperer = Tamperer(Path(directory), seed)
        return [tamperer.change(number) for number in numbers]
