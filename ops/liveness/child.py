"""What each child of the supervisor does: heartbeats, the watch of its parent, and standby."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Environment variable with the number of the inherited write end.
HEARTBEAT_ENV = "SEMANTIC_HEARTBEAT_FD"
#: Interval between two heartbeats, in seconds.
BEAT_S = 1.0


def take_heartbeat() -> Callable[[], None]:
    """Return a function that sends one heartbeat; without a supervisor it does nothing.

    The supervisor measures silence from the first heartbeat on. The variable is removed from the
    environment, so that the children of this process do not inherit it.

    Raises:
        OSError: The variable names no open descriptor.
    """
    number = os.environ.pop(HEARTBEAT_ENV, None)
    if number is None:
        return lambda: None
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    os.set_blocking(descriptor, False)

    def beat() -> None:
        try:
            os.write(descriptor, b".")
        except OSError:
            # Full: a stopped supervisor has not read for hours. Broken: the supervisor is gone,
            # and the parent watch reports it.
            return

    return beat


#: Environment variable with the number of the inherited read end.
LIFELINE_ENV = "SEMANTIC_LIFELINE_FD"


def watch_lifeline(on_lost: Callable[[], None]) -> bool:
    """Call ``on_lost`` once, from a daemon thread, when the supervisor has died.

    In a process without a supervisor it does nothing. The variable is removed from the
    environment, so that the children of this process do not inherit it.

    Args:
        on_lost: Ends the process; its log lines may have no reader.

    Returns:
        Whether the process has a supervisor.

    Raises:
        OSError: The variable names no open descriptor.
    """
    number = os.environ.pop(LIFELINE_ENV, None)
    if number is None:
        return False
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    threading.Thread(
        target=_wait_for_end, args=(descriptor, on_lost), name="lifeline", daemon=True
    ).start()
    return True


def _wait_for_end(descriptor: int, on_lost: Callable[[], None]) -> None:
    while os.read(descriptor, 1):
        pass  # the supervisor never writes; ignore a stray byte
    os.close(descriptor)
    on_lost()


#: Environment variable with the number of the inherited read end.
STANDBY_ENV = "SEMANTIC_STANDBY_FD"


def wait_for_activation() -> bool:
    """Wait until the supervisor activates this process; return whether it did.

    A process that is no standby counts as activated at once. The variable is removed from the
    environment, so that the children of this process do not inherit it.

    Returns:
        ``False`` if the process must end: it is not needed, or the supervisor has died.

    Raises:
        OSError: The variable names no open descriptor.
    """
    number = os.environ.pop(STANDBY_ENV, None)
    if number is None:
        return True
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    activated = os.read(descriptor, 1) != b""
    os.close(descriptor)
    return activated
