"""Log lines in numbered files: written by the supervisor alone, read by any process.

A full file keeps its number and is compressed: the next line begins the next number. So a reader
that has read a file to its end, and then sees a later one, has read all lines of the earlier file,
and a kill while a file is compressed repeats none. ADR 0055 compares the libraries.
"""

from __future__ import annotations

import gzip
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

#: Size at which a file of log lines is full.
FILE_BYTES: Final = 10_000_000
#: Seconds until the next try after a line could not be written.
RETRY_S: Final = 5.0
#: Seconds between two searches for files that are too old.
PRUNE_S: Final = 600.0
#: Of zlib, from 1 to 9: 9 takes 2.6 times as long for files that are 4 % smaller.
_COMPRESSION: Final = 6
_PATTERN: Final = "[0-9]" * 8 + ".log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """What the files may take.

    Attributes:
        file_bytes: Size at which a file is full.
        total_bytes: Size of all files; the oldest are deleted.
        keep_s: Age at which a file is deleted, in seconds since its last line.
    """

    # A full file is compressed between two lines, which a larger one would delay for seconds.
    file_bytes: int = FILE_BYTES
    total_bytes: int = 200_000_000
    keep_s: float = 14 * 24 * 3600.0


class LogFiles:
    """Appends lines to the last file of a directory. One thread of one process uses it.

    No method raises: a disk that is full or broken costs lines, which are counted, and a note about
    their number is the first line that is written afterwards.

    Args:
        directory: Of the files; made with the first line.
        open_file: Opens a file for appending; tests replace it.
        now_s: Seconds since 1970.
    """

    def __init__(
        self,
        directory: Path,
        limits: LogLimits | None = None,
        *,
        open_file: Callable[[Path], int] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._limits = limits or LogLimits()
        self._open_file = open_file or _append_to
        self._now_s = now_s
        self._file: int | None = None
        self._number = 0
        self._size_bytes = 0
        self._lost = 0
        self._retry_at_s = 0.0
        self._prune_at_s = 0.0
        #: Whether the last write ended inside a line.
        self._is_broken = False

    @property
    def lost(self) -> int:
        """Lines that could not be written since the last note about them."""
        return self._lost

    def write(self, text: str) -> None:
        """Append a line with its end."""
        now_s = self._now_s()
        if now_s < self._retry_at_s:
            self._lost += 1
            return
        try:
            self._append(text)
        except OSError:
            self._lost += 1
            self._retry_at_s = now_s + RETRY_S
            self.close()

    def flush(self) -> None:
        """Do nothing: each line is handed to the system at once."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _append(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if self._file is not None and self._size_bytes + len(data) > self._limits.file_bytes:
            self.close()
            self._number += 1
            self._prune_at_s = 0.0
        if self._file is None:
            self._open()
        if self._now_s() >= self._prune_at_s:
            self._prune_at_s = self._now_s() + PRUNE_S
            self._compress_full()
            self._prune()
        if self._lost:
            self._put(f"({self._lost} lines were lost: they could not be written)\n".encode())
            self._lost = 0
        self._put(data)

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._number:
            self._number = max((_number(path) for path in segments(self._directory)), default=1)
        path = self._directory / f"{self._number:08d}.log"
        if path.exists() and path.stat().st_size >= self._limits.file_bytes:
            self._number += 1
            path = self._directory / f"{self._number:08d}.log"
        self._file = self._open_file(path)
        self._size_bytes = os.fstat(self._file).st_size
        self._is_broken = self._is_broken or self._ends_inside_a_line(path)

    def _ends_inside_a_line(self, path: Path) -> bool:
        if not self._size_bytes:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def _put(self, data: bytes) -> None:
        assert self._file is not None, "open first"  # noqa: S101 - the caller opens it
        if self._is_broken:
            data = b"\n" + data
        while data:
            written = os.write(self._file, data)
            self._size_bytes += written
            data = data[written:]
            self._is_broken = bool(data)

    def _compress_full(self) -> None:
        """Compress the files before the last one, also those that an earlier process left."""
        for path in self._directory.glob(_PATTERN):
            if _number(path) != self._number:
                with suppress(OSError):  # a full disk: it stays as it is until the next look
                    _compress(path)

    def _prune(self) -> None:
        """Delete files that are too old, and the oldest beyond the size of all."""
        # The current file may yet become full.
        left_bytes = self._limits.total_bytes - self._limits.file_bytes
        oldest_s = self._now_s() - self._limits.keep_s
        earlier = [one for one in segments(self._directory) if _number(one) != self._number]
        for path in sorted(earlier, key=_number, reverse=True):
            with suppress(OSError):
                found = path.stat()
                left_bytes -= found.st_size
                if left_bytes < 0 or found.st_mtime < oldest_s:
                    path.unlink()


class LogFileReader:
    """Reads the lines of a directory in order, also while they are written.

    Args:
        directory: Of the files; it may come to exist later.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[str]:
        """Yield the lines since the last call; a line without its end comes with a later call."""
        while True:
            # Looked at before the file: what is written to it later is read by the next call.
            later = sorted(
                number
                for number in map(_number, segments(self._directory))
                if number > self._number
            )
            if self._number:
                yield from self._read_file()
            if not later:
                return
            if self._rest:
                yield self._rest.decode("utf-8", "replace")
            self._number, self._offset, self._rest = later[0], 0, b""

    def _read_file(self) -> Iterator[str]:
        try:
            with self._opened() as file:
                file.seek(self._offset)
                for line in file:
                    self._offset += len(line)
                    self._rest += line
                    if line.endswith(b"\n"):
                        whole, self._rest = self._rest, b""
                        yield whole[:-1].decode("utf-8", "replace")
        except (FileNotFoundError, gzip.BadGzipFile, EOFError, zlib.error):
            return  # it was too old, or its disk is damaged

    def _opened(self) -> IO[bytes] | gzip.GzipFile:
        path = self._directory / f"{self._number:08d}.log"
        try:
            return path.open("rb")
        except FileNotFoundError:  # compressed, before it went
            return gzip.open(_compressed(path), "rb")


def segments(directory: Path) -> list[Path]:
    """Return the files of a directory, in no order; full ones are compressed."""
    return [*directory.glob(_PATTERN), *directory.glob(f"{_PATTERN}.gz")]


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _compressed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def _compress(path: Path) -> None:
    """Replace a file by its compressed form, which keeps its time and its mode."""
    unfinished = path.with_suffix(".tmp")
    try:
        with (
            path.open("rb") as source,
            os.fdopen(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as to,
        ):
            with gzip.open(to, "wb", compresslevel=_COMPRESSION) as packed:
                shutil.copyfileobj(source, packed)
            to.flush()
            os.fsync(to.fileno())
        shutil.copystat(path, unfinished)
        unfinished.replace(_compressed(path))
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    path.unlink()


def _append_to(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
