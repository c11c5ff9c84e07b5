"""Progress of long prompts in a terminal, for commands and for agents that show none."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from ops.cli.output import ProgressLine, reading
from ops.clients.http_client import HttpClient, Refused, Unreachable
from ops.data_dir.permissions import replace_file
from ops.terminal_text import visible_line

#: Seconds between two looks at the service.
LOOK_S: Final = 1.0
_ON_READING: Final = frozenset({"start", "restore", "prefill"})


def words_of(overview: Mapping[str, Any]) -> str:
    """Return what the service does, in one line; empty where it rests."""
    running: Sequence[Mapping[str, Any]] = overview["running"]
    words = list(filter(None, [reading_of(overview)]))
    if writing := [row for row in running if row["phase"] == "decode"]:
        tokens_per_s = sum(row["tokens_per_s"] or 0 for row in writing)
        answers = "an answer" if len(writing) == 1 else f"{len(writing)} answers"
        words.append(f"writes {answers}, {tokens_per_s:,.0f} tokens/s")
    if waiting := overview["rates"]["queue_depth"]:
        words.append(f"{waiting:,} waiting")
    return " · ".join(words)


def reading_of(overview: Mapping[str, Any]) -> str:
    """Return how far the first prompt that is read is; empty where none is."""
    for row in overview["running"]:
        if row["phase"] in _ON_READING and row["prompt_tokens"]:
            return reading(row["read_tokens"], row["prompt_tokens"])
    return ""


def start_watch(client: HttpClient, line: Path | None) -> None:
    """Start a process that shows what the service does until this process has ended.

    It outlives the change of this process into an agent's program.

    Args:
        line: The file that gets the line; ``None`` for the terminal of stderr.
    """
    parent = os.getpid()
    if os.fork():
        return
    try:
        # Ctrl-C is for the agent, and a closed terminal ends it; then its file goes.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _leave_streams(keeps_stderr=line is None)
        goes_on = partial(_is_parent, parent)
        if line is None:
            # The answer of the agent comes into the same line, so this one leaves it early.
            watch(client, reading_of, ProgressLine().show, goes_on, pause_s=LOOK_S / 4)
        else:
            watch(client, words_of, _writer(line), goes_on, pause_s=LOOK_S)
    finally:
        if line is not None:
            with suppress(OSError):
                line.unlink(missing_ok=True)
        os._exit(0)


def watch(
    client: HttpClient,
    words: Callable[[Mapping[str, Any]], str],
    show: Callable[[str], None],
    goes_on: Callable[[], bool],
    *,
    pause_s: float,
) -> None:
    """Show what the service does, again and again; nothing more once the agent has ended."""
    while goes_on():
        try:
            found = words(client.ask("GET", "/admin/overview"))
        except (Refused, Unreachable, ValueError):
            found = ""
        if goes_on():
            with suppress(OSError):
                show(found)
        time.sleep(pause_s)


def _is_parent(process: int) -> bool:
    return os.getppid() == process


def status_line(line: Path) -> dict[str, Any]:
    """Return the setting of Claude Code that shows the file of ``start_watch``."""
    command = f"cat {shlex.quote(str(line))} 2>/dev/null"
    return {"type": "command", "command": command, "refreshInterval": int(LOOK_S)}


def _writer(line: Path) -> Callable[[str], None]:
    def write(words: str) -> None:
        replace_file(line, visible_line(words))

    return write


def _leave_streams(*, keeps_stderr: bool) -> None:
    """Release the streams: a reader of the agent's output waits for their last holder."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1) if keeps_stderr else (0, 1, 2):
        os.dup2(nothing, stream)
