"""What does a scrape of ``/metrics`` cost, and does it grow with the log?

``python -m bench.scrape --jobs 1000,100000`` prints Markdown. It fills one log with ended jobs of
many agents, and measures scrapes at each size: the time of a whole scrape of two workers, and that
of its parts. A pulse with metrics is compared with one without.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from api.background.tasks import BlockingCalls
from api.http_server.request_counts import RequestCounts
from api.services.metrics.agent_totals import AgentTotals
from api.services.metrics.fleet_metrics import FleetMetrics
from api.services.metrics.log_metrics import LogMetrics
from api.services.metrics.service import ApiMetrics, MetricsService
from bench.figures import percentile
from domain.engine.figures import WorkCounts
from domain.job.ports import WorkerPulse, WorkerState
from domain.usecases.engine_control import EngineControls
from domain.values import AgentId, StreamName, WorkerId
from ops.adapters.data_dir.free_space import DiskFloor
from ops.adapters.event_log.migrate import upgrade
from ops.adapters.event_log.sql_event_log import SqlEventLog, open_log
from ops.adapters.webhooks.store import SqlWebhookStore
from ops.clock import RandomIds, SystemClock
from ops.metrics.counter_file import CounterFile
from ops.metrics.process_metrics import ProcessMetrics
from ops.metrics.readings import Readings
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.broker import FakeBroker
from worker.cachestore.cache_gauge import CacheGauge
from worker.liveness.worker_metrics import WorkerMetrics

AGENTS = 200
SCRAPES = 40
PULSES = 2000
#: Callers that append at once, so that they share commits.
APPENDERS = 64
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="1000,100000", help="ended jobs in the log, ascending")
    sizes = [int(size) for size in parser.parse_args().jobs.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'events.sqlite3'}"
        upgrade(url)
        with open_log(url, clock=SystemClock()) as log, ThreadPoolExecutor(APPENDERS) as threads:
            webhooks, pulse = SqlWebhookStore(url), _pulse(Path(directory), log)
            print("| ended jobs | scrape p50 ms | p95 ms | from the log | workers | bytes |")
            print("|--:|--:|--:|--:|--:|--:|")
            filled = 0
            for size in sizes:
                list(threads.map(lambda number: _add(log, number), range(filled, size)))
                filled = size
                print(_row(size, log, webhooks, pulse), flush=True)
            webhooks.close()
        _print_pulse(Path(directory), pulse)


def _add(log: SqlEventLog, number: int) -> None:
    stream = StreamName(f"job-{number:032x}")
    accepted = replace(submitted(), agent=AgentId(f"agent-{number % AGENTS}"))
    events = (accepted, started(), completed())
    log.append(stream, [draft(event) for event in events], expected_version=0)


def _pulse(directory: Path, log: SqlEventLog) -> WorkerPulse:
    metrics = WorkerMetrics.of(directory, place="engine-1")
    metrics.add(CacheGauge(None, lambda *_: None).counted, log.figures)
    return WorkerPulse(
        worker=WorkerId("worker-1"),
        pid=1,
        state=WorkerState.READY.value,
        model=None,
        place="engine-1",
        metrics=metrics.read(WorkCounts()),
    )


def _row(size: int, log: SqlEventLog, webhooks: SqlWebhookStore, pulse: WorkerPulse) -> str:
    broker, clock = FakeBroker(), SystemClock()
    for number in (1, 2):
        broker.pulses.beat(
            replace(pulse, worker=WorkerId(f"worker-{number}"), place=f"engine-{number}")
        )
    controls = EngineControls(log=log, ids=RandomIds(), signals=broker.signals)
    from_log = LogMetrics(
        log=log,
        usage=log.usage,
        agents=AgentTotals(log.usage, clock, agents_max=50),
        queue=log.queue_views,
        webhooks=webhooks,
        controls=controls,
        clock=clock,
    )
    fleet = FleetMetrics(broker.pulses)
    with ThreadPoolExecutor(1) as executor:
        service = MetricsService(
            log=from_log,
            fleet=fleet,
            api=ApiMetrics(
                version="bench",
                requests=RequestCounts(),
                tries=Counter(),
                writer=log.figures,
                counters=CounterFile(None),
                disk=DiskFloor(measure=lambda: 0),
                process=ProcessMetrics(),
            ),
            aliases=False,
            call=BlockingCalls(executor),
        )
        body, _ = service.scrape(OPENMETRICS)
        whole = _times(lambda: service.scrape(OPENMETRICS))
    log_ms = percentile(_times(lambda: from_log.read(Readings())), 0.5)
    fleet_ms = percentile(_times(lambda: fleet.read(Readings())), 0.5)
    return (
        f"| {size:,} | {percentile(whole, 0.5):.1f} | {percentile(whole, 0.95):.1f}"
        f" | {log_ms:.1f} | {fleet_ms:.1f} | {len(body):,} |"
    )


def _print_pulse(directory: Path, pulse: WorkerPulse) -> None:
    metrics = WorkerMetrics.of(directory, place="engine-1")
    counts = iter(range(PULSES * 2))
    read_ms = _times(lambda: metrics.read(WorkCounts(generated_tokens=next(counts))), PULSES)
    idle_ms = _times(lambda: metrics.read(WorkCounts()), PULSES)
    bare = replace(pulse, metrics={})
    sizes = [len(json.dumps(asdict(one))) for one in (bare, pulse)]
    print(
        f"\nA pulse with metrics: {percentile(read_ms, 0.5):.3f} ms while tokens are generated,"
        f" {percentile(idle_ms, 0.5):.3f} ms idle; {sizes[0]:,} bytes without, {sizes[1]:,} with."
    )


def _times(call: Callable[[], object], count: int = SCRAPES) -> tuple[float, ...]:
    """Return the durations of calls in milliseconds."""
    taken = []
    for _ in range(count):
        started_s = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started_s) * 1000)
    return tuple(taken)


if __name__ == "__main__":
    main()
