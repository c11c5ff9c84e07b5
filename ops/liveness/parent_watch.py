"""Notice the death of the supervisor from inside a child, even after ``kill -9``.

The supervisor holds the only write end of a pipe for as long as it lives and never writes to it.
Each child inherits the read end and blocks on it until end of file. That needs no polling and no
parent pid, which may be reused, and it works on Linux and macOS.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

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
