"""How a child learns that its supervisor is gone, even by ``kill -9``.

The supervisor holds the only write end of a pipe for as long as it lives and never writes to it.
Each child inherits the read end and blocks on it: end of file can mean one thing only. It needs no
polling, no parent pid that may be reused, and works on Linux and macOS alike.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Environment variable with the number of the inherited read end.
LIFELINE_ENV = "SEMANTIC_LIFELINE_FD"


def watch_lifeline(on_lost: Callable[[], None]) -> None:
    """Call ``on_lost`` once, from a daemon thread, when the supervisor is gone.

    Does nothing in a process that no supervisor started. The variable is taken out of the
    environment, so that the children of this process do not mistake it for theirs.

    Args:
        on_lost: Ends the process; the lines it logs may have no reader any more.

    Raises:
        OSError: The variable names no open descriptor.
    """
    number = os.environ.pop(LIFELINE_ENV, None)
    if number is None:
        return
    descriptor = int(number)
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    threading.Thread(
        target=_wait_for_end, args=(descriptor, on_lost), name="lifeline", daemon=True
    ).start()


def _wait_for_end(descriptor: int, on_lost: Callable[[], None]) -> None:
    while os.read(descriptor, 1):
        pass  # nobody writes; a stray byte would mean nothing
    os.close(descriptor)
    on_lost()
