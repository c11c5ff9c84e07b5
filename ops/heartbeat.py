"""How a supervisor learns that a child hangs or was stopped: signs of life down a pipe.

The counterpart of ``ops.parent_watch``. A process that is stopped, or whose interpreter is held by
a call that never returns, looks alive from outside but stops writing. Each child that
is watched inherits the write end of a pipe of its own and writes a byte every ``BEAT_S``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

#: Environment variable with the number of the inherited write end.
HEARTBEAT_ENV = "SEMANTIC_HEARTBEAT_FD"
#: Between two signs of life, in seconds.
BEAT_S = 1.0


def take_heartbeat() -> Callable[[], None]:
    """Return what gives one sign of life; it does nothing where no supervisor listens.

    The supervisor counts silence from the first sign on. The variable is taken out of the
    environment, so that the children of this process do not mistake it for theirs.

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
            # Full: a supervisor that was stopped has not read for hours. Broken: it is gone, and
            # the lifeline says so.
            return

    return beat
