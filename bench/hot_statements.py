"""What compiled statements gain: ``python -m bench.hot_statements``; prints Markdown.

Each call runs on one log in two ways that take turns: with ``HotStatement``, and with the same
expressions executed by ``Connection.execute``. The log lies in a temporary directory (set
``TMPDIR`` to measure another disk).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection

from domain.job.commit import load_job
from domain.job.listing import JobFilter
from domain.values import JobId, JobStatus, StreamName, digest_of
from ops.clock import RandomIds, SystemClock
from ops.log.hot_statements import HotStatement
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.builders.job_events import completed, draft, started, submitted

#: Turns of each way, and seconds that a turn lasts.
TURNS = 15
TURN_S = 0.4
WAITERS = 16
#: Rows of a page of the jobs list.
PAGE_ROWS = 50
#: Bytes of a payload; a request of some thousand tokens.
PAYLOAD_BYTES = 16 * 1024


def main() -> None:
    """Measure on a fresh log and print one line for each kind of call."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'events.sqlite3'}"
        upgrade(url)
        with open_log(url, clock=SystemClock()) as log, ThreadPoolExecutor(WAITERS) as pool:
            jobs = [_submit(log) for _ in range(PAGE_ROWS)]
            for job_id in jobs:
                _end(log, job_id)
            calls: dict[str, Callable[[], object]] = {
                "append, 1 waiting": lambda: _submit(log),
                f"{WAITERS} appends, {WAITERS} waiting": lambda: list(
                    pool.map(lambda _: _submit(log), range(WAITERS))
                ),
                "load of a job's 3 events": lambda: log.load(StreamName(job_id)),
                "load and fold of the job": lambda: load_job(job_id, log=log),
                "row of the jobs list": lambda: log.views.get(job_id),
                f"page of {PAGE_ROWS} ended jobs": lambda: log.views.page(
                    JobFilter(status=JobStatus.COMPLETED), limit=PAGE_ROWS
                ),
            }
            print("| call | p50 ms, compiled | p50 ms, `execute` | CPU ms | CPU ms, `execute` | |")
            print("|---|---:|---:|---:|---:|---:|")
            for title, call in calls.items():
                print(_row(title, call))


def _row(title: str, call: Callable[[], object]) -> str:
    compiled: list[tuple[float, float]] = []
    plain: list[tuple[float, float]] = []
    for _ in range(TURNS):
        compiled.append(_turn(call))
        with _plain_execution():
            plain.append(_turn(call))
    wall, cpu = _medians(compiled)
    plain_wall, plain_cpu = _medians(plain)
    return (
        f"| {title} | {wall:.3f} | {plain_wall:.3f} | {cpu:.3f} | {plain_cpu:.3f}"
        f" | {plain_cpu / cpu - 1:+.0%} |"
    )


def _turn(call: Callable[[], object]) -> tuple[float, float]:
    """Return the median time and the mean CPU time of a call, in milliseconds."""
    call()
    times: list[float] = []
    cpu_s, end = time.process_time(), time.perf_counter() + TURN_S
    while (begun := time.perf_counter()) < end:
        call()
        times.append(time.perf_counter() - begun)
    return 1000 * median(times), 1000 * (time.process_time() - cpu_s) / len(times)


def _medians(turns: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(wall for wall, _ in turns), median(cpu for _, cpu in turns)


@contextmanager
def _plain_execution() -> Iterator[None]:
    """Execute every hot statement by ``Connection.execute``."""

    def rows(hot: HotStatement, connection: Connection, values: Mapping[str, Any]) -> Any:
        return connection.execute(hot.clause, dict(values)).all()

    def run(hot: HotStatement, connection: Connection, values: Mapping[str, Any]) -> int:
        return int(connection.execute(hot.clause, dict(values)).rowcount)

    def run_many(
        hot: HotStatement, connection: Connection, values: Sequence[Mapping[str, Any]]
    ) -> None:
        connection.execute(hot.clause, [dict(each) for each in values])

    with patch.multiple(HotStatement, rows=rows, run=run, run_many=run_many):
        yield


def _submit(log: SqlEventLog) -> JobId:
    job_id, content = RandomIds().job_id(), os.urandom(PAYLOAD_BYTES)
    payloads = {digest_of(content): content}
    log.append(StreamName(job_id), [draft(submitted())], expected_version=0, payloads=payloads)
    return job_id


def _end(log: SqlEventLog, job_id: JobId) -> None:
    drafts = [draft(started()), draft(completed())]
    log.append(StreamName(job_id), drafts, expected_version=1)


if __name__ == "__main__":
    main()
