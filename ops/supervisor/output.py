"""Output lines of the parts, copied to the stderr of the supervisor."""

from __future__ import annotations

import queue
import threading
from typing import IO, TextIO

#: Lines queued for a blocked terminal; further lines are dropped and counted.
LINES_MAX = 10_000
#: A longer line is cut into pieces of this size.
LINE_BYTES_MAX = 16_384
#: Time to write the last lines at the end, in seconds.
FLUSH_S = 2.0


class LineWriter:
    """Writes lines from its own thread, so that a stopped terminal never stops the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
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

    def close(self) -> None:
        """Write what is queued, within a time limit."""
        try:
            self._lines.put(None, timeout=FLUSH_S)
        except queue.Full:
            return
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._stream.write(f"({dropped} lines were dropped)\n")
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # the reader is gone; the queue fills and drops lines


def pump(source: IO[bytes], prefix: str, writer: LineWriter) -> threading.Thread:
    """Start a thread that copies every line of ``source`` to ``writer`` until its end."""
    thread = threading.Thread(
        target=_pump, args=(source, prefix, writer), name=f"pump {prefix}", daemon=True
    )
    thread.start()
    return thread


def _pump(source: IO[bytes], prefix: str, writer: LineWriter) -> None:
    with source:
        while line := source.readline(LINE_BYTES_MAX):
            writer.put(prefix + line.decode(errors="replace").rstrip("\r\n"))
