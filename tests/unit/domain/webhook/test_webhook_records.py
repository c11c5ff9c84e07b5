"""Fields of webhooks and of their events, and limits of a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.events.batch import BatchSubmitted
from domain.log.record import RecordedEvent
from domain.log.trace import new_trace
from domain.values import Owner, StreamName, digest_of
from domain.webhook.delivery import KEPT_S, DeliveryResult, DueHost, WebhookState
from domain.webhook.send import WebhookRetry
from tests.support.builders.job_events import completed, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.unit.domain.webhook.test_webhooks import ENDED, FAILED, URL, World

HOST = "hooks.example.com:443"
GONE = DeliveryResult(status=410, error="HTTP 410", is_final=True)
TRACE = str(new_trace())
NOW = "2026-01-01T00:00:00.000000Z"


class ArchivedLog(InMemoryEventLog):
    """A log whose streams lack their first events."""

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        events = super().load(stream, after_version=after_version)
        return events if not stream.startswith("job-") else events[1:]


def sent_job(world: World, **facts: Any) -> None:
    named = replace(submitted(), webhook=URL)
    world.happen("job-1", replace(named, **facts), started(), completed())


def test_webhook_of_a_job_has_its_owner_and_trace_and_is_due_at_once() -> None:
    world = World()
    sent_job(world, owner=Owner("alice"), trace=TRACE)
    (webhook,) = world.collect()
    assert (webhook.owner, webhook.trace, webhook.host) == ("alice", TRACE, HOST)
    assert (webhook.created_at, webhook.next_at, webhook.position) == (NOW, NOW, 3)
    assert webhook.body == (
        b'{"type":"job.completed","timestamp":"2026-01-01T00:00:00.000000Z",'
        b'"data":{"id":"job-1","status":"completed","output":"%s"}}' % digest_of(b"output").encode()
    )


def test_webhook_of_a_batch_has_its_owner_and_trace() -> None:
    world = World(urls=["https://all.example.com/"])
    accepted = BatchSubmitted(
        protocol="anthropic",
        endpoint="/v1/messages",
        content=digest_of(b""),
        lines=1,
        expires_at="2",
        webhook=URL,
        owner=Owner("alice"),
        trace=TRACE,
    )
    world.happen("batch-1", accepted, ENDED)
    configured, named = world.collect()
    assert (configured.url, configured.owner) == ("https://all.example.com/", None)
    assert (named.url, named.owner) == (URL, "alice")
    assert configured.trace == named.trace == TRACE


def test_receiver_that_is_named_and_configured_belongs_to_the_owner() -> None:
    world = World(urls=[URL, ""])
    sent_job(world, owner=Owner("alice"))
    assert [(one.url, one.owner) for one in world.collect()] == [(URL, "alice")]


def test_receiver_that_is_no_url_has_no_host() -> None:
    world = World()
    world.run("job-1", completed(), url="ftp://hooks.example.com/")
    assert [one.host for one in world.collect()] == [""]


def test_end_of_a_job_whose_first_events_are_archived_is_not_sent() -> None:
    world = World()
    world.run("job-1", completed())
    archived = ArchivedLog(world.clock)
    events = (replace(submitted(), webhook=URL), started(), completed())
    world.log = archived
    world.happen("job-1", *events)
    collector = replace(world.collector, log=archived)
    assert collector.collect(after=0) == 3
    assert world.store.rows == {}


def test_claim_holds_a_try_for_the_lease() -> None:
    world = World()
    for name in ("job-1", "job-2"):
        world.run(name, completed())
    world.collect()
    (first,) = world.collector.claim(DueHost(HOST), lease_s=20, limit=1)
    (second,) = world.collector.claim(DueHost(HOST), lease_s=20, limit=1)
    assert (first.subject, second.subject) == ("job-1", "job-2")
    world.clock.advance(19.9)
    assert world.collector.claim(DueHost(HOST), lease_s=20, limit=9) == ()
    world.clock.advance(0.1)
    assert len(world.collector.claim(DueHost(HOST), lease_s=20, limit=9)) == 2


def test_no_more_hosts_are_listed_and_no_more_ends_are_forgotten_than_asked() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.run(f"job-{name}", completed(), url=f"https://{name}.example.com/")
    world.collect()
    assert world.collector.due_hosts(limit=2) == (
        DueHost("a.example.com:443"),
        DueHost("b.example.com:443"),
    )
    for name in ("a", "b", "c"):
        (claimed,) = world.collector.claim(DueHost(f"{name}.example.com:443"), lease_s=20, limit=1)
        world.collector.settle(claimed, DeliveryResult(status=200))
    world.clock.advance(KEPT_S + 1)
    assert [world.collector.forget(limit=2) for _ in range(3)] == [2, 1, 0]


def test_webhook_that_is_given_up_and_sent_again_refers_to_its_job() -> None:
    world = World()
    world.happen("job-0", submitted(), correlation_id="req-0")
    world.run("job-1", FAILED)
    (webhook,) = world.collect()
    world.fail(GONE)
    retries = WebhookRetry(log=world.log, store=world.store, ids=world.ids, clock=world.clock)
    retries.retry(webhook.id, reason="operator")
    given_up, retried = world.log.load(StreamName(webhook.id))
    assert given_up.data["status"] == 410
    assert (given_up.correlation_id, given_up.causation_id) == ("req-1", None)
    assert dict(retried.data) == {"reason": "operator"}
    assert (retried.correlation_id, retried.causation_id) == ("req-1", given_up.event_id)


def test_webhook_whose_job_is_archived_goes_by_the_name_of_the_job() -> None:
    world = World()
    world.run("job-1", completed())
    (webhook,) = world.collect()
    present = InMemoryEventLog(world.clock)
    collector = replace(world.collector, log=present)
    (claimed,) = collector.claim(DueHost(HOST), lease_s=20, limit=1)
    assert collector.settle(claimed, GONE) is WebhookState.FAILED
    (given_up,) = present.load(StreamName(webhook.id))
    assert given_up.correlation_id == "job-1"


@pytest.mark.parametrize("delivered", [False, True])
def test_settled_try_is_recorded_with_its_answer(*, delivered: bool) -> None:
    world = World()
    world.run("job-1", completed())
    (webhook,) = world.collect()
    world.clock.advance(1)
    answer = DeliveryResult(status=200)
    if not delivered:
        answer = DeliveryResult(status=500, error="no", retry_after_s=30)
    world.fail(answer)
    kept = world.store.rows[webhook.id]
    assert (kept.status, kept.error) == (answer.status, answer.error)
    assert kept.last_at == "2026-01-01T00:00:01.000000Z"
    assert kept.next_at == (None if delivered else "2026-01-01T00:00:31.000000Z")
