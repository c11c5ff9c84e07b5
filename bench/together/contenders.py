"""The programs that answer the same requests in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from bench.client import StreamTrace, stream_together
from bench.comparison.adapters import Adapter
from bench.comparison.server import ROOT, Server

RAW = "raw BatchGenerator"


class Contender(Protocol):
    """A program that answers chat requests.

    Attributes:
        blas: Library, threads and GFLOPS of its matrix products.
        keeps_prompts: Whether it can reuse what it knows of an earlier prompt.
    """

    name: str
    blas: dict[str, Any]
    keeps_prompts: bool

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Answer all requests at once; return the traces and the CPU seconds of its processes."""
        ...


class RawBatch(AbstractContextManager["RawBatch"]):
    """mlx-lm's BatchGenerator without a server."""

    name = RAW
    keeps_prompts = False

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.raw_batch", str(model)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Linux divides the cores among sessions: the servers have one each, too.
            start_new_session=True,
        )
        self.blas = self._answer()

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Send the requests over standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(bodies) + "\n")
        self._process.stdin.flush()
        traces, cpu_s = self._answer()
        return [StreamTrace(**trace) for trace in traces], cpu_s

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_exc: object) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Served(AbstractContextManager["Served"]):
    """A server of OpenAI chat completions, with a data directory of its own."""

    keeps_prompts = True

    def __init__(self, adapter: Adapter, *, python: Path, model: Path, folder: Path) -> None:
        self.name = adapter.name
        done = subprocess.run(
            [sys.executable, "-m", "bench.blas"], cwd=ROOT, capture_output=True, check=True
        )
        self.blas = json.loads(done.stdout.splitlines()[-1])
        data_dir = folder / adapter.name
        self._server = Server(adapter, python=python, model=model, data_dir=data_dir)
        self._server.start()

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Send the requests over HTTP, all at once."""
        before = self._server.cpu_s()
        traces = stream_together(self._server.base_url, bodies)
        return traces, self._server.cpu_s() - before

    def __exit__(self, *_exc: object) -> None:
        """Stop the server."""
        self._server.kill()
