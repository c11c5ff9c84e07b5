"""One run of a part: a process in its own session."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from ops.liveness.heartbeat import HEARTBEAT_ENV
from ops.liveness.parent_watch import LIFELINE_ENV
from ops.liveness.standby import STANDBY_ENV
from ops.supervisor.output import pump
from ops.supervisor.parts import Part

#: Time between SIGTERM and SIGKILL for processes that a dead part left behind, in seconds.
SWEEP_GRACE_S = 3.0
#: Time that every part has to end after the second Ctrl-C, in seconds.
HURRY_GRACE_S = 1.0
_POLL_S = 0.02
#: Heartbeats read at once; the capacity of a pipe.
_SIGNS_MAX = 65_536


class Child:
    """A running part. Belongs to one event loop.

    Args:
        heartbeat: Read end of its heartbeat pipe; closed by ``sweep``.
        activation: Write end of the pipe on which a standby waits.
    """

    def __init__(
        self,
        part: Part,
        process: subprocess.Popen[bytes],
        heartbeat: int,
        activation: int | None = None,
    ) -> None:
        self.part = part
        self.pid = process.pid
        self.started_at = time.monotonic()
        self._process = process
        self._heartbeat: int | None = heartbeat
        self._activation = activation
        self._exit = asyncio.ensure_future(asyncio.to_thread(process.wait))

    @classmethod
    def start(
        cls,
        part: Part,
        *,
        environment: Mapping[str, str],
        lifeline: int,
        put: Callable[[str], None],
        standby: bool = False,
    ) -> Child:
        """Start ``part``.

        Its own session keeps the terminal's Ctrl-C away from it: the supervisor decides the order
        in which the parts stop.

        Args:
            part: The part to start.
            environment: Its whole environment.
            lifeline: Read end of the pipe that ends with the supervisor.
            put: Receives its output lines.
            standby: Start its standby instead, which waits for ``activate``.

        Raises:
            OSError: It cannot be executed.
        """
        heartbeat, theirs = os.pipe()
        os.set_blocking(heartbeat, False)
        inherited = {LIFELINE_ENV: lifeline, HEARTBEAT_ENV: theirs}
        activation = None
        if standby:
            inherited[STANDBY_ENV], activation = os.pipe()
        try:
            process = subprocess.Popen(
                part.standby_argv if standby else part.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment, **{name: str(end) for name, end in inherited.items()}},
                pass_fds=tuple(inherited.values()),
                start_new_session=True,
            )
        except OSError:
            _close(heartbeat, activation)
            raise
        finally:
            _close(theirs, inherited.get(STANDBY_ENV))
        assert process.stdout is not None  # noqa: S101 - requested above; narrows the type
        pump(process.stdout, part.name, put)
        return cls(part, process, heartbeat, activation)

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    def activate(self) -> bool:
        """Let a standby work as the part from now on; return whether it still ran."""
        assert self._activation is not None  # noqa: S101 - called once, on a standby
        activation, self._activation = self._activation, None
        self.started_at = time.monotonic()
        try:
            os.write(activation, b".")
        except BrokenPipeError:
            return False
        finally:
            os.close(activation)
        return not self._exit.done()

    def discard(self) -> None:
        """Kill a process that is not needed."""
        self.kill()
        self._close_pipes()

    async def wait(self) -> int:
        """Return the exit code, negative for a signal, once the process has ended."""
        return await asyncio.shield(self._exit)

    def has_beaten(self) -> bool:
        """Return whether a heartbeat arrived since the last call."""
        if self._heartbeat is None:
            return False
        try:
            return bool(os.read(self._heartbeat, _SIGNS_MAX))
        except BlockingIOError:
            return False

    def terminate(self) -> None:
        """Send SIGTERM; a process that has ended is ignored."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and everything in its session."""
        self._signal_session(signal.SIGKILL)

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> bool:
        """Send SIGTERM, wait, and kill the whole session if the process did not end.

        Args:
            grace_s: How long to wait.
            hurry: Once set, ``HURRY_GRACE_S`` at most.

        Returns:
            Whether the process ended by itself.
        """
        self.terminate()
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait(
            {self._exit, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        if hurry.is_set() and not self._exit.done():
            await asyncio.wait({self._exit}, timeout=min(grace_s, HURRY_GRACE_S))
        ended_itself = self._exit.done()
        if not ended_itself:
            self._signal_session(signal.SIGKILL)
            await self.wait()
        await self.sweep()
        return ended_itself

    async def sweep(self) -> None:
        """End the processes that the part left in its session: SIGTERM, a pause, SIGKILL."""
        self._close_pipes()
        if not self._signal_session(signal.SIGTERM):
            return
        deadline = time.monotonic() + SWEEP_GRACE_S
        while time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            if not self._signal_session(0):
                return
        self._signal_session(signal.SIGKILL)

    def _close_pipes(self) -> None:
        _close(self._heartbeat, self._activation)
        self._heartbeat = self._activation = None

    def _signal_session(self, number: int) -> bool:
        """Signal the process group of the session; return whether it exists."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False  # macOS returns EPERM where only zombies are left
        return True


def _close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)
