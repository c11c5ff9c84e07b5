"""A drive that loses power: what is durable at a moment of a recording, and what may be lost.

The model promises as little as POSIX does. The content of a file is durable up to its last sync,
its name only once its directory was synced. Of the rest any part may be on the disk: writes are
torn into sectors or pages of which any may be missing, a file may be longer than its data (then it
holds zeros), and names may be missing. A rename or a link is whole or absent, and no operation
survives without those that it builds on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from bench.power_cut.journal import Kind, Record

#: Sizes that a drive and a page cache write at once, in bytes.
_UNITS: Final = (512, 4096)
#: Shares of unsynced units, and of unsynced names, that reach the disk.
_SHARES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(slots=True, eq=False)
class File:
    """A file: its durable content, and the changes since the last sync."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Record] = field(default_factory=list)
    #: Whether a process has mapped it for writing, which the recorder does not see.
    mapped: bool = False

    def sync(self) -> None:
        """Make every change durable."""
        for change in self.pending:
            _change(self.content, change)
        self.pending.clear()

    def now(self) -> bytes:
        """Return the content that a reader sees."""
        content = bytearray(self.content)
        for change in self.pending:
            _change(content, change)
        return bytes(content)

    def after_a_cut(self, rng: random.Random) -> bytes:
        """Return a content that a power cut may leave."""
        content, share, unit = bytearray(self.content), rng.choice(_SHARES), rng.choice(_UNITS)
        grows_first = rng.random() < 0.5
        for change in self.pending:
            if change.kind is not Kind.WRITE:
                if rng.random() < share:
                    _change(content, change)
                continue
            for offset, data in _torn(change, unit):
                if rng.random() < share:
                    _write(content, offset, data)
                elif grows_first:
                    _grow(content, offset + len(data))
        return bytes(content)


#: What a name stands for; ``None`` for a directory.
_Node = File | None


@dataclass(frozen=True, slots=True, eq=False)
class _Naming:
    """A change of names: entries that it removes, then entries that it adds."""

    removes: tuple[str, ...]
    adds: tuple[tuple[str, _Node], ...]

    @property
    def paths(self) -> set[str]:
        return {*self.removes, *(path for path, _ in self.adds)}

    def follows(self, other: _Naming) -> bool:
        """Whether it changes an entry that an earlier change has made or names its file again."""
        if self.paths & other.paths:
            return True
        files = {node for _, node in other.adds if node is not None}
        return any(node in files for _, node in self.adds)

    def lies_in(self, other: _Naming) -> bool:
        """Whether an earlier change has named or removed its directory."""
        return any(str(PurePosixPath(path).parent) in other.paths for path in self.paths)


class Drive:
    """The disk below one directory, empty at first.

    Args:
        root: The directory of the recording.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._durable: dict[str, _Node] = {}
        self._names: dict[str, _Node] = {}
        self._pending: list[_Naming] = []
        self._files: dict[int, File] = {}

    def apply(self, record: Record) -> None:
        """Do what a record says."""
        if record.kind is Kind.SYNC:
            self._sync(record)
        elif record.kind in (Kind.WRITE, Kind.TRUNCATE, Kind.GROW):
            self._file(record.inode).pending.append(record)
        elif record.kind is Kind.MAP:
            self._file(record.inode).mapped = True
        elif record.kind is not Kind.MARK:
            naming = self._naming(record)
            _rename(self._names, naming)
            self._pending.append(naming)

    def now(self) -> dict[str, bytes]:
        """Return every file that readers see, by relative path."""
        return {
            self._relative(path): file.now()
            for path, file in self._names.items()
            if file is not None
        }

    def mapped(self) -> set[str]:
        """Return the files that a process has mapped for writing, by relative path."""
        return {
            self._relative(path)
            for path, file in self._names.items()
            if file is not None and file.mapped
        }

    def after_a_cut(self, rng: random.Random) -> dict[str, bytes | None]:
        """Return what a power cut may leave: files by relative path, ``None`` for directories."""
        names = dict(self._durable)
        for naming in _survivors(self._pending, rng):
            _rename(names, naming)
        contents: dict[File, bytes] = {}
        left: dict[str, bytes | None] = {}
        for path in sorted(names):
            above = str(PurePosixPath(path).parent)
            if above != self._root and self._relative(above) not in left:
                continue  # its directory is not there
            file = names[path]
            if file is not None and file not in contents:
                contents[file] = file.after_a_cut(rng)
            left[self._relative(path)] = None if file is None else contents[file]
        return left

    def _sync(self, record: Record) -> None:
        if not record.first:
            self._file(record.inode).sync()
            return
        needed: list[_Naming] = []
        later = []
        for naming in reversed(self._pending):
            here = any(str(PurePosixPath(path).parent) == record.first for path in naming.paths)
            if here or any(other.follows(naming) for other in needed):
                needed.append(naming)
            else:
                later.append(naming)
        for naming in reversed(needed):
            _rename(self._durable, naming)
        self._pending = later[::-1]

    def _naming(self, record: Record) -> _Naming:
        path, other = record.first, record.second.decode("utf-8", "surrogateescape")
        if record.kind is Kind.CREATE:
            self._files[record.inode] = file = File()
            return _Naming((), ((path, file),))
        if record.kind is Kind.MKDIR:
            return _Naming((), ((path, None),))
        if record.kind is Kind.LINK:
            return _Naming((), ((other, self._names[path]),))
        if record.kind is Kind.RENAME:
            moved = [name for name in self._names if name == path or name.startswith(f"{path}/")]
            adds = tuple((other + name[len(path) :], self._names[name]) for name in moved)
            return _Naming(tuple(moved), adds)
        return _Naming((path,), ())

    def _file(self, inode: int) -> File:
        return self._files[inode]

    def _relative(self, path: str) -> str:
        return path[len(self._root) + 1 :]


def write_image(image: dict[str, bytes | None], directory: Path) -> None:
    """Write what a power cut left to a new directory."""
    directory.mkdir(mode=0o700)
    for name in sorted(image):
        content = image[name]
        if content is None:
            (directory / name).mkdir(mode=0o700)
        else:
            (directory / name).write_bytes(content)


def _survivors(pending: list[_Naming], rng: random.Random) -> list[_Naming]:
    """Return the unsynced changes of names that reach the disk.

    A journalling file system keeps a beginning of them; others keep any part.
    """
    if rng.random() < 0.5:
        return pending[: rng.randint(0, len(pending))]
    share = rng.choice(_SHARES)
    kept: list[_Naming] = []
    lost: list[_Naming] = []
    for naming in pending:
        if rng.random() < share and not any(
            naming.follows(other) or naming.lies_in(other) for other in lost
        ):
            kept.append(naming)
        else:
            lost.append(naming)
    return kept


def _rename(names: dict[str, _Node], naming: _Naming) -> None:
    for path in naming.removes:
        names.pop(path, None)
    names.update(naming.adds)


def _torn(change: Record, unit: int) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a write that lie in one unit of the disk each."""
    begin, end = change.offset, change.offset + len(change.second)
    while begin < end:
        until = min(end, (begin // unit + 1) * unit)
        yield begin, change.second[begin - change.offset : until - change.offset]
        begin = until


def _change(content: bytearray, change: Record) -> None:
    if change.kind is Kind.WRITE:
        _write(content, change.offset, change.second)
        return
    if change.kind is Kind.TRUNCATE:
        del content[change.offset :]
    _grow(content, change.offset)


def _write(content: bytearray, offset: int, data: bytes) -> None:
    _grow(content, offset)
    content[offset : offset + len(data)] = data


def _grow(content: bytearray, length: int) -> None:
    content.extend(bytes(max(0, length - len(content))))
