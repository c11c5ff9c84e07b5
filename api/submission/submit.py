"""Accepts a request as a job and follows it, or finds the job that the request asked for before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

from api.background.webhooks import webhook_url
from api.http.messages import Request
from api.http.request_headers import IDEMPOTENCY_KEY, is_retry
from api.protocols.shared.parsed_request import ParsedRequest
from api.services import Services
from api.streaming.item_buffer import ItemBuffer
from api.streaming.item_subscription import ItemSubscription, close_items
from api.streaming.open_job import JobReading, OpenJob
from api.streaming.reattach import follow_job
from api.submission.history_matching import attributed
from domain.chat.items import StreamItem
from domain.errors import EngineFailure, QueueUnavailable, SemanticError
from domain.job.commands import SubmitJob
from domain.job.request_dedup import JoinTarget, RequestRepeat, is_read_by_another, job_to_join
from domain.usecases.jobs.submit import Accepted, idempotency_digest, require_room
from domain.values import Digest, JobId, digest_of, rfc3339

#: Characters of a User-Agent that are kept.
CLIENT_CHARS_MAX: Final = 256
#: Jobs that asked the same, newest first, among which a repeat looks for its own.
ALIKE_MAX: Final = 16


async def accept(
    parsed: ParsedRequest, request: Request, services: Services, *, protocol: str
) -> Accepted:
    """Record a job under a fresh id and queue it, or find the one of the same idempotency key.

    Raises:
        InvalidRequest: The idempotency key cannot be one.
        IdempotencyKeyReused: It came before with another request.
        LogUnavailable: Nothing was accepted.
        Overloaded: Too many jobs are waiting.
    """
    command = command_of(parsed, request, services, protocol=protocol)
    return await services.call(
        submit_command, command, parsed.seeded, services.ids.job_id(), services
    )


async def open_job(
    parsed: ParsedRequest, request: Request, services: Services, *, protocol: str
) -> OpenJob:
    """Follow the job that this request asked for before; else accept a fresh one and follow that.

    A job is cancelled when its last connection ended early and nobody asked for it again in time.

    Raises:
        InvalidRequest: The idempotency key cannot be one.
        IdempotencyKeyReused: It came before with another request.
        LogUnavailable: Nothing was accepted.
        Overloaded: Too many jobs are waiting.
        QueueUnavailable: No worker can hear of the job; it was accepted and cancelled again.
    """
    command = command_of(parsed, request, services, protocol=protocol)
    repeat = repeat_of(parsed, request, services)
    if command.idempotency is None and repeat.may_join:
        command = replace(command, asked=await services.call(asked_of, command, parsed.seeded))
        joining = await find_joining(command, repeat, services)
        if joining is not None:
            return await join_job(joining, request, services)
    submitting = partial(submit_command, command, parsed.seeded)
    return await open_fresh(submitting, request, services)


def repeat_of(parsed: ParsedRequest, request: Request, services: Services) -> RequestRepeat:
    """Return what a request says of itself."""
    window = timedelta(seconds=services.rules.join_window_s)
    return RequestRepeat(
        is_retry=is_retry(request.headers),
        has_session=parsed.agent is not None,
        is_repeatable=parsed.is_repeatable,
        since=rfc3339(services.clock.now() - window),
    )


async def find_joining(
    command: SubmitJob, repeat: RequestRepeat, services: Services
) -> JoinTarget | None:
    """Return the job that a request should join, if there is one; a key is looked up elsewhere."""
    asked = command.asked
    if asked is None or command.idempotency is not None or not repeat.may_join:
        return None
    readers = services.readers
    alike = await services.call(services.views.alike, asked, limit=ALIKE_MAX)
    found = job_to_join(alike, repeat, readers.state)
    if found is None and is_read_by_another(alike, repeat, readers.state):
        # Its client may have closed that connection a moment ago and asks again on another one.
        await readers.wait_for_departure(services.rules.settle_s)
        alike = await services.call(services.views.alike, asked, limit=ALIKE_MAX)
        found = job_to_join(alike, repeat, readers.state)
    return found


async def join_job(joining: JoinTarget, request: Request, services: Services) -> OpenJob:
    """Follow a job that was found; the log keeps who joined it."""
    # Counted as read before anything else is awaited, so that its cancellation does not begin.
    reading = JobReading(joining.job_id, services)
    try:
        await services.call(
            services.submission.attach,
            joining.job_id,
            reason=joining.reason,
            request_id=request.id,
        )
        return await _follow_existing(joining.job_id, joining.reason, reading, request, services)
    except BaseException:
        reading.abandon("client_gone")
        raise


async def _follow_existing(
    job_id: JobId, reason: str, reading: JobReading, request: Request, services: Services
) -> OpenJob:
    items = await follow_job(job_id, after=-1, services=services)
    if items is None:  # not for a reader that has nothing yet: it is told at least the end
        raise EngineFailure("the answer of this job cannot be found")
    feed = ItemBuffer(items, request, on_gone=lambda: reading.abandon("client_gone"))
    return OpenJob(id=job_id, feed=feed, reading=reading, attached=reason)


async def open_fresh(
    submit_as: Callable[[JobId, Services], Accepted], request: Request, services: Services
) -> OpenJob:
    """Follow the job that ``submit_as`` records; see ``open_job``."""
    job_id = services.ids.job_id()
    items = ItemSubscription(job_id, services)
    # Not cancelled with this request: a job that was just recorded must not be left to nobody.
    submitting = asyncio.ensure_future(services.call(submit_as, job_id, services))
    try:
        accepted = await asyncio.shield(submitting)
    except asyncio.CancelledError:
        services.background.start(_abandon_after(submitting, items, services))
        raise
    except SemanticError:
        await close_items(items)
        raise
    reading = JobReading(accepted.job_id, services)
    if accepted.attached is not None:
        await close_items(items)
        return await _follow_keyed(accepted.job_id, accepted.attached, reading, request, services)
    if not accepted.queued:
        reading.revoke(QueueUnavailable.code)
        await close_items(items)
        msg = "the queue is not reachable just now"
        raise QueueUnavailable(msg)
    feed = ItemBuffer(items, request, on_gone=lambda: reading.abandon("client_gone"))
    return OpenJob(id=job_id, feed=feed, reading=reading)


async def _follow_keyed(
    job_id: JobId, reason: str, reading: JobReading, request: Request, services: Services
) -> OpenJob:
    try:
        return await _follow_existing(job_id, reason, reading, request, services)
    except BaseException:
        reading.abandon("client_gone")
        raise


async def _abandon_after(
    submitting: asyncio.Future[Accepted], items: AsyncIterator[StreamItem], services: Services
) -> None:
    await asyncio.wait([submitting])
    if submitting.exception() is None:
        JobReading(submitting.result().job_id, services).abandon("client_gone")
    await close_items(items)


def command_of(
    parsed: ParsedRequest, request: Request, services: Services, *, protocol: str
) -> SubmitJob:
    """Return what a request asks for; its digest is left to the executor, for it may be large.

    Raises:
        InvalidRequest: The idempotency key cannot be one, or the webhook may not be called.
        RateLimited: The agent asks too often.
    """
    client = request.headers.get("user-agent")
    key = IDEMPOTENCY_KEY.read(request)
    rules = services.rules
    services.agents.knock(parsed.agent)
    return SubmitJob(
        request=parsed.chat,
        protocol=protocol,
        correlation_id=request.id,
        priority=parsed.priority,
        agent=parsed.agent,
        client=client[:CLIENT_CHARS_MAX] if client else None,
        attempts_max=rules.attempts_max,
        worker_deaths_max=rules.worker_deaths_max,
        idempotency=idempotency_digest(key) if key is not None else None,
        deadline=_instant_in(parsed.start_within_s or rules.start_within_s, services),
        finish_deadline=_instant_in(parsed.finish_within_s or rules.finish_within_s, services),
        webhook=webhook_url(parsed.webhook, services.webhooks),
        wire=parsed.wire,
    )


def _instant_in(seconds: float | None, services: Services) -> str | None:
    if seconds is None:
        return None
    return rfc3339(services.clock.now() + timedelta(seconds=seconds))


def asked_of(command: SubmitJob, seeded: bool) -> Digest:  # noqa: FBT001 - handed to an executor
    """Return a digest that is equal for requests that ask the same for the same."""
    agent = command.agent
    asked = command.request.asked(protocol=command.protocol, agent=agent, seeded=seeded)
    if command.webhook is not None:
        # Whoever wants somebody told must not be given a job that tells nobody, or somebody else.
        asked = digest_of(f"{asked}\n{command.webhook}".encode())
    if command.wire is not None:
        # What the answer shows of its request must be what this caller said.
        asked = digest_of(f"{asked}\n".encode() + command.wire)
    return asked


def submit_command(
    command: SubmitJob,
    seeded: bool,  # noqa: FBT001 - as above
    job_id: JobId,
    services: Services,
    *,
    claim: Callable[[JobId], None] | None = None,
) -> Accepted:
    """Record a job and queue it if there is room; blocks. See ``submit``.

    Raises:
        IdempotencyKeyReused: The key came before with another request.
        LogUnavailable: Nothing was accepted.
        Overloaded: Too many jobs are waiting.
    """
    if command.asked is None:
        command = replace(command, asked=asked_of(command, seeded))
    request = attributed(command.request, command.agent, services)
    command = replace(command, request=request)
    admit([command], services)
    return record(command, job_id, services, claim=claim)


def admit(commands: Sequence[SubmitJob], services: Services) -> None:
    """Refuse jobs that there is no room for; blocks.

    Args:
        commands: Of one request, at least one.
        services: The ports.

    Raises:
        Overloaded: Too many jobs are waiting.
        RateLimited: The agent has too many open jobs.
    """
    views, first = services.views, commands[0]
    # A repeat needs no room.
    fresh = sum(one.idempotency is None or views.keyed(one.idempotency) is None for one in commands)
    if not fresh:
        return
    limit = services.rules.queue_limit_of(first.priority)
    require_room(first.priority, jobs_max=limit, views=views, eta=services.outlook, jobs=fresh)
    services.agents.require_place(first.agent, views, fresh)


def record(
    command: SubmitJob,
    job_id: JobId,
    services: Services,
    *,
    claim: Callable[[JobId], None] | None = None,
) -> Accepted:
    """Record a job that there is room for, and queue it; blocks. See ``submit``."""
    return services.submission.submit(command, job_id=job_id, claim=claim)
