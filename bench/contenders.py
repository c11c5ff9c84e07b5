"""The programs that ``bench.serving`` compares, each in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import psutil

from bench.client import StreamTrace, stream_together
from bench.comparison.adapters.base import Place, offline
from bench.comparison.adapters.mlx_vlm import MLX_VLM
from tests.support.processes.service import free_port

READY_WITHIN_S = 120.0


class Contender(Protocol):
    """A program that answers chat requests."""

    name: str

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Answer all requests at once; return the traces and the CPU seconds of its processes."""
        ...


class RawBatch(AbstractContextManager["RawBatch"]):
    """mlx-lm's BatchGenerator without a server."""

    name = "raw BatchGenerator"

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.raw_batch", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Linux divides the cores among sessions: the servers have one each, too.
            start_new_session=True,
        )
        self._answer()

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


class HttpServer(AbstractContextManager["HttpServer"]):
    """A server of OpenAI chat completions on a loopback port."""

    def __init__(
        self, name: str, command: list[str], *, port: int, ready_path: str, env: dict[str, str]
    ) -> None:
        self.name = name
        self._base_url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._wait_ready(ready_path)

    def __enter__(self) -> Self:
        return self

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Send the requests over HTTP, all at once."""
        before = self._cpu_s()
        traces = stream_together(self._base_url, bodies)
        return traces, self._cpu_s() - before

    def _wait_ready(self, path: str) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(self._base_url + path, timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        self._log.seek(0)
        raise TimeoutError(self._log.read().decode(errors="replace")[-4000:])

    def _cpu_s(self) -> float:
        parent = psutil.Process(self._process.pid)
        family = [parent, *parent.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in family)

    def __exit__(self, *_exc: object) -> None:
        """Stop the server with SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


def semantic_server(model: Path, data_dir: Path) -> HttpServer:
    """Start this service with its embedded defaults."""
    port = free_port()
    return HttpServer(
        "semantic",
        [sys.executable, "-m", "ops.cli.main", "serve"],
        port=port,
        ready_path="/health/ready",
        env={
            "SEMANTIC_DATA_DIR": str(data_dir),
            "SEMANTIC_SERVER__PORT": str(port),
            "SEMANTIC_MODEL__ID": str(model),
        },
    )


def mlx_lm_server(model: Path) -> HttpServer:
    """Start mlx-lm's own server."""
    port = free_port()
    return HttpServer(
        "mlx_lm.server",
        [
            *(sys.executable, "-m", "mlx_lm", "server", "--model", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR"),
        ],
        port=port,
        ready_path="/health",
        env={"HF_HUB_OFFLINE": "1"},
    )


def mlx_vlm_server(model: Path, data_dir: Path, python: Path) -> HttpServer:
    """Start mlx-vlm's server from its own environment, without its prefix cache."""
    place = Place(python=python, model=model, data_dir=data_dir, port=free_port())
    return HttpServer(
        MLX_VLM.name,
        MLX_VLM.command(place),
        port=place.port,
        ready_path=MLX_VLM.ready_path,
        env=offline(place),
    )
