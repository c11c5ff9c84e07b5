"""A child process that exchanges lines with this process, and may die before it reads one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Self


class LineChild:
    """A running child with a pipe in each direction; the end of the block waits for its end.

    Args:
        env: Its whole environment; that of this process by default.
        own_session: Whether the terminal's Ctrl-C is kept away from it.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, own_session: bool
    ) -> None:
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=own_session,
            encoding="utf-8",
        )
        assert self.process.stdin is not None  # noqa: S101 - requested above; narrows the type
        assert self.process.stdout is not None  # noqa: S101 - requested above; narrows the type
        self._requests = self.process.stdin
        self.replies = self.process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_requests()
        self.process.__exit__(None, None, None)

    def send(self, line: str = "") -> None:
        """Send a line; a child that has ended is found at the end of its replies."""
        send_line(self._requests, line)

    def end_requests(self) -> None:
        """Close the pipe to the child; a second call does nothing."""
        # A line that the dead child never read is still in the buffer, and closing flushes it.
        with suppress(BrokenPipeError):
            self._requests.close()


def send_line(stream: IO[str], line: str) -> None:
    """Write a line to a pipe; a reader that has ended is no error."""
    with suppress(BrokenPipeError):
        stream.write(f"{line}\n")
        stream.flush()
