"""Samples of what the processes of a service hold, and what is kept of a failed run."""

from __future__ import annotations

import contextlib
import json
import shutil
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
