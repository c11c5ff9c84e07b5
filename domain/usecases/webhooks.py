"""Find the ends that somebody wants to be told of, and note how telling them went.

The log is followed by position. The webhooks that an event leads to are kept together with that
position, so a crash anywhere leads to each of them once. A try is noted as begun before it is made
and as ended after it: a crash in between makes it late and may repeat it, under the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from domain.batch.state import BATCH_PREFIX, Batch, BatchId, BatchState, evolve
from domain.errors import ConcurrencyConflict, InvalidRequest, WebhookNotFound
from domain.events.batch import BatchEnded, BatchEvent, BatchFailed
from domain.events.job import JobCancelled, JobCompleted, JobExpired, JobFailed, JobSubmitted
from domain.events.webhook import WebhookEvent, WebhookGivenUp, WebhookRetried
from domain.job.view import JobView, project_job
from domain.log.codec import decode_event
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import Clock, IdSource
from domain.values import StreamName, rfc3339
from domain.webhook.delivery import (
    SCHEDULE_S,
    DeliveryResult,
    Webhook,
    WebhookId,
    WebhookState,
    next_try,
    webhook_id,
)
from domain.webhook.ports import WebhookStore
from domain.webhook.targets import parse_target

#: Ends that are looked at in one go.
PAGE_EVENTS: Final = 200
_JOB_ENDS: Final = {
    JobCompleted.__name__: "job.completed",
    JobFailed.__name__: "job.failed",
    JobCancelled.__name__: "job.cancelled",
    JobExpired.__name__: "job.expired",
}
_ENDS: Final = (*_JOB_ENDS, BatchEnded.__name__, BatchFailed.__name__)

Describe = Callable[[JobView], Mapping[str, Any]]
DescribeBatch = Callable[[Batch], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookCollector:
    """What following the log and noting tries needs.

    Attributes:
        log: Tells of ends; told when a webhook is given up.
        store: Keeps the webhooks.
        ids: Names for events.
        clock: Tells when tries are due.
        describe_job: The ``data`` of a job, as it was at its end.
        describe_batch: The ``data`` of a batch.
        urls: Receivers of every end, beside the one that a job names.
        batch_lines: Whether those hear of the lines of batches too.
        waits_s: Seconds before the second try and so on.
        kept_s: How long one that is over is shown.
    """

    log: EventLog
    store: WebhookStore
    ids: IdSource
    clock: Clock
    describe_job: Describe
    describe_batch: DescribeBatch
    urls: tuple[str, ...] = ()
    batch_lines: bool = False
    waits_s: tuple[float, ...] = SCHEDULE_S
    kept_s: float = 7 * 24 * 3600.0


def collect_webhooks(desk: WebhookCollector, *, after: int) -> int:
    """Keep the webhooks of the next ends in the log.

    Args:
        desk: What is needed.
        after: The last position that was looked at; what is behind the store's is looked at again.

    Returns:
        The position of the last end that was looked at; ``after`` if there is none above it.

    Raises:
        LogUnavailable: Nothing was kept; call again.
    """
    ends = desk.log.read_all(after=after, limit=PAGE_EVENTS, types=_ENDS)
    if not ends:
        return after
    fresh = [webhook for end in ends for webhook in _webhooks_of(end, desk)]
    position = ends[-1].position
    # Reading again what leads to nothing costs less than a commit for every few jobs.
    if fresh or len(ends) == PAGE_EVENTS:
        desk.store.add(fresh, position=position)
    return position


def settle_try(webhook: Webhook, answer: DeliveryResult, desk: WebhookCollector) -> WebhookState:
    """Note how a try ended, and in the log if it was the last one.

    Raises:
        LogUnavailable: It was not noted; the webhook will be tried again.
    """
    now = desk.clock.now()
    state, next_at = WebhookState.DELIVERED, None
    if answer.error is not None and not answer.is_final and webhook.attempts <= len(desk.waits_s):
        state = WebhookState.PENDING
        next_at = rfc3339(next_try(webhook, answer, now, desk.waits_s))
    elif answer.error is not None:
        state = WebhookState.FAILED
        _give_up(webhook, answer.error, answer.status, desk)
    desk.store.settle(
        webhook.id,
        attempt=webhook.attempts,
        state=state,
        answer=answer,
        at=rfc3339(now),
        next_at=next_at,
    )
    return state


def claim_webhooks(
    host: str, desk: WebhookCollector, *, lease_s: float, limit: int
) -> tuple[Webhook, ...]:
    """Begin tries of webhooks of a host that are due; see ``WebhookStore.claim``.

    Args:
        host: Whose.
        desk: What is needed.
        lease_s: When a try that was not settled is taken for dead, in seconds.
        limit: Most tries to begin.

    Raises:
        LogUnavailable: The store cannot be written.
    """
    now = desk.clock.now()
    until = rfc3339(now + timedelta(seconds=lease_s))
    return desk.store.claim(host, now=rfc3339(now), until=until, limit=limit)


def due_hosts(desk: WebhookCollector, *, limit: int) -> tuple[str, ...]:
    """Return hosts that a try is due for; raises ``LogUnavailable``."""
    return desk.store.due_hosts(rfc3339(desk.clock.now()), limit=limit)


def forget_webhooks(desk: WebhookCollector, *, limit: int = 1000) -> int:
    """Drop webhooks that have been over for ``kept_s``; raises ``LogUnavailable``."""
    before = rfc3339(desk.clock.now() - timedelta(seconds=desk.kept_s))
    return desk.store.forget(before=before, limit=limit)


def retry_webhook(
    name: WebhookId, *, reason: str, log: EventLog, store: WebhookStore, ids: IdSource, clock: Clock
) -> Webhook:
    """Send a webhook again, with all its tries; one that waits for its next try has it now.

    Raises:
        WebhookNotFound: There is none, or it has been over for long.
        LogUnavailable: Nothing was changed.
    """
    found = store.get(name)
    if found is None:
        raise WebhookNotFound(name)
    if found.state is not WebhookState.PENDING:
        _record(found, WebhookRetried(reason=reason), log=log, ids=ids)
    revived = store.revive(name, at=rfc3339(clock.now()))
    if revived is None:
        raise WebhookNotFound(name)
    return revived


def _webhooks_of(end: RecordedEvent, desk: WebhookCollector) -> Sequence[Webhook]:
    events = [one for one in desk.log.load(end.stream) if one.version <= end.version]
    if not events or events[0].version != 1:
        return ()  # its beginning has been archived
    if end.type in _JOB_ENDS:
        return _webhooks_of_job(events, desk)
    batch = Batch(id=BatchId(end.stream))
    for recorded in events:
        event = decode_event(recorded.type, recorded.schema_version, recorded.data)
        assert isinstance(event, BatchEvent)
        batch = evolve(batch, event, recorded.recorded_at)
    urls = [batch.facts.webhook, *desk.urls]
    return _messages(batch_event(batch), urls, end, desk.describe_batch(batch), desk)


def _webhooks_of_job(events: Sequence[RecordedEvent], desk: WebhookCollector) -> Sequence[Webhook]:
    first, end = events[0], events[-1]
    submitted = decode_event(first.type, first.schema_version, first.data)
    assert isinstance(submitted, JobSubmitted)
    is_line = first.correlation_id.startswith(BATCH_PREFIX)
    everywhere = () if is_line and not desk.batch_lines else desk.urls
    urls = [submitted.webhook, *everywhere]
    if not any(urls):
        return ()
    view: JobView | None = None
    for recorded in events:
        view = project_job(view, recorded)
    assert view is not None
    return _messages(_JOB_ENDS[end.type], urls, end, desk.describe_job(view), desk)


def batch_event(batch: Batch) -> str:
    """Return what the end of a batch is called, in OpenAI's words."""
    if batch.state is BatchState.FAILED:
        return "batch.failed"
    if batch.cancel_requested_at is not None:
        return "batch.cancelled"
    is_late = batch.counts is not None and batch.counts.expired
    return "batch.expired" if is_late else "batch.completed"


def _messages(
    what: str,
    urls: Sequence[str | None],
    end: RecordedEvent,
    data: Mapping[str, Any],
    desk: WebhookCollector,
) -> Sequence[Webhook]:
    message = {"type": what, "timestamp": end.recorded_at, "data": data}
    body = json.dumps(message, separators=(",", ":")).encode()
    now = rfc3339(desk.clock.now())
    return [
        Webhook(
            id=webhook_id(end.event_id, url),
            subject=end.stream,
            event=what,
            url=url,
            host=_host(url),
            position=end.position,
            body=body,
            created_at=now,
            next_at=now,
        )
        for url in dict.fromkeys(urls)
        if url
    ]


def _host(url: str) -> str:
    try:
        target = parse_target(url)
    except InvalidRequest:
        return ""  # sending it will say why
    return f"{target.host}:{target.port}"


def _give_up(webhook: Webhook, error: str, status: int | None, desk: WebhookCollector) -> None:
    event = WebhookGivenUp(
        subject=webhook.subject,
        event=webhook.event,
        url=webhook.url,
        attempts=webhook.attempts,
        error=error,
        status=status,
    )
    _record(webhook, event, log=desk.log, ids=desk.ids)


def _record(webhook: Webhook, event: WebhookEvent, *, log: EventLog, ids: IdSource) -> None:
    """Append to the stream of a webhook, unless its last event says so already."""
    stream = StreamName(webhook.id)
    before = log.load(stream)
    if before and before[-1].type == type(event).__name__:
        return  # a crash came between this and what follows it
    told = log.read_all(stream=StreamName(webhook.subject), limit=1)
    draft = Draft(
        event_id=ids.event_id(),
        event=event,
        correlation_id=told[0].correlation_id if told else webhook.subject,
        causation_id=before[-1].event_id if before else None,
    )
    try:
        log.append(stream, [draft], expected_version=len(before))
    except ConcurrencyConflict:
        return  # somebody else has just noted it
