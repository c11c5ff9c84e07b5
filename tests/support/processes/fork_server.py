"""A process that has imports behind it, and forks itself for each request of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]


class ForkServer:
    """A running module that reads requests as lines of JSON, and answers each with a line."""

    def __init__(self, module: str, *words: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: Mapping[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        with self._server:
            pass  # the end of its input ends it


def become(env: Mapping[str, str], files: Sequence[str]) -> None:
    """Be the process that a shell starts, with this environment and these standard files."""
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(files):
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        os.dup2(opened, number)
        os.close(opened)
