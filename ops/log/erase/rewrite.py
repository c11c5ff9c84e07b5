"""Rewrites a SQLite file in a process of its own.

SQLite may be built to hold the new file in memory until it is written (``TEMP_STORE=3``), so a
rewrite needs as much memory as the file has bytes. It goes back to the system with the process.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Final

from ops.data_dir.permissions import create_private_files
from ops.liveness.line_child import LineChild, send_line

_FAILED: Final = 1


class RewriteFailed(Exception):
    """The file is as it was; the message is that of SQLite."""


def rewrite(file: Path, *, driver: str, wait_max_s: float) -> None:
    """Rewrite a database so that no page has a byte of a deleted row; ends with this process.

    Args:
        driver: Name of the DB-API module.

    Raises:
        RewriteFailed: Another process held the file, or it is damaged, or there is no space.
    """
    command = [sys.executable, "-P", "-m", __name__, str(file), driver, str(wait_max_s)]
    # Ctrl-C is for this process, which then ends the child: the open pipe is its lifeline.
    with LineChild(command, own_session=True) as child:
        complaint = child.replies.read().strip()
        code = child.process.wait()
    if code:
        raise RewriteFailed(complaint or f"the rewrite ended with {code}")


def main(file: str, driver: str, wait_max_s: str) -> int:
    """Rewrite a database in this process; the exit code is 1 if it failed."""
    create_private_files()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module = importlib.import_module(driver)
    try:
        opened = module.connect(file, isolation_level=None, timeout=float(wait_max_s))
        with closing(opened) as connection:
            for statement in ("PRAGMA secure_delete = ON", "PRAGMA synchronous = FULL", "VACUUM"):
                connection.execute(statement).fetchall()
    except module.Error as error:
        send_line(sys.stdout, str(error))
        return _FAILED
    return 0


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(_FAILED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
