"""What each child of the supervisor does: imports, heartbeats, the watch of its parent, standby.

What reads a descriptor raises ``OSError`` where its variable names no open one.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: Environment variable with the number of the inherited write end.
HEARTBEAT_ENV = "SEMANTIC_HEARTBEAT_FD"
#: Environment variables with the numbers of the inherited read ends.
LIFELINE_ENV = "SEMANTIC_LIFELINE_FD"
STANDBY_ENV = "SEMANTIC_STANDBY_FD"
#: Interval between two heartbeats, in seconds.
BEAT_S = 1.0
#: What a process sends: a heartbeat, and that it has its imports and waits for its activation.
BEAT = b"."
IMPORTED = b"i"
#: How long a part of a killed supervisor waits for the next one, in seconds: a service manager
#: starts it after some seconds. It imports its own parts and then ends these.
ORPHAN_S = 30.0
#: Longest time that open answers have once the next service waits for a part, in seconds.
HANDOVER_S = 1.0


def _inherited(variable: str) -> int | None:
    """Return the descriptor that a variable names; ``None`` if the supervisor gave none.

    The variable is removed from the environment, so that the children of this process do not
    inherit it.
    """
    number = os.environ.pop(variable, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)  # noqa: FBT003 - positional only
    return int(number)


def take_heartbeat() -> Callable[[], None]:
    """Return a function that sends one heartbeat; without a supervisor it does nothing.

    The supervisor measures silence from the first heartbeat on.
    """
    descriptor = _inherited(HEARTBEAT_ENV)
    if descriptor is None:
        return lambda: None
    os.set_blocking(descriptor, False)

    def beat() -> None:
        try:
            os.write(descriptor, BEAT)
        except OSError:
            # Full: a stopped supervisor has not read for hours. Broken: the supervisor is gone,
            # and the parent watch reports it.
            return

    return beat


@dataclass(slots=True, eq=False)
class Lifeline:
    """The tie of a process to its supervisor.

    Attributes:
        is_supervised: Whether the process was started by a supervisor.
        awaits_successor: Whether the supervisor has died, and the next one may take over.
    """

    is_supervised: bool = False
    awaits_successor: bool = False

    def limit_s(self, seconds: float) -> float:
        """Return a time that the end of this process may take: short where a successor waits."""
        return min(seconds, HANDOVER_S) if self.awaits_successor else seconds

    def watch(
        self,
        descriptor: int,
        on_lost: Callable[[], None],
        orphan_s: float,
        has_successor: Callable[[], bool],
    ) -> None:
        """Wait for the end of the supervisor and for the next one; then call ``on_lost``."""
        while os.read(descriptor, 1):
            pass  # the supervisor never writes; ignore a stray byte
        os.close(descriptor)
        self.awaits_successor = True
        time.sleep(orphan_s)
        while has_successor():
            time.sleep(BEAT_S)
        self.awaits_successor = False
        on_lost()


def watch_lifeline(
    on_lost: Callable[[], None],
    *,
    orphan_s: float = 0.0,
    has_successor: Callable[[], bool] = lambda: False,
) -> Lifeline:
    """Call ``on_lost`` once, from a daemon thread, after the supervisor has died.

    In a process without a supervisor it does nothing.

    Args:
        on_lost: Ends the process; its log lines may have no reader.
        orphan_s: Seconds for which the process goes on in any case.
        has_successor: Whether another supervisor has started since, which will end the process.
    """
    descriptor = _inherited(LIFELINE_ENV)
    lifeline = Lifeline(is_supervised=descriptor is not None)
    if descriptor is not None:
        threading.Thread(
            target=lifeline.watch,
            args=(descriptor, on_lost, orphan_s, has_successor),
            name="lifeline",
            daemon=True,
        ).start()
    return lifeline


def wait_for_activation() -> bool:
    """Wait until the supervisor activates this process; return whether it did.

    A process that does not wait counts as activated at once. An activation sets environment
    variables that were not known when the process was started.

    Returns:
        ``False`` if the process must end: it is not needed, or the supervisor has died.
    """
    descriptor = _inherited(STANDBY_ENV)
    if descriptor is None:
        return True
    if HEARTBEAT_ENV in os.environ:
        os.write(int(os.environ[HEARTBEAT_ENV]), IMPORTED)
    with os.fdopen(descriptor, "rb") as activation:
        given = activation.read()
    os.environ.update(json.loads(given or b"{}"))
    return given != b""


@contextmanager
def resting_collector() -> Iterator[None]:
    """Import modules in this block: they stay, so the search for garbage finds none.

    The collector is off in the block. Afterwards it passes over everything that exists at the end
    of the block, so each later collection is shorter too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
