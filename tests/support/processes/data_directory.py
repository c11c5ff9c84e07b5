"""The data directory of a running service: which files hold a text, and commands on its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.processes.service import Service


def holders(directory: Path, secret: str) -> set[str]:
    """Return the files that hold a text, the database, its write-ahead log and the broker's."""
    found = set()
    for path in directory.rglob("*"):
        try:
            if path.is_file() and secret.encode() in path.read_bytes():
                found.add(path.name)
        except FileNotFoundError:
            continue
    return found


def command(service: Service, *words: str) -> Any:
    """Run a ``semantic`` command beside the service and return its JSON."""
    done = service.semantic(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
