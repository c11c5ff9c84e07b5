"""What is kept of a failed run: the whole log of the service, and its event log."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

#: Errors of the service that the result has, and the characters of each with its traceback.
ERRORS_MAX: Final = 50
ERROR_CHARS_MAX: Final = 6000
_LEVELS: Final = frozenset({"error", "critical"})


def errors_of(log_file: Path) -> list[dict[str, Any]]:
    """Return the first errors in the log of a service, with their tracebacks."""
    found: list[dict[str, Any]] = []
    for line in _lines(log_file):
        if line.get("level") in _LEVELS or "exception" in line:
            found.append({name: _cut(value) for name, value in line.items()})
        if len(found) == ERRORS_MAX:
            break
    return found


def keep(data_dir: Path, log_file: Path, into: Path) -> Path:
    """Copy the logs of a stopped service into a new directory and return it.

    Args:
        data_dir: The data directory.
        log_file: Everything that the service has printed.
        into: Gets a directory named by the present instant.
    """
    kept = into / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    kept.mkdir(parents=True)
    for file in (log_file, *data_dir.glob("events.sqlite3*")):
        shutil.copy2(file, kept)
    if (data_dir / "logs").is_dir():
        shutil.copytree(data_dir / "logs", kept / "logs")
    return kept


def _lines(log_file: Path) -> Iterator[dict[str, Any]]:
    with log_file.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # of a library, before the logs are configured
            if isinstance(line, dict):
                yield line


def _cut(value: object) -> object:
    return value[-ERROR_CHARS_MAX:] if isinstance(value, str) else value
