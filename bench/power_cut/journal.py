"""What is recorded, and how: a library writes what was written, named and synced, in order.

Between stand marks: what was promised at that moment, such as a job that was accepted.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

_HEADER: Final = struct.Struct("<IIQQII")
_MAGIC: Final = 0x43505743


class Kind(StrEnum):
    """The kinds of record, as ``recorder.c`` writes them."""

    CREATE = "c"
    WRITE = "w"
    TRUNCATE = "t"
    GROW = "g"
    MAP = "m"
    RENAME = "r"
    LINK = "l"
    UNLINK = "u"
    MKDIR = "d"
    RMDIR = "x"
    SYNC = "s"
    MARK = "k"


@dataclass(frozen=True, slots=True)
class Record:
    """One call.

    Attributes:
        inode: Of the file; 0 where the call has paths only.
        offset: Of the first byte written, or the new length.
        first: The path, or the old path of a rename; of a sync only where a directory was synced.
        second: The new path as bytes, the data, or the mark as JSON.
    """

    kind: Kind
    inode: int
    offset: int
    first: str
    second: bytes


def read_journal(path: Path) -> Iterator[Record]:
    """Yield the records in order."""
    with path.open("rb") as file:
        while head := file.read(_HEADER.size):
            magic, kind, inode, offset, first, second = _HEADER.unpack(head)
            assert magic == _MAGIC, "the journal has no record here"
            name = os.fsdecode(file.read(first))
            yield Record(Kind(chr(kind)), inode, offset, name, file.read(second))


def mark(journal: Path, **promise: Any) -> None:
    """Append a mark; what it promises has been promised before."""
    content = json.dumps(promise).encode()
    header = _HEADER.pack(_MAGIC, ord(Kind.MARK), 0, 0, 0, len(content))
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(descriptor, header + content)
    finally:
        os.close(descriptor)
    assert written == len(header) + len(content), "a mark is written whole"


_SOURCE: Final = Path(__file__).with_name("recorder.c")


def compiler() -> str | None:
    """Return the C compiler; ``None`` where nothing can be recorded."""
    return shutil.which("cc") or shutil.which("tcc") if sys.platform == "linux" else None


def compile_recorder(directory: Path) -> Path:
    """Write the recorder as a shared library to ``directory`` and return its path."""
    program = compiler()
    assert program is not None, "there is no C compiler"
    library = directory / "recorder.so"
    arguments = ["-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run([program, *arguments], check=True)
    return library


def recorded_environment(library: Path, *, root: Path, journal: Path) -> dict[str, str]:
    """Return the variables of a process whose writes below ``root`` go into ``journal``.

    Args:
        library: From ``compile_recorder``.
        root: An existing directory, without links in its path.
        journal: A file outside ``root``.
    """
    return {
        "LD_PRELOAD": str(library),
        "POWER_CUT_ROOT": str(root),
        "POWER_CUT_JOURNAL": str(journal),
    }
