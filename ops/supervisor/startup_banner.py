"""What the person at the terminal reads while the service starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ops.clients.claude_code import ServedModel
from ops.clients.set_up import curl_line
from ops.terminal_text import visible_line

#: A model that is on this disk has come up by then.
_DOWNLOAD_HINT_S = 30.0
_PASSWORD_IN_QUERY = re.compile(r"(?<=password=)[^&]*")


class StartupBanner:
    """Prints the start-up: with colour on a terminal, plain otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, *, version: str, page: str, data_dir: Path) -> None:
        """Print version, the page's address and the data directory."""
        self._print(f"[bold]semantic[/] {escape(visible_line(version))}", highlight=False)
        self._row("page", page)
        self._row("data", str(data_dir))

    def log(self, url: str, database: str) -> None:
        """Print where the log is."""
        self._row("log", f"{url} · {database}")

    def taking_over(self) -> None:
        """Print that the parts of a killed service run until those of this one can start."""
        self._row("", "taking over from the parts of a killed service")

    def broker(self, url: str, pid: int | None, server: str) -> None:
        """Print the broker; ``pid`` is ``None`` for an external one."""
        if pid is None:
            self._row("broker", f"{without_password(url)} (yours)")
        else:
            self._row("broker", f"{server}, private · {url} · pid {pid}")

    def parts(self, worker_pid: int, base_url: str, api_pid: int) -> None:
        """Print that the worker and the api have started."""
        self._row("worker", f"starting · pid {worker_pid}")
        self._row("api", f"{base_url} · pid {api_pid}")

    def not_ready_yet(self, why: str, seconds: float) -> None:
        """Print what the start waits for."""
        hint = "; a first download takes minutes" if seconds >= _DOWNLOAD_HINT_S else ""
        self._row("", f"{why} ({seconds:.0f} s{hint})")

    def ready(
        self, base_url: str, model: ServedModel, seconds: float, *, keyed: bool = False
    ) -> None:
        """Print that the service is ready, and example requests; with a key if ``keyed``."""
        length = f" · {model.context_length} tokens of context" if model.context_length else ""
        self._row("model", model.id + length)
        self._print(f"[bold green]ready[/] in {seconds:.1f} s\n", highlight=False)
        # Lines to paste must not be wrapped, coloured or shortened.
        for line in _next_lines(base_url, model, keyed=keyed):
            self._print(visible_line(line), soft_wrap=True, markup=False, highlight=False)
        self._print("\nCtrl-C stops everything.")

    def stopping(self) -> None:
        """Print that the drain has begun."""
        self._print("\nstopping: open answers may finish · Ctrl-C again to hurry")

    def stopped(self) -> None:
        """Print that all parts have ended."""
        self._print("stopped")

    def _print(self, text: str = "", **options: Any) -> None:  # noqa: ANN401 - those of rich
        """Print; a terminal that is gone must neither stop the service nor keep it running."""
        with suppress(OSError, SystemExit):  # rich ends the program for a pipe without a reader
            self._console.print(text, **options)

    def _row(self, name: str, text: str) -> None:
        self._print(
            f"  [dim]{name:<7}[/] {visible_line(escape(text))}", soft_wrap=True, highlight=False
        )


def _next_lines(base_url: str, model: ServedModel, *, keyed: bool) -> Iterator[str]:
    command = _own_command()
    yield f"In a browser:  {base_url}"
    yield f'In a terminal: {command} run "Hello!"'
    yield f"Claude Code:   {command} launch claude"
    yield ""
    yield curl_line(base_url, model.id, keyed=keyed)


def _own_command() -> str:
    """Return how a shell in this directory starts this command."""
    if shutil.which("semantic") is not None:
        return "semantic"
    return shlex.quote(os.path.relpath(sys.argv[0]))


def without_password(url: str) -> str:
    """Return a URL without its password."""
    url = _PASSWORD_IN_QUERY.sub("***", url)
    scheme, separator, rest = url.partition("://")
    secret, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at and secret else url
