"""Applies numbered random changes to copies of one recorded log, and judges each.

A change is found, or provably has no effect.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from bench.tampering.sample import LOG_NAME, record_sample, url_of
from domain.errors import SemanticError
from domain.log.checkpoints import required_hashes
from ops.log.admin.checkpoint_files import CHECKPOINTS_NAME, KEY_NAME, LAST_NAME, CheckpointFiles
from ops.log.admin.verify import VerifiedLog, verify_whole_log
from ops.log.archives import DIRECTORY, read_events
from ops.log.database import reader_engine
from ops.log.migrate import refuse_newer_program
from ops.log.sqlite_driver import driver_module, single_spaced


class Verdict(StrEnum):
    """The effect of a change."""

    FOUND = "found"
    #: All that can be read is what it was.
    HARMLESS = "harmless"
    MISSED = "missed"
    #: The verification ended with an error that has no type.
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The effect of a change, and by what it was found."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """All that readers of a directory can see: the verification's report, and every value."""

    report: VerifiedLog
    heads: tuple[Any, ...]
    values: tuple[Any, ...]


def content_of(directory: Path) -> Content:
    """Verify a directory as ``semantic log verify`` does, and read all of it.

    Raises:
        SemanticError: It does not verify.
    """
    report, heads = _verified(directory)
    return Content(report, heads, _values(directory))


def judge(directory: Path, original: Content) -> Judgement:
    """Verify a changed directory and compare what passes with the original."""
    try:
        report, heads = _verified(directory)
    except SemanticError as error:
        return Judgement(Verdict.FOUND, f"{error.code}: {error.message}")
    except Exception as error:  # noqa: BLE001 - any other error is a finding
        return Judgement(Verdict.CRASHED, repr(error))
    if report != original.report:
        return Judgement(Verdict.FOUND, f"reported: {report}")
    if heads == original.heads and _values(directory) == original.values:
        return Judgement(Verdict.HARMLESS)
    return Judgement(Verdict.MISSED)


def _verified(directory: Path) -> tuple[VerifiedLog, tuple[Any, ...]]:
    url, files = url_of(directory), CheckpointFiles.of(directory)
    heads = files.read()
    refuse_newer_program(url)
    engine = reader_engine(url)
    try:
        report = verify_whole_log(engine, url, signed_hashes=required_hashes(heads))
    finally:
        engine.dispose()
    return report, heads


def _values(directory: Path) -> tuple[Any, ...]:
    """Return every row of every table, every archived event, and the key of the heads."""
    with closing(driver_module().connect(str(directory / LOG_NAME))) as raw:
        entries = raw.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
        # SQLite reads every white space between the words of a statement alike.
        schema = sorted((*names, single_spaced(sql)) for *names, sql in entries)
        rows = tuple(
            (name, tuple(_typed(row) for row in raw.execute(f'SELECT rowid, * FROM "{name}"')))  # noqa: S608 - own names
            for kind, name, _, _ in schema
            if kind == "table"
        )
    archived = tuple(
        (path.name, tuple(read_events(path))) for path in sorted((directory / DIRECTORY).iterdir())
    )
    return tuple(schema), rows, archived, CheckpointFiles.of(directory).load_key()


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((type(value), value) for value in row)


#: Longest run of bytes that one change covers.
_RUN_BYTES_MAX: Final = 4096

#: Changes of bytes; half of all are flipped bits.
BYTE_CHANGES: Final = ("bit", "byte", "overwrite", "zero", "swap", "cut", "drop", "repeat")


def _change(kind: str, content: bytearray, at: random.Random) -> None:
    """Change a byte, or a run of bytes, at a random place."""
    first = at.randrange(len(content))
    last = min(len(content), first + at.choice((2, 16, 512, _RUN_BYTES_MAX)))
    match kind:
        case "bit":
            content[first] ^= 1 << at.randrange(8)
        case "byte":
            content[first] = at.randrange(256)
        case "overwrite":
            content[first:last] = at.randbytes(last - first)
        case "zero":
            content[first:last] = bytes(last - first)
        case "swap":
            other = at.randrange(len(content) - (last - first) + 1)
            kept = content[first:last]
            content[first:last] = content[other : other + len(kept)]
            content[other : other + len(kept)] = kept
        case "cut":
            del content[first:]
        case "drop":
            del content[first:last]
        case _:
            content[last:last] = content[first:last]


def change_bytes(file: Path, at: random.Random) -> str:
    """Change a file at random places and return the kind of change."""
    kind = at.choice(("bit",) * len(BYTE_CHANGES) + BYTE_CHANGES)
    content = bytearray(file.read_bytes())
    if content:
        _change(kind, content, at)
    file.write_bytes(content)
    return kind


def change_row(file: Path, at: random.Random) -> str:
    """Change, delete or repeat a random row as another program would, with the triggers off."""
    with closing(driver_module().connect(str(file), isolation_level=None)) as raw:
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            raw.execute(f'DROP TRIGGER "{name}"')
        kind = _change_one_row(raw, at)
        for _, sql in kept:
            raw.execute(sql)
    return kind


def _change_one_row(raw: Any, at: random.Random) -> str:
    names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    filled = [name for (name,) in names if _rows(raw, name)]
    table = at.choice(filled)
    row = at.choice(_rows(raw, table))
    kind = at.choice(("row deleted", "value changed", "value changed", "values swapped"))
    # The log deletes webhooks by itself: their absence is no damage.
    if kind == "row deleted" and table != "webhooks":
        raw.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (row,))  # noqa: S608 - own names
        return f"{kind}: {table}"
    columns = [info[1] for info in raw.execute(f'PRAGMA table_info("{table}")')]
    column = at.choice(columns)
    query = f'SELECT "{column}" FROM "{table}" WHERE rowid = ?'  # noqa: S608 - own names
    ((value,),) = raw.execute(query, (row,)).fetchall()
    fresh = _another(value, at)
    if kind == "values swapped":
        ((fresh,),) = raw.execute(query, (at.choice(_rows(raw, table)),)).fetchall()
    try:
        raw.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (fresh, row))  # noqa: S608 - own names
    except driver_module().IntegrityError:
        kind = "nothing, refused by a constraint"
    return f"{kind}: {table}.{column}"


def _rows(raw: Any, table: str) -> list[int]:
    return [row for (row,) in raw.execute(f'SELECT rowid FROM "{table}"').fetchall()]  # noqa: S608 - own names


def _another(value: object, at: random.Random) -> object:
    """Return a value of the same type that differs in one character, bit or unit."""
    if isinstance(value, str) and value:
        place = at.randrange(len(value))
        return value[:place] + at.choice("0123456789abcdefXYZ") + value[place + 1 :]
    if isinstance(value, bytes) and value:
        content = bytearray(value)
        _change("bit", content, at)
        return bytes(content)
    if isinstance(value, int | float):
        return value + at.choice((-1, 1))
    return at.choice(("", "another", 0, 1))


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
