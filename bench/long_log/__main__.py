"""Do costs grow with the log? ``python -m bench.long_log`` prints Markdown.

The logs are in a temporary directory, or in ``--logs DIR``, where they are kept for the next run.
The columns of one run compare with each other: the operations take turns over the logs, so that
all of them see the same load of the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.figures import percentile
from bench.long_log.fill import fill
from domain.log.record import Draft
from domain.usage.ports import UsageGroup
from domain.values import JobStatus, StreamName, digest_of
from ops.adapters.event_log.projections.rebuild import ensure_projections
from ops.adapters.event_log.sql_event_log import SqlEventLog, open_log
from ops.clock import RandomIds, SystemClock
from tests.support.builders.job_events import completed, started, submitted

SIZES = (0, 300_000, 1_000_000)
_REPEATS, _COMMAND_REPEATS = 100, 3

Calls = Mapping[str, Callable[[], object]]


def main() -> None:
    """Fill the logs that are missing, measure each operation on all of them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--logs", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.logs or Path(scratch)
        sizes = [int(size) for size in options.sizes.split(",")]
        urls = [_log_of(root, size) for size in sizes]
        print(f"| p50 ms | {' | '.join(f'{size:,} events' for size in sizes)} | last : first |")
        print(f"|---|{'---:|' * (len(sizes) + 1)}")
        _print("start: open the log", [partial(_open, url) for url in urls], 5)
        logs = [open_log(url, clock=SystemClock()) for url in urls]
        for title in _calls(logs[0]):
            _print(title, [_calls(log)[title] for log in logs], _REPEATS)
        for log in logs:
            log.close()
        for command in (("agents", "ls"), ("usage",)):
            _print(
                f"semantic {' '.join(command)}",
                [partial(_command, command, url) for url in urls],
                _COMMAND_REPEATS,
            )


def _log_of(root: Path, size: int) -> str:
    directory = root / f"events-{size}"
    url = f"sqlite:///{directory / 'events.sqlite3'}"
    if not directory.exists():
        directory.mkdir(parents=True)
        fill(url, size)
    ensure_projections(url)
    return url


def _calls(log: SqlEventLog) -> Calls:
    return {
        "accept a job": lambda: _append(log, 1),
        "accept, start and complete a job": lambda: _append(log, 3),
        "list 50 jobs": lambda: log.views.page(limit=50),
        "list 50 failed jobs": lambda: log.views.page(limit=50, status=JobStatus.FAILED),
        "open jobs": log.views.unfinished,
        "last 100 events": lambda: log.last(100),
        "list 50 agents with their turns": lambda: log.agents.turns(
            log.agents.page(limit=50).agents
        ),
        "totals of /metrics": lambda: (log.usage.totals(), log.usage.histograms()),
        "usage by day": lambda: log.usage.grouped(UsageGroup.DAY),
    }


def _append(log: SqlEventLog, events: int) -> None:
    ids = RandomIds()
    job = ids.job_id()
    content = job.encode() * 16
    digest = digest_of(content)
    accepted = replace(submitted(agent="bench"), request=digest, asked=digest)
    drafts = [
        Draft(event_id=ids.event_id(), event=event, correlation_id="bench")
        for event in (accepted, started(), completed())[:events]
    ]
    log.append(StreamName(job), drafts, expected_version=0, payloads={digest: content})


def _open(url: str) -> None:
    open_log(url, clock=SystemClock()).close()


def _command(command: tuple[str, ...], url: str) -> None:
    directory = Path(url.removeprefix("sqlite:///")).parent
    arguments = [sys.executable, "-m", "ops.cli.main", *command, "--data-dir", str(directory)]
    subprocess.run(arguments, check=True, capture_output=True)


def _print(title: str, calls: list[Callable[[], object]], repeats: int) -> None:
    spent_ms: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, spent in zip(calls, spent_ms, strict=True):
            started_s = time.perf_counter()
            call()
            spent.append(1000 * (time.perf_counter() - started_s))
    medians = [percentile(spent, 0.5) for spent in spent_ms]
    cells = " | ".join(f"{median:,.2f}" for median in medians)
    print(f"| {title} | {cells} | {medians[-1] / medians[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
