"""One run of a part: a process in a session of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from ops.heartbeat import HEARTBEAT_ENV
from ops.parent_watch import LIFELINE_ENV
from ops.supervisor.output import LineWriter, pump
from ops.supervisor.parts import Part

#: What the processes that a dead part left behind get between SIGTERM and SIGKILL.
SWEEP_GRACE_S = 3.0
#: What every part gets once somebody pressed Ctrl-C twice.
HURRY_GRACE_S = 1.0
_POLL_S = 0.02
#: Signs of life read at once; all that a pipe holds.
_SIGNS_MAX = 65_536


class Child:
    """A running part. Belongs to one event loop.

    Args:
        part: What runs.
        process: Its process.
        heartbeat: Read end of its pipe; closed by ``sweep``.
    """

    def __init__(self, part: Part, process: subprocess.Popen[bytes], heartbeat: int) -> None:
        self.part = part
        self.pid = process.pid
        self.started_at = time.monotonic()
        self._process = process
        self._heartbeat: int | None = heartbeat
        self._exit = asyncio.ensure_future(asyncio.to_thread(process.wait))

    @classmethod
    def start(
        cls,
        part: Part,
        *,
        environment: Mapping[str, str],
        lifeline: int,
        writer: LineWriter,
        prefix: str,
    ) -> Child:
        """Start ``part``.

        A session of its own keeps the terminal's Ctrl-C away from it: the supervisor decides who
        is told to stop, and when.

        Args:
            part: What to start.
            environment: All of its variables.
            lifeline: Read end of the supervisor's pipe.
            writer: Where its lines go.
            prefix: What each of them begins with.

        Raises:
            OSError: It cannot be executed.
        """
        heartbeat, theirs = os.pipe()
        os.set_blocking(heartbeat, False)
        pipes = {LIFELINE_ENV: str(lifeline), HEARTBEAT_ENV: str(theirs)}
        try:
            process = subprocess.Popen(
                part.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment, **pipes},
                pass_fds=(lifeline, theirs),
                start_new_session=True,
            )
        except OSError:
            os.close(heartbeat)
            raise
        finally:
            os.close(theirs)
        assert process.stdout is not None  # noqa: S101 - asked for above; tells the type checker
        pump(process.stdout, prefix, writer)
        return cls(part, process, heartbeat)

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    async def wait(self) -> int:
        """Return the exit code, negative for a signal, once the process has ended."""
        return await asyncio.shield(self._exit)

    def has_beaten(self) -> bool:
        """Return whether it gave a sign of life since the last call."""
        if self._heartbeat is None:
            return False
        try:
            return bool(os.read(self._heartbeat, _SIGNS_MAX))
        except BlockingIOError:
            return False

    def terminate(self) -> None:
        """Ask for the end; nothing happens if it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and what it started, whatever state they are in."""
        self._signal_session(signal.SIGKILL)

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> bool:
        """Ask for the end, wait, and take the whole session down if it did not obey.

        Args:
            grace_s: How long to wait.
            hurry: Once set, ``HURRY_GRACE_S`` at most.

        Returns:
            Whether it ended by itself.
        """
        self.terminate()
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait(
            {self._exit, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        if hurry.is_set() and not self._exit.done():
            await asyncio.wait({self._exit}, timeout=min(grace_s, HURRY_GRACE_S))
        obeyed = self._exit.done()
        if not obeyed:
            self._signal_session(signal.SIGKILL)
            await self.wait()
        await self.sweep()
        return obeyed

    async def sweep(self) -> None:
        """End what the dead process left in its session: SIGTERM, a pause, SIGKILL."""
        if self._heartbeat is not None:
            os.close(self._heartbeat)
            self._heartbeat = None
        if not self._signal_session(signal.SIGTERM):
            return
        deadline = time.monotonic() + SWEEP_GRACE_S
        while time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            if not self._signal_session(0):
                return
        self._signal_session(signal.SIGKILL)

    def _signal_session(self, number: int) -> bool:
        """Signal the process group, whose number is the pid of its leader; tell if one is there."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False  # macOS says EPERM where only zombies are left
        return True
