"""Wait inside a standby: a process that the supervisor starts before it is needed.

The counterpart of ``ops.liveness.parent_watch``. The supervisor holds the only write end of a pipe.
It writes one byte to activate the standby; it closes the pipe, or dies, to end it.
"""

from __future__ import annotations

import os

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
