"""Sweeps in a process of its own.

A sweep holds the owners of all texts, some kilobytes a job, and reads every job in Python. In the
service that memory would stay in the heaps of the C library, and the reading would delay streams.

The two processes exchange lines of JSON: the service sends the log and the rules; the process
answers with the items, then with the blocks to erase, and waits for an empty line after each, since
the service has the broker and the workers. Its last line is the result. A process whose service is
gone ends at the next of these lines, and has then erased nothing from the log.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import Any, Final

from domain.errors import LogUnavailable
from domain.values import JobId
from ops.clock import RandomIds, SystemClock
from ops.data_dir.permissions import create_private_files
from ops.liveness.line_child import LineChild, send_line
from ops.log.erase.sweep import BlocksEraser, ItemsEraser, TextSweeper
from ops.settings.service import RetentionSettings

_FAILED: Final = 1


def sweep_in_process(
    erase_items: ItemsEraser, erase_blocks: BlocksEraser, *, url: str, rules: RetentionSettings
) -> bool:
    """Sweep once; return whether rows of the database may have been deleted.

    Args:
        erase_items: Erases the items of jobs; runs in this process.
        erase_blocks: Deletes blocks; runs in this process.

    Raises:
        LogUnavailable: The log cannot be read or written, or the process was killed.
        QueueUnavailable: From the erasers; nothing was erased from the log.
    """
    command = [sys.executable, "-P", "-m", __name__]
    # Ctrl-C is for this process; the child ends with the pipes.
    with LineChild(command, own_session=True) as child:
        child.send(json.dumps({"url": url, "rules": rules.model_dump()}))
        erase_items([JobId(job) for job in _received(child)["items"]])
        child.send()
        erase_blocks(frozenset(_received(child)["blocks"]))
        child.send()
        return bool(_received(child)["is_erased"])


def _received(child: LineChild) -> dict[str, Any]:
    """Return the next message.

    Raises:
        LogUnavailable: The sweep failed, or its process ended.
    """
    line = child.replies.readline()
    message: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
    if "error" in message or not message:
        raise LogUnavailable(message.get("error", "the process of the sweep ended"))
    return message


def main() -> int:
    """Sweep as standard input asks for; the exit code is 1 if it failed."""
    create_private_files()
    asked = json.loads(sys.stdin.readline() or "{}")
    if not asked:
        return _FAILED
    sweeper = TextSweeper(
        asked["url"],
        RetentionSettings(**asked["rules"]),
        clock=SystemClock(),
        ids=RandomIds(),
        erase_items=lambda jobs: _ask({"items": list(jobs)}),
        erase_blocks=lambda names: _ask({"blocks": sorted(names)}),
    )
    try:
        with closing(sweeper):
            plan = sweeper.sweep()
    except LogUnavailable as error:
        send_line(sys.stdout, json.dumps({"error": str(error)}))
        return _FAILED
    send_line(sys.stdout, json.dumps({"is_erased": plan.erases_rows}))
    return 0


def _ask(message: dict[str, Any]) -> None:
    """Send what the service erases, and wait until it has."""
    send_line(sys.stdout, json.dumps(message))
    if not sys.stdin.readline():
        sys.exit(_FAILED)


if __name__ == "__main__":
    sys.exit(main())
