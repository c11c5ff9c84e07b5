"""Output lines of the parts, copied to the stderr of the supervisor and to its log files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Final, Protocol, TextIO

from ops.terminal_text import visible_line

#: Lines queued for a blocked terminal; further lines are dropped and counted.
LINES_MAX = 10_000
#: A longer line is cut into pieces of this size.
LINE_BYTES_MAX = 65_536
#: Time to write the last lines at the end, in seconds.
FLUSH_S = 2.0
#: Seconds until the next try where the disk of the stream is full.
RETRY_S = 5.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LineStream(Protocol):
    """Takes lines: a text stream, or log files."""

    def write(self, text: str, /) -> object:
        """Write a line with its end."""
        ...

    def flush(self) -> None:
        """Hand what is written to its reader."""
        ...


class BoundedFile:
    """A text stream on a file that is emptied once it is full.

    Args:
        stream: The stream. From now on it appends, so that its next line begins an emptied file.
    """

    def __init__(self, stream: TextIO, file_bytes: int) -> None:
        self._stream = stream
        self._file_bytes = file_bytes
        flags = fcntl.fcntl(stream.fileno(), fcntl.F_GETFL)
        fcntl.fcntl(stream.fileno(), fcntl.F_SETFL, flags | os.O_APPEND)

    def write(self, text: str) -> object:
        """Write a line with its end."""
        return self._stream.write(text)

    def flush(self) -> None:
        """Hand what is written to the system; empty a full file."""
        try:
            self._stream.flush()
        finally:  # a full disk gets the room of a full file
            with suppress(OSError):
                if os.fstat(self._stream.fileno()).st_size >= self._file_bytes:
                    os.ftruncate(self._stream.fileno(), 0)


class LineWriter:
    """Writes lines from its own thread, so that a stopped terminal never stops the service.

    While the disk of the stream is full, lines wait in the queue.

    Args:
        stream: Takes the lines. It keeps what its ``flush`` could not write.
        retry_s: Seconds until the next try where the disk is full.
    """

    def __init__(self, stream: LineStream, *, retry_s: float = RETRY_S) -> None:
        self._stream = stream
        self._retry_s = retry_s
        self._closing = threading.Event()
        self._released = threading.Event()
        self._released.set()
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Queue a line, without its end; safe from any thread, never waits."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def hold(self) -> None:
        """Keep lines in the queue until ``release``."""
        self._released.clear()

    def release(self) -> None:
        """Write lines again, those that were kept first."""
        self._released.set()

    def close(self) -> None:
        """Write what is queued, within a time limit."""
        self._closing.set()
        self.release()
        try:
            self._lines.put(None, timeout=FLUSH_S)
        except queue.Full:
            return
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._released.wait()
            try:
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._write(f"({dropped} lines were dropped)\n")
                self._write(line + "\n")
            except (OSError, ValueError):
                return  # the reader is gone; the queue fills and drops lines

    def _write(self, text: str) -> None:
        """Write a line; wait while the disk is full, but not at the end."""
        is_last = False
        while True:
            try:
                if text:
                    self._stream.write(text)
                self._stream.flush()
            except OSError as error:
                if is_last or error.errno not in _FULL:
                    raise
            else:
                return
            text = ""
            is_last = self._closing.wait(self._retry_s)


@dataclass(frozen=True, slots=True)
class PartOutput:
    """Where the output lines of the parts go.

    Attributes:
        writer: To the terminal.
        show: Returns a line of a part, as the terminal shows it.
        files: To the log files.
    """

    writer: LineWriter
    show: Callable[[str, str], str]
    files: LineWriter

    def put(self, part: str, line: str) -> None:
        """Take a line of a part, without its end; safe from any thread, never waits."""
        self.files.put(json_line(part, line))
        self.writer.put(self.show(part, line))

    def close(self) -> None:
        """Write what is queued, within a time limit."""
        self.files.close()
        self.writer.close()


def pump(source: IO[bytes], name: str, put: Callable[[str], None]) -> threading.Thread:
    """Start a thread that hands every line of ``source`` to ``put`` until its end."""
    thread = threading.Thread(target=_pump, args=(source, put), name=f"pump {name}", daemon=True)
    thread.start()
    return thread


def _pump(source: IO[bytes], put: Callable[[str], None]) -> None:
    with source:
        while line := source.readline(LINE_BYTES_MAX):
            put(line.decode(errors="replace").rstrip("\r\n"))


def json_line(part: str, line: str) -> str:
    """Return a line of a part as JSON; one that is no JSON object becomes the message of one."""
    if parsed(line) is not None:
        return line
    event = {"level": "info", "timestamp": _now(), "part": part, "message": line}
    return visible_line(json.dumps(event, ensure_ascii=False))


def parsed(line: str) -> dict[str, object] | None:
    """Return the event of a JSON line; ``None`` if it is none."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "message" in event else None


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
