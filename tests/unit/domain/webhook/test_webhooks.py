from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from domain.batch.state import Batch, BatchId
from domain.errors import LogUnavailable, WebhookNotFound
from domain.events.batch import BatchCancelRequested, BatchEnded, BatchFailed, BatchSubmitted
from domain.events.event import Event
from domain.events.job import JobCancelled, JobExpired, JobFailed, JobRetried
from domain.events.subscription import SubscriptionCreated
from domain.job.state import Job
from domain.log.subscriptions import Subscriptions
from domain.log.trace import new_trace, parse_traceparent
from domain.values import StreamName, Usage, digest_of
from domain.webhook.delivery import (
    KEPT_S,
    DeliveryResult,
    DueHost,
    Webhook,
    WebhookId,
    WebhookState,
)
from domain.webhook.send import (
    PAGE_EVENTS,
    WebhookCollector,
    WebhookRetry,
)
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from tests.support.fakes.webhooks import InMemoryWebhookStore

URL = "https://hooks.example.com/jobs"
FAILED = JobFailed(error="engine_failure", message="no")
ENDED = BatchEnded(succeeded=1, errored=0, canceled=0, expired=0)


class World:
    """A log, a store and a clock; what is claimed is settled by the test."""

    def __init__(self, *, urls: Sequence[str] = ()) -> None:
        self.clock, self.ids = FakeClock(), SequentialIds()
        self.log, self.store = InMemoryEventLog(self.clock), InMemoryWebhookStore()
        self.subscriptions = Subscriptions(self.log, self.ids)
        self.collector = WebhookCollector(
            log=self.log,
            store=self.store,
            ids=self.ids,
            clock=self.clock,
            describe_job=_describe,
            describe_batch=lambda batch: {"id": batch.id, "state": batch.state},
            urls=tuple(urls),
            subscriptions=self.subscriptions,
            waits_s=(5.0, 60.0),
        )

    def happen(self, stream: str, *events: Event, correlation_id: str = "req-1") -> None:
        version = len(self.log.load(StreamName(stream)))
        drafts = [draft(event, correlation_id=correlation_id) for event in events]
        self.log.append(StreamName(stream), drafts, expected_version=version)

    def run(self, name: str, *ends: Event, url: str | None = URL) -> None:
        self.happen(name, replace(submitted(), webhook=url), started(), *ends)

    def collect(self) -> list[Webhook]:
        after = self.store.position()
        while (position := self.collector.collect(after=after)) != after:
            after = position
        return sorted(self.store.rows.values(), key=lambda one: (one.position, one.url))

    def fail(self, answer: DeliveryResult | None = None) -> WebhookState:
        (claimed,) = self.collector.claim(DueHost("hooks.example.com:443"), lease_s=20, limit=9)
        return self.collector.settle(
            claimed, answer or DeliveryResult(status=500, error="HTTP 500")
        )

    def events(self) -> list[str]:
        return [one.type for one in self.log.read_all() if one.stream.startswith("webhook-")]


def _describe(view: Job) -> dict[str, object]:
    return {"id": view.id, "status": view.status, "output": view.output}


def test_a_subscription_with_a_url_receives_each_event_that_it_wants_once() -> None:
    world = World()
    world.happen("job-1", submitted())
    created = SubscriptionCreated(
        name="hook", owner=None, types=("AttemptStarted", "JobCompleted"), position=1, url=URL
    )
    world.subscriptions.create(created, correlation_id="req-1")
    world.happen("job-1", started(), completed())
    world.run("job-2", completed(), url=URL)
    found = world.collect()
    assert [one.event for one in found if one.event[0].isupper()] == [
        "AttemptStarted",
        "JobCompleted",
        "AttemptStarted",
        "JobCompleted",
    ]
    # Its message beside that of the end of the same job has another name.
    assert [one.event for one in found if one.event[0].islower()] == ["job.completed"]
    assert len({one.id for one in found}) == 5
    first = json.loads(found[0].body)
    assert (first["type"], first["data"]["stream"]) == ("AttemptStarted", "job-1")
    world.store.rows.clear()
    assert world.collect() == []
    world.subscriptions.delete(None, "hook", correlation_id="req-1")
    world.run("job-3", completed(), url=None)
    assert world.collect() == []


@pytest.mark.parametrize(
    ("end", "what", "status"),
    [
        (completed(), "job.completed", "completed"),
        (FAILED, "job.failed", "failed"),
        (JobCancelled(attempt=1, usage=Usage()), "job.cancelled", "cancelled"),
        (JobExpired(deadline="2026-01-01T00:00:00Z"), "job.expired", "expired"),
    ],
)
def test_an_end_is_sent_to_the_receiver_that_its_job_names(
    end: Event, what: str, status: str
) -> None:
    world = World()
    world.run("job-1", end)
    world.run("job-2", end, url=None)
    (webhook,) = world.collect()
    assert (webhook.event, webhook.url, webhook.subject) == (what, URL, "job-1")
    message = json.loads(webhook.body)
    assert message["type"] == what
    assert message["timestamp"] == "2026-01-01T00:00:00.000000Z"
    assert (message["data"]["id"], message["data"]["status"]) == ("job-1", status)


def test_each_try_is_a_span_of_the_trace_of_its_job() -> None:
    world = World()
    trace = new_trace(sampled=True)
    job = replace(submitted(), webhook=URL, trace=str(trace))
    world.happen("job-1", job, started(), completed())
    (webhook,) = world.collect()
    tries = [replace(webhook, attempts=number).traceparent() for number in (1, 1, 2)]
    spans = [parse_traceparent(one) for one in tries]
    assert {span.trace_id for span in spans if span} == {trace.trace_id}
    assert tries[0] == tries[1] != tries[2]
    assert replace(webhook, trace=None).traceparent() is None


def test_a_job_that_is_open_is_not_sent() -> None:
    world = World(urls=["https://all.example.com/"])
    world.run("job-1")
    assert world.collect() == []


def test_each_end_of_a_retried_job_is_sent_as_it_was() -> None:
    world = World()
    world.run("job-1", FAILED, JobRetried(reason="api"), started(2), completed(2))
    first, second = world.collect()
    assert [first.event, second.event] == ["job.failed", "job.completed"]
    assert first.id != second.id
    assert json.loads(first.body)["data"]["status"] == "failed"


def test_receivers_of_everything_get_each_job_once() -> None:
    world = World(urls=[URL, "https://all.example.com/"])
    world.run("job-1", completed())
    world.run("job-2", completed(), url=None)
    webhooks = [(one.subject, one.url) for one in world.collect()]
    assert webhooks == [
        ("job-1", "https://all.example.com/"),
        ("job-1", URL),
        ("job-2", "https://all.example.com/"),
        ("job-2", URL),
    ]


def test_lines_of_batches_are_not_sent_everywhere() -> None:
    world = World(urls=["https://all.example.com/"])
    events = (submitted(), started(), completed())
    world.happen("job-1", *events, correlation_id="batch-1")
    assert not world.collect()


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([ENDED], "batch.completed"),
        ([BatchEnded(succeeded=0, errored=0, canceled=0, expired=1)], "batch.expired"),
        ([BatchCancelRequested(), ENDED], "batch.cancelled"),
        ([BatchFailed(errors=digest_of(b""))], "batch.failed"),
    ],
)
def test_the_end_of_a_batch_is_sent(events: list[Event], what: str) -> None:
    world = World(urls=["https://all.example.com/"])
    accepted = BatchSubmitted(
        protocol="anthropic",
        endpoint="/v1/messages",
        content=digest_of(b""),
        lines=1,
        expires_at="2",
        webhook=URL,
    )
    world.happen("batch-1", accepted, *events)
    webhooks = world.collect()
    assert [(one.event, one.subject) for one in webhooks] == [(what, "batch-1")] * 2
    assert json.loads(webhooks[0].body)["data"]["id"] == Batch(id=BatchId("batch-1")).id


def test_reading_the_log_again_keeps_nothing_twice() -> None:
    world = World()
    world.run("job-1", completed())
    before = world.collect()
    assert world.collector.collect(after=0) == world.store.position()
    assert world.collect() == before


def test_ends_without_receivers_move_the_position_a_page_at_a_time() -> None:
    world = World()
    for number in range(PAGE_EVENTS + 1):
        world.run(f"job-{number}", completed(), url=None)
    world.collect()
    assert world.store.position() == 3 * PAGE_EVENTS
    assert world.collector.collect(after=3 * PAGE_EVENTS) == 3 * (PAGE_EVENTS + 1)


def test_a_store_that_is_away_leaves_the_log_to_be_read_again() -> None:
    world = World()
    world.run("job-1", completed())
    world.store.unavailable = True
    with pytest.raises(LogUnavailable):
        world.collector.collect(after=0)
    world.store.unavailable = False
    assert len(world.collect()) == 1


def test_a_failed_try_is_due_again_by_the_schedule_and_then_given_up() -> None:
    world = World()
    world.run("job-1", completed())
    world.collect()
    for wait_s in (5, 60):
        assert world.fail() is WebhookState.PENDING
        world.clock.advance(wait_s - 0.01)
        assert world.collector.due_hosts(limit=9) == ()
        world.clock.advance(wait_s)
        assert world.collector.due_hosts(limit=9) == (DueHost("hooks.example.com:443"),)
    assert world.events() == []
    assert world.fail(DeliveryResult(error="cannot connect")) is WebhookState.FAILED
    assert world.events() == ["WebhookGivenUp"]
    given_up = world.log.read_all()[-1]
    assert given_up.data == {
        "subject": "job-1",
        "event": "job.completed",
        "url": URL,
        "attempts": 3,
        "status": None,
        "error": "cannot connect",
    }
    assert given_up.correlation_id == "req-1"
    assert world.collector.due_hosts(limit=9) == ()


def test_a_final_answer_ends_it_at_once_and_success_is_no_event() -> None:
    world = World()
    for name in ("job-1", "job-2"):
        world.run(name, completed())
    world.collect()
    taken = world.collector.claim(DueHost("hooks.example.com:443"), lease_s=20, limit=9)
    gone = DeliveryResult(status=410, error="HTTP 410", is_final=True)
    assert world.collector.settle(taken[0], gone) is WebhookState.FAILED
    assert world.collector.settle(taken[1], DeliveryResult(status=204)) is WebhookState.DELIVERED
    assert world.events() == ["WebhookGivenUp"]


def test_a_crash_between_the_log_and_the_store_gives_up_once() -> None:
    world = World()
    world.run("job-1", completed())
    world.collect()
    gone = DeliveryResult(status=410, error="HTTP 410", is_final=True)
    (taken,) = world.collector.claim(DueHost("hooks.example.com:443"), lease_s=20, limit=9)
    world.store.unavailable = True
    with pytest.raises(LogUnavailable):
        world.collector.settle(taken, gone)
    world.store.unavailable = False
    world.clock.advance(20)
    assert world.fail(gone) is WebhookState.FAILED
    assert world.events() == ["WebhookGivenUp"]


def test_a_person_can_have_it_sent_again() -> None:
    world = World()
    world.run("job-1", completed())
    (webhook,) = world.collect()

    retries = WebhookRetry(log=world.log, store=world.store, ids=world.ids, clock=world.clock)

    def retry(name: WebhookId) -> Webhook:
        return retries.retry(name, reason="api")

    assert retry(webhook.id).state is WebhookState.PENDING
    assert world.events() == []  # it was pending anyway
    gone = DeliveryResult(status=410, error="HTTP 410", is_final=True)
    world.fail(gone)
    assert retry(webhook.id).attempts == 0
    world.fail(gone)
    assert world.events() == ["WebhookGivenUp", "WebhookRetried", "WebhookGivenUp"]
    with pytest.raises(WebhookNotFound):
        retry(WebhookId("webhook-none"))


def test_what_has_been_over_for_long_is_forgotten() -> None:
    world = World()
    world.run("job-1", completed())
    world.collect()
    world.fail(DeliveryResult(status=200))
    assert world.collector.forget() == 0
    world.clock.advance(KEPT_S + 1)
    assert world.collector.forget() == 1
