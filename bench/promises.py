"""How long do acceptance, start and cancellation of a job take, and the loss of a worker?

``python -m bench.promises`` prints Markdown. A service of its own on the demo model: the time until
a job is durably accepted, until the engine starts it, until a cancelled job stops, and on a service
with a standby from ``kill -9`` of the worker to the next token of the same stream.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from bench.chaos.client import events_of
from bench.report.section import Section, percentile, print_conditions, print_verdict, table_lines
from ops.supervisor.process_monitor import HEALTHY_AFTER_S
from tests.support.clients.service_log import WAIT_S, ended
from tests.support.polling import wait_until
from tests.support.processes.service import Service

LONG_PROMPT: Final = "Tell me a long story about a fox."
#: A job counts as running once it has emitted this many pieces of text.
PIECES_BEFORE: Final = 3
#: Longest median pause of a service with a standby, in milliseconds.
PAUSE_MAX_MS: Final = 2000.0
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
            with self._running() as (job_id, pieces):
                begun = time.perf_counter()
                self._client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
                deque(pieces, maxlen=0)
                times.append(1000 * (time.perf_counter() - begun))
        return times

    def kill_worker(self, service: Service, kills: int) -> list[float]:
        """Kill the worker of a running job; return the time to the next token of its stream."""
        times = []
        for _ in range(kills):
            # The supervisor delays the restart of a worker that ends too soon after its start.
            time.sleep(HEALTHY_AFTER_S + 1)
            with self._running() as (_, pieces):
                begun = time.perf_counter()
                service.part("worker").kill()
                next(piece for piece in pieces if piece["a"] == 2)
                times.append(1000 * (time.perf_counter() - begun))
                deque(pieces, maxlen=0)
        return times

    @contextmanager
    def _running(self) -> Iterator[tuple[str, Iterator[Any]]]:
        """Start a long job; return its id, and the pieces of text of its stream after the first."""
        job_id = self._submit(LONG_PROMPT, seed=7)
        with self._client.stream("GET", f"/v1/jobs/{job_id}/stream") as stream:
            items = (data for _, data in events_of(stream.iter_lines()))
            pieces = (item for item in items if item["kind"] == "text")
            for _ in range(PIECES_BEFORE):
                next(pieces)
            yield job_id, pieces

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


def _between(*events: Any) -> float:
    before, after = (datetime.fromisoformat(one["recorded_at"]) for one in events)
    return 1000 * (after - before).total_seconds()


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
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    began = time.monotonic()
    with _bench() as (bench, _):
        bench.accept_one_by_one(5)  # connections, first pages of the log
        accepted, taken = bench.accept_one_by_one(asked.jobs)
        burst = bench.accept_burst(asked.jobs)
        cancelled = bench.cancel_running(asked.cancels)
    with _bench(SEMANTIC_JOBS__WORKER_STANDBY="true") as (bench, service):
        pauses = bench.kill_worker(service, asked.kills)
    rows = [
        _row("accept: POST to 202, durable", accepted),
        _row("accepted to taken up by the engine", taken),
        _row(f"accept, {BURST_CLIENTS} clients at once beside the engine", burst),
        _row("cancel to the end of the stream", cancelled),
        _row("`kill -9` of the worker to the next token", pauses),
    ]
    Section(
        headline=("durable acceptance of a job", f"{rows[0][2]} ms p50, {rows[0][3]} p99"),
        table=[*table_lines(("what, ms", ">of", ">p50", ">p99", ">most"), rows)],
    ).emit(asked.json)
    print_verdict(
        reached=median(pauses) <= PAUSE_MAX_MS,
        why=f"a stream pauses for {median(pauses):,.0f} ms in the median when its worker is killed"
        f" (bound {PAUSE_MAX_MS:,.0f})",
    )
    print_conditions(began)


@contextmanager
def _bench(**env: str) -> Iterator[tuple[Bench, Service]]:
    """Start a service of its own with some settings."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(Path(folder) / "data", env=env) as service,
        httpx.Client(base_url=service.base_url, timeout=60) as client,
    ):
        yield Bench(client), service


if __name__ == "__main__":
    main()
