"""What do the operations of the event log cost, compared with a bare disk sync?

``python -m bench.event_log`` prints Markdown. The log is in a temporary directory; set ``TMPDIR``
to measure another disk. Each append is the first event of a job; a waiter is a caller that waits
for each of its appends. CPU time is that of the whole process: waiters and writer thread together.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.figures import percentile
from domain.job.commit import load_job
from domain.log.record import GENESIS_HASH, LogHead, verify_link
from domain.values import JobId, StreamName, digest_of
from ops.clock import RandomIds, SystemClock
from ops.log.admin.verify import verify_log, verify_payloads, verify_whole_log
from ops.log.database import reader_engine
from ops.log.migrate import upgrade
from ops.log.reader import LogReader
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.builders.job_events import completed, draft, started, submitted

WAITERS = (1, 16)
APPENDS = 1600
READS = 2000
WARM_UP = 50
VERIFIED_STREAMS, WALKS = 50, 3
#: Jobs of a log that is verified whole, each with a request of its own, and comparisons.
WHOLE_JOBS, WHOLE_TEXT_BYTES, PAIRS = 2000, 512, 7
#: Bytes of a payload; a request of some thousand tokens.
PAYLOAD_BYTES = 16 * 1024
_SYNC_BYTES = 4096
_SYNCS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of many calls of one kind."""

    calls: int
    wall_s: float
    cpu_s: float
    call_ms: tuple[float, ...]

    def row(self, title: str, note: str = "") -> str:
        """Return a row of the table."""
        return (
            f"| {title} | {self.calls / self.wall_s:,.0f} | {percentile(self.call_ms, 0.5):.3f}"
            f" | {percentile(self.call_ms, 0.95):.3f} | {1000 * self.cpu_s / self.calls:.3f}"
            f" | {note} |"
        )


def main() -> None:
    """Measure on a fresh log and print one row for each kind of call."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'events.sqlite3'}"
        upgrade(url)
        print("| call | calls/s | p50 ms | p95 ms | CPU ms a call | |")
        print("|---|---:|---:|---:|---:|---|")
        print(_syncs(Path(directory)).row(f"fdatasync of {_SYNC_BYTES} bytes"))
        with open_log(url, clock=SystemClock()) as log:
            for _ in range(WARM_UP):
                _submit(log)
            for waiters in WAITERS:
                print(_appends(log, waiters))
            _print_reads(log)
        _print_verify(Path(directory))
        _print_whole(Path(directory))


def _appends(log: SqlEventLog, waiters: int) -> str:
    commits = _commits(log)
    with ThreadPoolExecutor(waiters) as pool:
        barrier = threading.Barrier(waiters)
        for ready in [pool.submit(barrier.wait) for _ in range(waiters)]:
            ready.result()
        costs = _costs(
            lambda: list(pool.map(lambda _: _timed_ms(lambda: _submit(log)), range(APPENDS)))
        )
    share = APPENDS / (_commits(log) - commits)
    return costs.row(f"append, {waiters} waiting", f"{share:.1f} appends a commit")


def _commits(log: SqlEventLog) -> float:
    return log.figures()["log_commit_duration_seconds"]["+Inf"]


def _print_reads(log: SqlEventLog) -> None:
    job_id = RandomIds().job_id()
    content = os.urandom(PAYLOAD_BYTES)
    digest = digest_of(content)
    drafts = [draft(submitted()), draft(started()), draft(completed())]
    log.append(StreamName(job_id), drafts, expected_version=0, payloads={digest: content})
    reads: dict[str, Callable[[], object]] = {
        "load of a job's 3 events": lambda: log.load(StreamName(job_id)),
        "load and fold of the job": lambda: load_job(job_id, log=log),
        f"payload of {PAYLOAD_BYTES // 1024} KiB": lambda: log.get(digest),
        "row of the jobs list": lambda: log.views.get(job_id),
    }
    for title, read in reads.items():
        for _ in range(WARM_UP):
            read()
        print(_costs(partial(_repeated, read)).row(title))


def _print_verify(directory: Path) -> None:
    """Verify a longer log twice: as text, and event by event with parsed data."""
    url = f"sqlite:///{directory / 'long.sqlite3'}"
    upgrade(url)
    with open_log(url, clock=SystemClock()) as log:
        for number in range(VERIFIED_STREAMS):
            events = [event for _ in range(200) for event in (submitted(), started(), completed())]
            drafts = [draft(event) for event in events]
            log.append(StreamName(f"worker-{number}"), drafts, expected_version=0)
        count = log.head().position
    engine = reader_engine(url)
    try:
        fast = _walks(lambda: verify_log(engine), count)
        parsed = _walks(lambda: _walk_parsed(LogReader(engine)), count)
    finally:
        engine.dispose()
    ratio = parsed.wall_s / fast.wall_s
    print(fast.row(f"verify, each of {count:,} events", f"{ratio:.1f} times the parsed walk"))
    print(parsed.row("the same walk, each event parsed and encoded again"))


def _print_whole(directory: Path) -> None:
    """Compare the CPU time of ``semantic log verify`` with that of chain and texts, in turn."""
    url = f"sqlite:///{directory / 'whole.sqlite3'}"
    upgrade(url)
    output = b"output"
    with open_log(url, clock=SystemClock()) as log:
        for _ in range(WHOLE_JOBS):
            text = os.urandom(WHOLE_TEXT_BYTES)
            asked = replace(submitted(), request=digest_of(text))
            drafts = [draft(asked), draft(started()), draft(completed())]
            texts = {digest_of(text): text, digest_of(output): output}
            log.append(StreamName(RandomIds().job_id()), drafts, expected_version=0, payloads=texts)
        count = log.head().position
    engine = reader_engine(url)
    try:
        pairs = [
            (
                _cpu_s(partial(verify_whole_log, engine, url, signed_hashes={})),
                _cpu_s(lambda: (verify_log(engine), verify_payloads(engine))),
            )
            for _ in range(PAIRS)
        ]
    finally:
        engine.dispose()
    ratios = [whole_s / part_s for whole_s, part_s in pairs]
    print(
        f"\n`log verify` of {count:,} events and {WHOLE_JOBS:,} texts takes"
        f" {min(ratios):.1f} to {max(ratios):.1f} times the CPU time of chain and texts"
        f" (median {percentile(ratios, 0.5):.1f} of {PAIRS} pairs)."
    )


def _cpu_s(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    return _costs(lambda: [_timed_ms(call)]).cpu_s


def _walk_parsed(log: LogReader) -> None:
    head = LogHead(position=0, hash=GENESIS_HASH)
    while events := log.select(after=head.position, limit=1000):
        for event in events:
            head = verify_link(event, head)


def _walks(walk: Callable[[], object], events: int) -> Costs:
    """Return the cost of one event in the fastest of some walks."""
    whole = min(
        (_costs(lambda: [_timed_ms(walk)]) for _ in range(WALKS)), key=lambda costs: costs.wall_s
    )
    return Costs(
        calls=events,
        wall_s=whole.wall_s,
        cpu_s=whole.cpu_s,
        call_ms=tuple(ms / events for ms in whole.call_ms),
    )


def _syncs(directory: Path) -> Costs:
    """Measure the bare disk sync that every commit waits for."""
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    with (directory / "synced").open("wb", buffering=0) as file:

        def append() -> None:
            file.write(bytes(_SYNC_BYTES))
            sync(file.fileno())

        return _costs(lambda: [_timed_ms(append) for _ in range(_SYNCS)])


def _submit(log: SqlEventLog) -> JobId:
    job_id = RandomIds().job_id()
    log.append(StreamName(job_id), [draft(submitted())], expected_version=0)
    return job_id


def _costs(measure: Callable[[], list[float]]) -> Costs:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    call_ms = measure()
    return Costs(
        calls=len(call_ms),
        wall_s=time.perf_counter() - wall_s,
        cpu_s=time.process_time() - cpu_s,
        call_ms=tuple(call_ms),
    )


def _repeated(call: Callable[[], object]) -> list[float]:
    return [_timed_ms(call) for _ in range(READS)]


def _timed_ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
