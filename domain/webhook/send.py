"""Collects webhooks for ends and for subscriptions, and records their deliveries.

The log is read by position. The webhooks of an event are stored together with that position, so
each is stored exactly once, across crashes too. A try is recorded before it is made and after it:
a crash in between delays it and may repeat it, under the same id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from domain.batch.state import BATCH_PREFIX, Batch, BatchId, BatchState, evolve
from domain.errors import ConcurrencyConflict, InvalidRequest, WebhookNotFound
from domain.events.batch import (
    BatchEnded,
    BatchFailed,
    WebhookEvent,
    WebhookGivenUp,
    WebhookRetried,
)
from domain.events.job import JobCancelled, JobCompleted, JobExpired, JobFailed, JobSubmitted
from domain.job.state import Job, fold_recorded
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import Draft, EventFilter, RecordedEvent
from domain.log.subscriptions import Subscription, Subscriptions
from domain.ports import Clock, IdSource
from domain.values import Owner, StreamName, rfc3339
from domain.webhook.delivery import (
    KEPT_S,
    SCHEDULE_S,
    DeliveryResult,
    DueHost,
    Webhook,
    WebhookId,
    WebhookState,
    WebhookStore,
    next_try,
    webhook_id,
)
from domain.webhook.targets import parse_target

#: Events read at a time.
PAGE_EVENTS: Final = 200
_JOB_ENDS: Final = {
    JobCompleted.__name__: "job.completed",
    JobFailed.__name__: "job.failed",
    JobCancelled.__name__: "job.cancelled",
    JobExpired.__name__: "job.expired",
}
_ENDS: Final = (*_JOB_ENDS, BatchEnded.__name__, BatchFailed.__name__)
_OF_WEBHOOKS: Final = frozenset({WebhookGivenUp.__name__, WebhookRetried.__name__})

Describe = Callable[[Job], Mapping[str, Any]]
DescribeBatch = Callable[[Batch], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookCollector:
    """Stores the webhooks of ends, and records their deliveries; one per process.

    Attributes:
        describe_job: Returns the ``data`` of a job at its end.
        describe_batch: Returns the ``data`` of a batch.
        urls: Receivers of every end, besides the URL that a job names.
        subscriptions: Those with a URL receive every event that they want.
        waits_s: Seconds before the second try and so on.
    """

    log: EventLog
    store: WebhookStore
    ids: IdSource
    clock: Clock
    describe_job: Describe
    describe_batch: DescribeBatch
    urls: tuple[str, ...] = ()
    subscriptions: Subscriptions | None = None
    waits_s: tuple[float, ...] = SCHEDULE_S

    def collect(self, *, after: int) -> int:
        """Store the webhooks of the next ends in the log, and those of subscriptions.

        Args:
            after: Position of the last event that was read; may be above that of the store.

        Returns:
            Position of the last event that was read now; ``after`` if there is none above it.

        Raises:
            LogUnavailable: Nothing was stored; call again.
        """
        pushing = _pushing(self.subscriptions)
        types = {*_ENDS, *(name for reader in pushing for name in reader.wanted.types)}
        events = self.log.select(EventFilter(types=sorted(types)), after=after, limit=PAGE_EVENTS)
        if not events:
            return after
        fresh = [webhook for event in events for webhook in _webhooks_of(event, pushing, self)]
        position = events[-1].position
        # To read events without webhooks again is cheaper than a commit for every few jobs.
        if fresh or len(events) == PAGE_EVENTS:
            self.store.add(fresh, position=position)
        return position

    def settle(self, webhook: Webhook, answer: DeliveryResult) -> WebhookState:
        """Record the end of a try; if it was the last one, in the log too.

        Raises:
            LogUnavailable: Nothing was recorded; the webhook will be tried again.
        """
        now = self.clock.now()
        state, next_at = WebhookState.DELIVERED, None
        if (
            answer.error is not None
            and not answer.is_final
            and webhook.attempts <= len(self.waits_s)
        ):
            state = WebhookState.PENDING
            next_at = rfc3339(next_try(webhook, answer, now, self.waits_s))
        elif answer.error is not None:
            state = WebhookState.FAILED
            _give_up(webhook, answer.error, answer.status, self)
        self.store.settle(
            webhook.id,
            attempt=webhook.attempts,
            state=state,
            answer=answer,
            at=rfc3339(now),
            next_at=next_at,
        )
        return state

    def claim(self, due: DueHost, *, lease_s: float, limit: int) -> tuple[Webhook, ...]:
        """Begin tries of webhooks of a host that are due; see ``WebhookStore.claim``.

        Args:
            lease_s: Seconds after which an unsettled try counts as dead.

        Raises:
            LogUnavailable: The store cannot be written.
        """
        now = self.clock.now()
        until = rfc3339(now + timedelta(seconds=lease_s))
        return self.store.claim(due, now=rfc3339(now), until=until, limit=limit)

    def due_hosts(self, *, limit: int) -> tuple[DueHost, ...]:
        """Return hosts with a due try, by turns of their owners; raises ``LogUnavailable``."""
        return self.store.due_hosts(rfc3339(self.clock.now()), limit=limit)

    def forget(self, *, limit: int = 1000) -> int:
        """Delete webhooks that ended ``KEPT_S`` ago; raises ``LogUnavailable``."""
        before = rfc3339(self.clock.now() - timedelta(seconds=KEPT_S))
        return self.store.forget(before=before, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRetry:
    """Sends webhooks again on request; one per process."""

    log: EventLog
    store: WebhookStore
    ids: IdSource
    clock: Clock

    def retry(self, name: WebhookId, *, reason: str) -> Webhook:
        """Send a webhook again, with all its tries; one that waits for a try gets it now.

        Raises:
            WebhookNotFound: There is none, or it was deleted after its end.
            LogUnavailable: Nothing was changed.
        """
        found = self.store.get(name)
        if found is None:
            raise WebhookNotFound(name)
        if found.state is not WebhookState.PENDING:
            _record(found, WebhookRetried(reason=reason), log=self.log, ids=self.ids)
        revived = self.store.revive(name, at=rfc3339(self.clock.now()))
        if revived is None:
            raise WebhookNotFound(name)
        return revived


def _pushing(subscriptions: Subscriptions | None) -> Sequence[Subscription]:
    readers = () if subscriptions is None else subscriptions.read_all()
    return [reader for reader in readers if reader.created.url is not None]


def _webhooks_of(
    event: RecordedEvent, pushing: Sequence[Subscription], collector: WebhookCollector
) -> Sequence[Webhook]:
    found = list(_webhooks_of_end(event, collector)) if event.type in _ENDS else []
    for reader in pushing:
        created = reader.created
        # What follows from webhooks themselves would never end.
        is_wanted = event.type in reader.wanted.types and event.type not in _OF_WEBHOOKS
        if created.url is not None and is_wanted and event.position > created.position:
            name = f"{event.event_id}:{created.name}"
            urls = {created.url: None}
            data = event.envelope()
            found += _messages(event.type, urls, event, data, collector, trace=None, name=name)
    return found


def _webhooks_of_end(end: RecordedEvent, collector: WebhookCollector) -> Sequence[Webhook]:
    events = [one for one in collector.log.load(end.stream) if one.version <= end.version]
    if not events or events[0].version != 1:
        return ()  # its first events are archived
    if end.type in _JOB_ENDS:
        return _webhooks_of_job(events, collector)
    batch = Batch(id=BatchId(end.stream))
    for recorded in events:
        batch = evolve(batch, recorded)
    facts = batch.facts
    urls = _receivers(facts.webhook, facts.owner, collector.urls)
    data = collector.describe_batch(batch)
    return _messages(batch_event(batch), urls, end, data, collector, trace=facts.trace)


def _webhooks_of_job(
    events: Sequence[RecordedEvent], collector: WebhookCollector
) -> Sequence[Webhook]:
    first, end = events[0], events[-1]
    submitted = decode_recorded(first)
    assert isinstance(submitted, JobSubmitted)
    is_line = first.correlation_id.startswith(BATCH_PREFIX)
    everywhere = () if is_line else collector.urls
    urls = _receivers(submitted.webhook, submitted.owner, everywhere)
    if not urls:
        return ()
    view: Job | None = None
    for recorded in events:
        view = fold_recorded(view, recorded)
    assert view is not None
    data = collector.describe_job(view)
    return _messages(_JOB_ENDS[end.type], urls, end, data, collector, trace=submitted.trace)


def _receivers(
    named: str | None, owner: Owner | None, everywhere: Sequence[str]
) -> Mapping[str, Owner | None]:
    """Return the URLs to call, each with the owner of the request that named it."""
    others: dict[str, Owner | None] = {url: None for url in everywhere if url and url != named}
    return {named: owner, **others} if named else others


def batch_event(batch: Batch) -> str:
    """Return the event type of the end of a batch, as OpenAI names it."""
    if batch.state is BatchState.FAILED:
        return "batch.failed"
    if batch.cancel_requested_at is not None:
        return "batch.cancelled"
    is_late = batch.counts is not None and batch.counts.expired
    return "batch.expired" if is_late else "batch.completed"


def _messages(
    what: str,
    urls: Mapping[str, Owner | None],
    end: RecordedEvent,
    data: Mapping[str, Any],
    collector: WebhookCollector,
    *,
    trace: str | None,
    name: str | None = None,
) -> Sequence[Webhook]:
    """Return a message to each URL; ``name`` is that of the message, by default of its event."""
    message = {"type": what, "timestamp": end.recorded_at, "data": data}
    body = json.dumps(message, separators=(",", ":")).encode()
    now = rfc3339(collector.clock.now())
    return [
        Webhook(
            id=webhook_id(name or end.event_id, url),
            subject=end.stream,
            event=what,
            url=url,
            host=_host(url),
            position=end.position,
            body=body,
            created_at=now,
            next_at=now,
            trace=trace,
            owner=owner,
        )
        for url, owner in urls.items()
    ]


def _host(url: str) -> str:
    try:
        target = parse_target(url)
    except InvalidRequest:
        return ""  # the delivery fails with the reason
    return f"{target.host}:{target.port}"


def _give_up(webhook: Webhook, error: str, status: int | None, collector: WebhookCollector) -> None:
    event = WebhookGivenUp(
        subject=webhook.subject,
        event=webhook.event,
        url=webhook.url,
        attempts=webhook.attempts,
        error=error,
        status=status,
    )
    _record(webhook, event, log=collector.log, ids=collector.ids)


def _record(webhook: Webhook, event: WebhookEvent, *, log: EventLog, ids: IdSource) -> None:
    """Append to the stream of a webhook, unless its last event is of the same type."""
    stream = StreamName(webhook.id)
    before = log.load(stream)
    if before and before[-1].type == type(event).__name__:
        return  # a crash came after this append
    subject = log.select(EventFilter(stream=webhook.subject), limit=1)
    draft = Draft(
        event_id=ids.event_id(),
        event=event,
        correlation_id=subject[0].correlation_id if subject else webhook.subject,
        causation_id=before[-1].event_id if before else None,
    )
    try:
        log.append(stream, [draft], expected_version=len(before))
    except ConcurrencyConflict:
        return  # a concurrent call recorded it
