"""Time and memory of the worker for a text far longer than the context of the model.

``python -m bench.long_text [--mb 4] [--rounds 5]`` starts a service with the demo model and sends a
text of words, and one of a single run of letters, to ``/v1/messages`` and to
``/v1/messages/count_tokens``. The service refuses the first, and estimates the second, once the
text is certain not to fit, without reading the rest. The peak of the worker's resident memory is
reset before each request (Linux).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from bench.experiments.report import print_table
from bench.idle import processes_of
from tests.support.processes.service import Service

_ANSWER_S: Final = 120.0
_MB: Final = 1_000_000
_WORD: Final = "the quick brown fox jumps over the lazy dog "
PATHS: Final = ("/v1/messages", "/v1/messages/count_tokens")


def texts_of(size: int) -> dict[str, str]:
    """Return the texts of so many characters, by name."""
    return {"words": (_WORD * (size // len(_WORD) + 1))[:size], "one run of letters": "a" * size}


def measure(http: httpx.Client, worker: psutil.Process, path: str, text: str) -> dict[str, Any]:
    """Send one text; return the status, the seconds, and what the worker used for it."""
    before = worker.cpu_times()
    resting = worker.memory_info().rss
    (Path("/proc") / str(worker.pid) / "clear_refs").write_text("5")
    body = {"model": "semantic-demo", "messages": [{"role": "user", "content": text}]}
    started = time.perf_counter()
    reply = http.post(path, json=body | ({"max_tokens": 1} if path == PATHS[0] else {}))
    took_s = time.perf_counter() - started
    after = worker.cpu_times()
    return {
        "status": reply.status_code,
        "seconds": took_s,
        "cpu_s": after.user + after.system - before.user - before.system,
        "mb": max(0, _peak_bytes(worker.pid) - resting) / _MB,
    }


def _peak_bytes(pid: int) -> int:
    status = (Path("/proc") / str(pid) / "status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _rows(http: httpx.Client, worker: psutil.Process, size: int, rounds: int) -> list[list[str]]:
    rows = []
    for path in PATHS:
        for name, text in texts_of(size).items():
            runs = [measure(http, worker, path, text) for _ in range(rounds)]
            statuses = " ".join(sorted({str(run["status"]) for run in runs}))
            seconds, cpu_s, mb = (
                statistics.median(run[key] for run in runs) for key in ("seconds", "cpu_s", "mb")
            )
            most = max(run["mb"] for run in runs)
            rows.append(
                [path, name, statuses, f"{seconds:.2f}", f"{cpu_s:.2f}", f"{mb:.0f}", f"{most:.0f}"]
            )
    return rows


def main() -> None:
    """Run the measurement and print its table."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_text", description=__doc__)
    parser.add_argument("--mb", type=float, default=4.0, help="length of the texts")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="semantic-long-text-") as folder:
        service = Service(Path(folder) / "data").start()
        try:
            worker = processes_of(service)["worker"]
            with httpx.Client(base_url=service.base_url, timeout=_ANSWER_S) as http:
                measure(http, worker, PATHS[0], "Hello!")
                rows = _rows(http, worker, int(options.mb * _MB), options.rounds)
        finally:
            service.stop()
    headers = ["route", "text", "status", ">s", ">worker's CPU s", ">peak, MB", ">most, MB"]
    print_table(headers, rows)


if __name__ == "__main__":
    main()
