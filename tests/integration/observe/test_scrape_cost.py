"""A scrape reads as much of a long log as of a short one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import event

from api.app import App, MetricPorts
from api.operate.metrics import LogMetrics
from domain.engine.operate import EngineControls
from domain.log.subscriptions import Subscriptions
from domain.values import AgentId, StreamName
from ops.clock import RandomIds, SystemClock
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.observe.exposition import Readings
from ops.webhooks.store import SqlWebhookStore
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.broker import FakeBroker

#: Instructions of SQLite between two calls of a progress handler.
STRIDE = 10


class Steps:
    """Counts the instructions that SQLite executes on the connections of some engines."""

    def __init__(self, *engines: Any) -> None:
        self.count = 0
        for engine in engines:
            event.listen(engine, "checkout", self._watch)

    def _watch(self, connection: Any, record: object, proxy: object) -> None:
        del record, proxy
        connection.set_progress_handler(self._tick, STRIDE)

    def _tick(self) -> int:
        self.count += STRIDE
        return 0


@contextmanager
def metrics(path: Path) -> Iterator[tuple[SqlEventLog, LogMetrics, Steps]]:
    url = f"sqlite:///{path}"
    upgrade(url)
    with open_log(url, clock=SystemClock()) as log:
        webhooks = SqlWebhookStore(url)
        controls = EngineControls(log=log, ids=RandomIds(), signals=FakeBroker().signals)
        app = SimpleNamespace(
            log=log,
            metrics=MetricPorts(queue=log.views, usage=log.usage, agents_max=5),
            webhook_store=webhooks,
            controls=controls,
            subscriptions=Subscriptions(log, RandomIds()),
            clock=SystemClock(),
        )
        yield (
            log,
            LogMetrics(cast("App", app)),
            Steps(log._readers, webhooks._readers),
        )
        webhooks.close()


def add_jobs(log: SqlEventLog, first: int, last: int) -> None:
    for number in range(first, last):
        accepted = replace(submitted(), agent=AgentId(f"agent-{number % 7}"))
        drafts = [draft(one) for one in (accepted, started(), completed())]
        log.append(StreamName(f"job-{number:032x}"), drafts, expected_version=0)


def cost(found: LogMetrics, steps: Steps) -> tuple[int, int]:
    """Return the instructions of a scrape, and the number of jobs that it counts."""
    before, into = steps.count, Readings()
    found.read(into)
    ended = sum(
        value
        for one in into.all()
        if one.family.name == "request_total"
        for value in one.values.values()
    )
    return steps.count - before, int(ended)


def test_scrape_of_a_long_log_reads_no_more_than_that_of_a_short_one(tmp_path: Path) -> None:
    with metrics(tmp_path / "events.sqlite3") as (log, found, steps):
        add_jobs(log, 0, 20)
        cost(found, steps)
        short, ended = cost(found, steps)
        assert (short > 0, ended) == (True, 20)
        add_jobs(log, 20, 420)
        long, ended = cost(found, steps)
        assert ended == 420
        assert long <= short * 1.1 + STRIDE * 10
