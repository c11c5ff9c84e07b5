"""Samples of what the processes of a service hold, taken on a thread while it works."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import redis

from bench.idle import processes_of
from ops.supervisor.serve_record import read_record
from tests.support.processes.service import Service

#: One sample: seconds since the start, and the value of each series.
Sample = dict[str, float]
_MB: Final = 1e6
_METRICS: Final = ("semantic_memory_used", "semantic_mlx")
_ASK_S: Final = 5.0
_GONE: Final = (psutil.Error, OSError, httpx.HTTPError, redis.RedisError, KeyError)


class Sampler:
    """Samples every ``interval_s`` until closed.

    Args:
        interval_s: Pause between two samples.
    """

    def __init__(self, service: Service, interval_s: float) -> None:
        self.samples: list[Sample] = []
        self._service = service
        self._interval_s = interval_s
        self._began_s = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def close(self) -> list[Sample]:
        """Stop, and return the samples."""
        self._closed.set()
        self._thread.join()
        return self.samples

    def _run(self) -> None:
        while not self._closed.is_set():
            sample = {"t_s": time.monotonic() - self._began_s}
            for name, value in _all(self._service):
                sample[name] = round(value, 3)
            self.samples.append(sample)
            self._closed.wait(self._interval_s)


def _all(service: Service) -> Iterator[tuple[str, float]]:
    # A process may end and a part may be away at any moment, as in a swap.
    for read in (_processes, _metrics, _redis, _disk):
        with contextlib.suppress(*_GONE):
            yield from read(service)


def _processes(service: Service) -> Iterator[tuple[str, float]]:
    for part, process in processes_of(service).items():
        with contextlib.suppress(psutil.Error):
            yield f"{part} rss, MB", process.memory_info().rss / _MB
            yield f"{part} descriptors", float(process.num_fds())
            yield f"{part} threads", float(process.num_threads())
            if part == "worker":
                yield "worker pid", float(process.pid)


def _metrics(service: Service) -> Iterator[tuple[str, float]]:
    reply = httpx.get(f"{service.base_url}/metrics", timeout=_ASK_S)
    for line in reply.raise_for_status().text.splitlines():
        if line.startswith(_METRICS) and "ratio" not in line:
            name, _, value = line.rpartition(" ")
            yield f"{_short(name)}, MB", float(value) / _MB


def _redis(service: Service) -> Iterator[tuple[str, float]]:
    record = read_record(service.data_dir)
    if record is not None and record.broker_url:
        with contextlib.closing(redis.Redis.from_url(record.broker_url)) as client:
            info: Any = client.info("memory")
            yield "redis memory, MB", info["used_memory"] / _MB


def _disk(service: Service) -> Iterator[tuple[str, float]]:
    yield "contexts on disk, MB", _size(service.data_dir / "cache") / _MB
    yield "log, MB", sum(_size(file) for file in service.data_dir.glob("events.sqlite3*")) / _MB


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _short(name: str) -> str:
    """Return a metric with the kind of memory only; the name of the worker differs in each run."""
    family, _, labels = name.partition("{")
    kinds = [label.partition("=")[2].strip('"') for label in labels.rstrip("}").split(",")]
    return " ".join([family.removeprefix("semantic_"), *kinds[:1]]).strip()
