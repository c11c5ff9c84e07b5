"""How long do acceptance, start and cancellation of a job take?

``python -m bench.promises`` prints Markdown. A service of its own on the demo model: the time until
a job is durably accepted, until the engine starts it, and until a cancelled job stops. The pause
after ``kill -9`` is measured by ``bench.recovery``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from bench.experiments.report import print_conditions, table_lines
from bench.figures import percentile
from bench.report.section import Section
from tests.support.clients.service_log import WAIT_S, ended
from tests.support.polling import wait_until
from tests.support.processes.service import Service

LONG_PROMPT: Final = "Tell me a long story about a fox."
#: A job counts as running once it has emitted this many pieces of text.
PIECES_BEFORE_CANCEL: Final = 3
#: Clients that submit at once in the burst.
BURST_CLIENTS: Final = 8


class Bench:
    """Measurements on one running service; times in milliseconds."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def accept_one_by_one(self, jobs: int) -> tuple[list[float], list[float]]:
        """Submit one job after the other, each when the one before has ended.

        Returns:
            From the request to its 202, and from ``JobSubmitted`` to ``AttemptStarted``.
        """
        accepted, taken = [], []
        for number in range(jobs):
            begun = time.perf_counter()
            job_id = self._submit(f"Say hello to number {number}.", max_tokens=1)
            accepted.append(1000 * (time.perf_counter() - begun))
            assert ended(self._client, job_id)["status"] == "completed"
            events = self._events(job_id)
            taken.append(_between(events["JobSubmitted"][0], events["AttemptStarted"][0]))
        return accepted, taken

    def accept_burst(self, jobs: int) -> list[float]:
        """Submit from several clients at once, without waiting for any job to end."""

        def one(number: int) -> float:
            begun = time.perf_counter()
            self._submit(f"Say hello to number {number}.", max_tokens=1, priority="batch")
            return 1000 * (time.perf_counter() - begun)

        with ThreadPoolExecutor(BURST_CLIENTS) as pool:
            times = list(pool.map(one, range(jobs)))
        wait_until(self._open_jobs, lambda count: count == 0, within_s=WAIT_S)
        return times

    def cancel_running(self, cancels: int) -> list[float]:
        """Cancel a running job; return the time from the request to the end of its stream."""
        times = []
        for _ in range(cancels):
            job_id = self._submit(LONG_PROMPT, seed=7)
            with self._client.stream("GET", f"/v1/jobs/{job_id}/stream") as stream:
                lines = stream.iter_lines()
                _read_text(lines)
                begun = time.perf_counter()
                self._client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
                for _line in lines:
                    pass
                times.append(1000 * (time.perf_counter() - begun))
        return times

    def _submit(self, prompt: str, **body: Any) -> str:
        answer = self._client.post("/v1/jobs", json={"prompt": prompt, "temperature": 0, **body})
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        return str(answer.json()["id"])

    def _open_jobs(self) -> int:
        pages = [
            self._client.get("/v1/jobs", params={"status": status, "limit": 1}).json()["data"]
            for status in ("queued", "running")
        ]
        return sum(len(page) for page in pages)

    def _events(self, job_id: str) -> dict[str, list[Any]]:
        page = self._client.get("/v1/events", params={"stream": job_id, "limit": 100}).json()
        kinds: dict[str, list[Any]] = {}
        for event in page["data"]:
            kinds.setdefault(event["type"], []).append(event)
        return kinds


def _read_text(lines: Iterator[str]) -> None:
    pieces = 0
    for line in lines:
        pieces += line.startswith("data:") and json.loads(line[5:]).get("kind") == "text"
        if pieces >= PIECES_BEFORE_CANCEL:
            return
    raise AssertionError("the stream ended with too little text")


def _instant(event: Any) -> float:
    return datetime.fromisoformat(event["recorded_at"]).timestamp()


def _between(earlier: Any, later: Any) -> float:
    return 1000 * (_instant(later) - _instant(earlier))


def _row(what: str, times: list[float]) -> tuple[object, ...]:
    shares = (percentile(times, 0.5), percentile(times, 0.99), max(times))
    return (what, len(times), *(f"{one:.1f}" for one in shares))


def main() -> None:
    """Measure on a service of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--cancels", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "data").start()
        try:
            with httpx.Client(base_url=service.base_url, timeout=60) as client:
                bench = Bench(client)
                bench.accept_one_by_one(5)  # connections, first pages of the log
                accepted, taken = bench.accept_one_by_one(asked.jobs)
                rows = [
                    _row("accept: POST to 202, durable", accepted),
                    _row("accepted to taken up by the engine", taken),
                    _row(
                        f"accept, {BURST_CLIENTS} clients at once beside the engine",
                        bench.accept_burst(asked.jobs),
                    ),
                    _row("cancel to the end of the stream", bench.cancel_running(asked.cancels)),
                ]
        finally:
            service.stop()
    Section(
        headline=("durable acceptance of a job", f"{rows[0][2]} ms p50, {rows[0][3]} p99"),
        table=[*table_lines(("what, ms", ">of", ">p50", ">p99", ">most"), rows)],
    ).emit(asked.json)
    print_conditions(began)


if __name__ == "__main__":
    main()
