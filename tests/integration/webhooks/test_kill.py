"""A kill at any moment neither loses a webhook nor sends it under another name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.log.record import EventFilter
from domain.values import StreamName
from domain.webhook.delivery import DeliveryResult, DueHost, Webhook, WebhookState
from domain.webhook.send import WebhookCollector
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.webhooks.store import SqlWebhookStore
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log
from tests.support.fakes.time import FakeClock, SequentialIds
from tests.support.processes.killed import killed_at_every_step

HOST = "hooks.example.com:443"
LEASE_S = 20.0
OK = DeliveryResult(status=200)
GONE = DeliveryResult(status=410, error="HTTP 410", is_final=True)


class Post:
    """Writes down what was sent where the next process finds it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def send(self, webhook: Webhook) -> None:
        with self._file.open("a") as out:
            out.write(f"{webhook.id}\n")


def collector(log: SqlEventLog, store: SqlWebhookStore, clock: FakeClock) -> WebhookCollector:
    return WebhookCollector(
        log=log,
        store=store,
        ids=SequentialIds(),
        clock=clock,
        describe_job=lambda view: {"id": view.id},
        describe_batch=lambda batch: {"id": batch.id},
    )


def deliver(url: str, post: Post, clock: FakeClock, answer: DeliveryResult) -> None:
    """Do what a process does between two deaths."""
    with open_log(url, clock=clock) as log, closing(SqlWebhookStore(url)) as store:
        at = collector(log, store, clock)
        at.collect(after=store.position())
        for webhook in at.claim(DueHost(HOST), lease_s=LEASE_S, limit=9):
            post.send(webhook)
            at.settle(webhook, answer)


ADD, CLAIM, SETTLE = ((SqlWebhookStore, name) for name in ("add", "claim", "settle"))
SEND, APPEND = (Post, "send"), (SqlEventLog, "append")


@pytest.mark.parametrize(
    ("answer", "steps", "state"),
    [
        (OK, (ADD, CLAIM, SEND, SETTLE), WebhookState.DELIVERED),
        (GONE, (ADD, CLAIM, SEND, APPEND, SETTLE), WebhookState.FAILED),
    ],
)
def test_a_kill_before_any_step_loses_nothing(
    tmp_path: Path, answer: DeliveryResult, steps: Sequence[tuple[Any, str]], state: WebhookState
) -> None:
    url, clock, post = new_log(tmp_path), FakeClock(), Post(tmp_path / "sent")
    facts = replace(submitted(), webhook="https://hooks.example.com/")
    with open_log(url, clock=clock) as log:
        events = [draft(facts), draft(started()), draft(completed())]
        log.append(StreamName("job-1"), events, expected_version=0)
    for step in steps:
        deaths = killed_at_every_step(lambda: deliver(url, post, clock, answer), [step])
        assert next(deaths, None) is not None, step
        clock.advance(LEASE_S)
    deliver(url, post, clock, answer)
    lines = (tmp_path / "sent").read_text().splitlines()
    assert len(lines) >= 2
    with open_log(url, clock=clock) as log, closing(SqlWebhookStore(url)) as store:
        (row,) = store.page(limit=9)
        assert row.state is state
        assert set(lines) == {row.id}
        given_up = log.select(EventFilter(types=("WebhookGivenUp",)))
        assert len(given_up) == (state is WebhookState.FAILED)
