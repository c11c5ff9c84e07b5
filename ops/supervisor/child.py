"""One run of a part: a process in its own session; and one standby that has its imports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ops.liveness.child import BEAT, HEARTBEAT_ENV, IMPORTED, LIFELINE_ENV, STANDBY_ENV
from ops.observe.logs import Logger
from ops.supervisor.output import pump
from ops.supervisor.parts import Part

#: Time between SIGTERM and SIGKILL for processes that a dead part left behind, in seconds.
SWEEP_GRACE_S = 3.0
#: Time that every part has to end after the second Ctrl-C, in seconds.
HURRY_GRACE_S = 1.0
_POLL_S = 0.02
#: Variables that an activation can set: no import reads them.
_LATE = frozenset({"SEMANTIC_REDIS__URL"})
#: Heartbeats read at once; the capacity of a pipe.
_SIGNS_MAX = 65_536


class Child:
    """A running part. Belongs to one event loop.

    Args:
        heartbeat: Read end of its heartbeat pipe; closed by ``sweep``.
        activation: Write end of the pipe on which it waits.
    """

    def __init__(
        self,
        part: Part,
        process: subprocess.Popen[bytes],
        heartbeat: int,
        environment: Mapping[str, str],
        activation: int | None = None,
    ) -> None:
        self.part = part
        self._environment = environment
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
        waits_as: tuple[str, ...] = (),
    ) -> Child:
        """Start ``part``.

        Its own session keeps the terminal's Ctrl-C away from it: the supervisor decides the order
        in which the parts stop.

        Args:
            lifeline: Read end of the pipe that ends with the supervisor.
            waits_as: Run this command instead, which waits for ``activate``.
        """
        heartbeat, theirs = os.pipe()
        os.set_blocking(heartbeat, False)
        inherited = {LIFELINE_ENV: lifeline, HEARTBEAT_ENV: theirs}
        activation = None
        if waits_as:
            inherited[STANDBY_ENV], activation = os.pipe()
        try:
            process = subprocess.Popen(
                waits_as or part.argv,
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
        return cls(part, process, heartbeat, environment, activation)

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    def activate(self, environment: Mapping[str, str]) -> bool:
        """Let a process that waits work as the part; else, kill it and return ``False``.

        Args:
            environment: What the part must have; it does not fit a process whose environment
                differs in more than an activation can set.
        """
        late = {name: environment[name] for name in _LATE & environment.keys()}
        if {**self._environment, **late} != dict(environment) or not self._activate(late):
            self.discard()
            return False
        return True

    def _activate(self, late: Mapping[str, str]) -> bool:
        assert self._activation is not None  # noqa: S101 - called once, on a process that waits
        activation, self._activation = self._activation, None
        self.started_at = time.monotonic()
        try:
            os.write(activation, json.dumps(late).encode())
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
        return BEAT in self._signs()

    async def imported(self) -> None:
        """Return once the process has its imports and waits for its activation, or has ended."""
        while IMPORTED not in self._signs() and not self._exit.done():  # noqa: ASYNC110 - a pipe
            await asyncio.sleep(_POLL_S)

    def _signs(self) -> bytes:
        if self._heartbeat is None:
            return b""
        try:
            return os.read(self._heartbeat, _SIGNS_MAX)
        except BlockingIOError:
            return b""

    def terminate(self) -> None:
        """Send SIGTERM; a process that has ended is ignored."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and everything in its session."""
        self._signal_session(signal.SIGKILL)

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> bool:
        """Send SIGTERM, wait, and kill the whole session if the process did not end.

        Args:
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


#: Pause after a standby that ended by itself, in seconds; the system may be short of memory.
STANDBY_RETRY_S = 60.0


@dataclass(slots=True, eq=False)
class StandbySlot:
    """Holds at most one standby. Belongs to one event loop.

    Attributes:
        part: The part, which has a ``standby_argv``.
        on_change: Called with the standby that waits now, or ``None``.
    """

    part: Part
    launch: Callable[[Part, Mapping[str, str]], Child]
    on_change: Callable[[Child | None], None]
    logger: Logger
    _child: Child | None = field(default=None, init=False)
    _environment: Mapping[str, str] = field(default_factory=dict, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def refill(self, environment: Mapping[str, str]) -> None:
        """Start a standby once the part has lived for ``standby_after_s``.

        Call it after each start of the part; a part that ends before has a cold successor.
        """
        self.close()
        self._environment = environment
        self._task = asyncio.create_task(self._keep(), name=f"standby of {self.part.name}")

    def take(self, environment: Mapping[str, str]) -> Child | None:
        """Activate the standby and return it, if there is one that fits.

        Args:
            environment: What the part must have; a standby that was started with other values is
                killed.

        Returns:
            ``None`` if the part must be started cold.
        """
        child = self._child
        self._release()
        if child is None or not child.activate(environment):
            return None
        self.logger.info("activated the standby", of=self.part.name, to_pid=child.pid)
        return child

    def close(self) -> None:
        """Kill the standby, if there is one, and start no other."""
        child = self._child
        self._release()
        if child is not None:
            child.discard()

    def _release(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._set(None)

    def _set(self, child: Child | None) -> None:
        if child is not self._child:
            self._child = child
            self.on_change(child)

    async def _keep(self) -> None:
        await asyncio.sleep(self.part.standby_after_s)
        while True:
            try:
                child = self.launch(self.part, self._environment)
            except OSError as error:
                self.logger.warning("no standby", of=self.part.name, why=str(error))
            else:
                self._set(child)
                returncode = await child.wait()
                self._set(None)
                child.discard()
                self.logger.warning("the standby ended", of=self.part.name, returncode=returncode)
            await asyncio.sleep(STANDBY_RETRY_S)
