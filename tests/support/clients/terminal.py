"""A program on its own pseudo-terminal: tests send keys and read its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.polling import scaled

#: Longest wait for an expected output.
SHOWN_WITHIN_S = 120.0
ENTER, ESCAPE = "\r", "\x1b"
_ROWS, _COLUMNS = 50, 160
_READ_BYTES = 65_536
#: A cursor move to the right becomes a space; every other sequence is dropped.
_RIGHT = re.compile(r"\x1b\[\d*C")
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_=>()])")


class Terminal:
    """Runs a program, and ends it on exit.

    Args:
        argv: What to run.
        env: Its whole environment.
        cwd: Where.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            argv, env=dict(env), cwd=cwd, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._shown = b""
        self._changed = threading.Condition(threading.RLock())
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._master)

    @property
    def length(self) -> int:
        """The length of the output so far; a position to search from."""
        with self._changed:
            return len(self._shown)

    def text(self, since: int = 0) -> str:
        """Return the output from a position on, as text."""
        with self._changed:
            shown = self._shown[since:]
        return _SEQUENCE.sub("", _RIGHT.sub(" ", shown.decode(errors="replace")))

    def wait_for(self, pattern: str, *, since: int = 0) -> None:
        """Wait until a text appears."""
        wanted = re.compile(pattern)
        with self._changed:
            came = self._changed.wait_for(
                lambda: wanted.search(self.text(since)) or not self._reader.is_alive(),
                scaled(SHOWN_WITHIN_S),
            )
        assert came, f"{pattern!r} was not shown; the last was:\n{self.text()[-3000:]}"
        assert wanted.search(self.text(since)), f"it ended:\n{self.text()[-3000:]}"

    def press(self, keys: str) -> None:
        """Send raw keys."""
        os.write(self._master, keys.encode())

    def enter(self, text: str) -> None:
        """Type a line, wait until it appears, and press Enter."""
        before = self.length
        self.press(text)
        self.wait_for(re.escape(text.rsplit(maxsplit=1)[-1]), since=before)
        self.press(ENTER)

    def _read(self) -> None:
        while True:
            try:
                shown = os.read(self._master, _READ_BYTES)
            except OSError:  # the other side is closed
                shown = b""
            with self._changed:
                self._shown += shown
                self._changed.notify_all()
            if not shown:
                return
