"""Heartbeats of a child over a pipe, by which the supervisor notices that it hangs.

The counterpart of ``ops.liveness.parent_watch``. A process that is stopped, or whose interpreter
is held by a call that never returns, looks alive from outside but stops writing. Each watched child
inherits the write end of its own pipe and writes a byte every ``BEAT_S``.
"""

from __future__ import annotations

import os
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
