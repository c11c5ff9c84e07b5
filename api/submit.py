"""Turns a request into jobs and opens their items, or joins the job of an earlier equal request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from api.app import App
from api.generation import ParsedRequest, start_after_of
from api.http.messages import Request
from api.http.operation import IDEMPOTENCY_KEY, is_retry
from api.streaming.feed import OpenJob
from api.streaming.readers import CLIENT_GONE, JobReading
from domain.audit.recorded_answers import LoggedAnswers
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest, QueueUnavailable, SemanticError
from domain.events.job import JobSubmitted
from domain.job.history_matching import match_history
from domain.job.request_dedup import JoinTarget, RequestRepeat, is_read_by_another, job_to_join
from domain.job.state import Job, first_status
from domain.job.stranded import awaits_model
from domain.job.submit import (
    UNSEALED,
    Accepted,
    NewJob,
    RecordedBy,
    asked_of,
    asking,
    idempotency_digest,
    is_repeat,
    line_length,
    require_hold,
    require_room,
)
from domain.values import AgentId, JobId, JobStatus, Owner, Priority, digest_of, rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedRequest:
    """A parsed request and the earlier jobs that it may repeat.

    Attributes:
        repeat: Whether the request may join an earlier job.
        alike: Jobs with the same digest, newest first.
        accepted: The job, once one is recorded.
    """

    parsed: ParsedRequest
    command: NewJob
    repeat: RequestRepeat
    alike: Sequence[Job] = ()
    accepted: Accepted | None = None


#: Jobs with the same digest, newest first, that a repeat may join.
ALIKE_MAX: Final = 16

Parse = Callable[[], ParsedRequest]
SubmittedT = TypeVar("SubmittedT", "Accepted", "_PreparedRequest")


def bound_model(app: App, parsed: ParsedRequest) -> str | None:
    """Return the model that a request is bound to; ``None`` if it follows the loaded one.

    Raises:
        InvalidRequest: The model is of another kind.
        ModelNotFound: The name is unknown.
    """
    if not parsed.names_model:
        return None
    return app.registry().bind(parsed.chat.model, embeds=parsed.chat.embedding is not None)


def _require_model(app: App, command: NewJob) -> None:
    """Refuse a request that cannot wait for its model; blocks.

    Raises:
        ModelNotLoaded: No worker has the model.
    """
    if command.submitted.bound_model is not None and not command.submitted.waits_for_model:
        embeds = command.request.embedding is not None
        app.models.require(command.submitted.bound_model, embeds=embeds)


#: Characters of a User-Agent that are kept.
CLIENT_CHARS_MAX: Final = 256
#: The dialect whose requests give agents their names; others send sessions of their clients.
_NAMING_PROTOCOL: Final = "jobs"


def job_of(
    app: App, parsed: ParsedRequest, request: Request, *, protocol: str, waits_for_model: bool
) -> NewJob:
    """Return the job of a request, without its digest; blocks.

    Raises:
        AgentExists: The agent belongs to another key.
        InvalidRequest: The idempotency key, the webhook or a strict schema is not valid.
        ModelNotFound: There is no model of that name.
        RateLimited: The agent sends too many requests.
    """
    key = IDEMPOTENCY_KEY.read(request)
    request.marks.warning = parsed.warning()
    limits = app.job_limits
    is_named = protocol == _NAMING_PROTOCOL or parsed.claim is not None
    identity = app.ownership.identify(request.caller, parsed.agent, is_named=is_named)
    app.agents.count_request(identity.agent)
    app.ownership.require_earlier(request.caller, parsed.after)
    now = app.clock.now()
    start_after = start_after_of(parsed.start_after, now)
    since = now if start_after is None else start_after
    submitted = JobSubmitted(
        protocol=protocol,
        model=parsed.chat.model,
        request=UNSEALED,
        sampling=parsed.chat.sampling,
        max_tokens=parsed.chat.max_tokens,
        priority=parsed.priority,
        agent=identity.agent,
        attempts_max=limits.attempts_max,
        worker_deaths_max=limits.worker_deaths_max,
        idempotency=idempotency_digest(key, identity.keyspace) if key is not None else None,
        start_after=None if start_after is None else rfc3339(start_after),
        after=parsed.after,
        is_skippable=parsed.is_skippable,
        deadline=_instant_in(since, parsed.start_within_s),
        finish_deadline=_instant_in(since, parsed.finish_within_s),
        webhook=None if parsed.webhook is None else app.webhook_policy.url_of(parsed.webhook),
        bound_model=bound_model(app, parsed),
        waits_for_model=waits_for_model,
        trace=str(request.trace),
        owner=identity.owner,
        cache_owner=identity.cache_owner,
        labels=parsed.labels,
        urgency=parsed.urgency,
    )
    if parsed.unique is not None and key is not None:
        # The key of a request that got an earlier job would belong to none.
        raise InvalidRequest("exclude the header Idempotency-Key", field="unique")
    return NewJob(
        submitted=_only_one(submitted, parsed, identity.keyspace, now),
        request=parsed.chat,
        correlation_id=request.id,
        client=(request.headers.get("user-agent") or "")[:CLIENT_CHARS_MAX] or None,
        wire=parsed.wire,
        warning=request.marks.warning,
        keyspace=identity.keyspace,
    )


def _only_one(
    submitted: JobSubmitted, parsed: ParsedRequest, keyspace: str, now: datetime
) -> JobSubmitted:
    """Return the job as the only one of its kind, if the request wants that."""
    if (unique := parsed.unique) is None:
        return submitted
    digest = unique.digest(submitted, parsed.chat, keyspace)
    until = _instant_in(now, unique.seconds)
    return replace(submitted, unique=digest, unique_until=until)


def _instant_in(since: datetime, seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(since + timedelta(seconds=seconds))


def accept_job(
    app: App,
    parse: Parse,
    request: Request,
    *,
    protocol: str,
    waits_for_model: bool = True,
    recorded_by: RecordedBy | None = None,
) -> Accepted:
    """Record a job and enqueue it, or return the job of the same idempotency key; blocks.

    Args:
        recorded_by: As in ``NewJob``.

    Raises:
        ConcurrencyConflict: See ``JobSubmission.submit``.
        InvalidRequest: The request is not valid.
        IdempotencyKeyReused: The key belongs to another request.
        LogUnavailable: No job was accepted.
        ModelNotFound: There is no model of that name.
        Overloaded: Too many jobs are waiting.
        RateLimited: The agent sends too many requests.
    """
    parsed = parse()
    command = job_of(app, parsed, request, protocol=protocol, waits_for_model=waits_for_model)
    command = replace(command, recorded_by=recorded_by)
    accepted = _submit_parsed(app, command, app.ids.job_id(), parsed)
    attached, joined = accepted.attached, accepted.joined_trace
    request.marks.accept(accepted.job_id, attached=attached, joined_trace=joined)
    return accepted


async def open_answer(
    app: App, parse: Parse, request: Request, *, protocol: str
) -> tuple[ParsedRequest, OpenJob]:
    """Submit a request that wants one answer, or join its earlier job; open the items.

    The job is cancelled when its last connection ends early and no repeat joins it in time.

    Raises:
        InvalidRequest: The request is not valid.
        IdempotencyKeyReused: The key belongs to another request.
        LogUnavailable: No job was accepted.
        ModelNotFound: There is no model of that name.
        ModelNotLoaded: The request is bound to a model that no worker has.
        Overloaded: Too many jobs are waiting.
        QueueUnavailable: The job cannot be enqueued; it was accepted and cancelled again.
        RateLimited: The agent sends too many requests.
    """
    prepared, job = await _open_first(app, parse, request, protocol=protocol)
    assert job is not None, "a request for several answers belongs to open_answers"  # noqa: S101
    return prepared.parsed, job


async def _open_first(
    app: App, parse: Parse, request: Request, *, protocol: str
) -> tuple[_PreparedRequest, OpenJob | None]:
    """Prepare a request and open its job; see ``open_answer``.

    A request without earlier equal ones takes one call of the executor.

    Returns:
        No job where the request wants several answers; nothing is recorded then.
    """
    job_id = app.ids.job_id()
    blocking = partial(_prepare_and_submit, app, parse, request, protocol, job_id)
    prepared, job = await _call_subscribed(app, job_id, blocking, request)
    if prepared.accepted is not None:
        return prepared, await _open(app, prepared.accepted, job, request)
    await job.close()
    if prepared.parsed.more:
        return prepared, None
    target = await _find_joining(app, prepared.command, prepared.repeat, alike=prepared.alike)
    if target is not None:
        return prepared, await _join(app, target, request)
    return prepared, await _open_new(
        app,
        partial(submit_job, app, prepared.command, seeded=prepared.parsed.seeded),
        request,
    )


async def _open_new(app: App, submit_as: Callable[[JobId], Accepted], request: Request) -> OpenJob:
    """Open the items of the job that ``submit_as`` records; see ``open_answer``."""
    job_id = app.ids.job_id()
    accepted, job = await _call_subscribed(app, job_id, partial(submit_as, job_id), request)
    return await _open(app, accepted, job, request)


async def _find_joining(
    app: App,
    command: NewJob,
    repeat: RequestRepeat,
    *,
    alike: Sequence[Job] | None = None,
) -> JoinTarget | None:
    """Return the earlier job that a request should join, if there is one.

    The caller must call ``_join`` before it awaits anything else.

    Args:
        command: The job to submit otherwise; one with an idempotency key joins nothing here.
        repeat: Whether the request may join a job.
        alike: From ``_PreparedRequest``; ``None`` reads them.
    """
    if (
        command.submitted.asked is None
        or command.submitted.idempotency is not None
        or not repeat.may_join
    ):
        return None
    state = app.readers.connections.state
    if alike is None:
        alike = await app.call(_alike, app, command)
    target = job_to_join(alike, repeat, state)
    if target is None and is_read_by_another(alike, repeat, state):
        # The client may have closed that connection a moment ago and repeats on another one.
        await app.readers.connections.wait_for_departure(app.job_limits.dedup_grace_s)
        alike = await app.call(_alike, app, command)
        target = job_to_join(alike, repeat, state)
    return target


async def _join(app: App, target: JoinTarget, request: Request) -> OpenJob:
    """Open the items of an earlier job; the log records who joined it."""
    # Counted as a reader before the first await, so that the job is not cancelled meanwhile.
    reading = app.readers.begin(target.job_id)
    try:
        joined = await app.call(
            app.job_submission.attach,
            target.job_id,
            reason=target.reason,
            request_id=request.id,
            trace=str(request.trace),
        )
    except BaseException:
        reading.abandon(CLIENT_GONE)
        raise
    return await _open_existing(app, target, reading, request, joined.joined_trace)


def submit_job(
    app: App,
    command: NewJob,
    job_id: JobId,
    *,
    seeded: bool,
    claim: Callable[[JobId], None] | None = None,
) -> Accepted:
    """Record a job and enqueue it if there is room; blocks. See ``domain`` ``submit``."""
    if command.submitted.asked is None:
        command = asking(command, asked_of(command, seeded=seeded))
    matched = with_history(app, command.request, command.submitted.agent, command.answers_to)
    command = replace(command, request=matched)
    _admit(app, [command])
    return app.job_submission.submit(command, job_id=job_id, claim=claim)


def _admit(app: App, commands: Sequence[NewJob]) -> None:
    """Refuse the jobs of one request, at least one, where there is no room; blocks.

    Raises:
        Draining: No new jobs are accepted.
        ModelNotLoaded: They cannot wait for their model, and no worker has it.
        Overloaded: Too many jobs are waiting.
        RateLimited: The agent has too many open jobs, or its key the share of the queue.
    """
    views, first = app.views, commands[0]
    now = rfc3339(app.clock.now())
    fresh = sum(not is_repeat(one.submitted, views, at=now) for one in commands)
    if not fresh:
        return
    app.controls.require_admission()
    if first_status(first.submitted) is JobStatus.HELD:
        require_hold(first.answers_to, views)
        return
    _require_model(app, first)
    require_room(
        first.submitted.priority,
        jobs_max=app.job_limits.queue_limit_of(first.submitted.priority),
        views=views,
        eta=app.eta,
        jobs=fresh,
        memory_wait_s=_memory_wait_of(app, first),
        owner=first.answers_to,
        length_of=partial(
            line_length,
            model=first.submitted.bound_model,
            has_own_line=app.models.has_own_line,
        ),
    )
    app.agents.require_place(first.submitted.agent, views, fresh)


def _memory_wait_of(app: App, job: NewJob) -> float:
    """Return how long others may wait for memory before a job is refused; 0 for any time."""
    if job.request.embedding is not None:
        return 0.0  # vectors take no memory of contexts
    waits = job.submitted.waits_for_model or job.submitted.priority is not Priority.INTERACTIVE
    return 0.0 if waits else app.job_limits.memory_wait_s


def with_history(
    app: App, request: ChatRequest, agent: AgentId | None, answers_to: Owner | None
) -> ChatRequest:
    """Return the request with the origins of its turns; blocks. See ``match_history``."""
    answers = LoggedAnswers(log=app.log, payloads=app.payloads)
    return match_history(request, agent, views=app.views, answers=answers, owner=answers_to)


def _prepare_and_submit(
    app: App, parse: Parse, request: Request, protocol: str, job_id: JobId
) -> _PreparedRequest:
    """Parse, and record the job unless an earlier one may be joined or several are wanted."""
    parsed = parse()
    command = job_of(app, parsed, request, protocol=protocol, waits_for_model=False)
    since = app.clock.now() - timedelta(seconds=app.job_limits.join_window_s)
    repeat = RequestRepeat(
        is_retry=is_retry(request.headers),
        has_session=parsed.agent is not None,
        is_repeatable=parsed.is_repeatable,
        since=rfc3339(since),
    )
    prepared = _PreparedRequest(parsed=parsed, command=command, repeat=repeat)
    if parsed.more:
        return prepared
    if command.submitted.idempotency is None and parsed.claim is None and repeat.may_join:
        asked = asked_of(command, seeded=parsed.seeded)
        command = asking(command, asked)
        alike = _alike(app, command)
        if alike:
            # Whether one of them can be joined depends on connections of the event loop.
            return replace(prepared, command=command, alike=alike)
    return replace(prepared, accepted=_submit_parsed(app, command, job_id, parsed))


def _submit_parsed(app: App, command: NewJob, job_id: JobId, parsed: ParsedRequest) -> Accepted:
    """Record the job of a request, and the turn that it is; blocks."""
    accepted = submit_job(app, command, job_id, seeded=parsed.seeded, claim=parsed.claim)
    if accepted.attached is not None and parsed.claim is not None:
        # The process may have died between the job and the turn the first time.
        parsed.claim(accepted.job_id)
    return accepted


def _alike(app: App, command: NewJob) -> Sequence[Job]:
    """Return the jobs that a request may repeat, newest first; blocks.

    They are of equal requests with the same binding, and do not wait for their model.
    """
    assert command.submitted.asked is not None  # noqa: S101 - only such a request joins
    bound = command.submitted.bound_model
    return tuple(
        job
        for job in app.views.alike(command.submitted.asked, limit=ALIKE_MAX)
        if job.submitted.bound_model == bound and not awaits_model(job, app.models)
    )


def _require_model_of(app: App, job_id: JobId) -> None:
    """Refuse to read a job that waits for its model; blocks.

    Raises:
        ModelNotLoaded: No worker has the model.
    """
    job = app.views.get(job_id)
    if job is not None and job.submitted.bound_model is not None and not job.status.is_terminal:
        app.models.require(job.submitted.bound_model, embeds=job.kind == "embedding")


async def _call_subscribed(
    app: App, job_id: JobId, blocking: Callable[[], SubmittedT], request: Request
) -> tuple[SubmittedT, OpenJob]:
    """Run a submission on the executor, its items subscribed beforehand.

    The submission is not cancelled with its request: a job that is just being recorded then
    gets its cancellation in the background.
    """
    job = OpenJob(job_id, app.feed, request)
    submitting = asyncio.ensure_future(app.call(blocking))
    try:
        return await asyncio.shield(submitting), job
    except asyncio.CancelledError:
        app.background.start(_abandon_after(app, submitting, job))
        raise
    except BaseException:
        await job.close()
        raise


async def _abandon_after(app: App, submitting: asyncio.Future[SubmittedT], job: OpenJob) -> None:
    await asyncio.wait([submitting])
    if submitting.exception() is None:
        result = submitting.result()
        accepted = result if isinstance(result, Accepted) else result.accepted
        if accepted is not None:
            app.readers.begin(accepted.job_id).abandon(CLIENT_GONE)
    await job.close()


async def _open(app: App, accepted: Accepted, job: OpenJob, request: Request) -> OpenJob:
    if accepted.attached is not None:
        await job.close()
        await app.call(_require_model_of, app, accepted.job_id)
    reading = app.readers.begin(accepted.job_id)
    if accepted.attached is not None:
        target = JoinTarget(job_id=accepted.job_id, reason=accepted.attached)
        trace = accepted.joined_trace
        return await _open_existing(app, target, reading, request, trace)
    request.marks.accept(accepted.job_id)
    if not accepted.queued:
        reading.revoke(QueueUnavailable.code)
        await job.close()
        raise QueueUnavailable("the queue is not reachable just now")
    job.start()
    job.read_by(reading)
    return job


async def _open_existing(
    app: App, target: JoinTarget, reading: JobReading, request: Request, trace: str | None
) -> OpenJob:
    try:
        job = await app.feed.open_job(target.job_id, request)
    except BaseException:
        reading.abandon(CLIENT_GONE)
        raise
    request.marks.accept(target.job_id, attached=target.reason, joined_trace=trace)
    job.read_by(reading, attached=target.reason)
    return job


#: The reason of a cancellation because another job of the same request was refused.
OTHERS_REFUSED: Final = "other_answers_refused"


async def open_answers(
    app: App, parse: Parse, request: Request, *, protocol: str
) -> tuple[ParsedRequest, tuple[OpenJob, ...]]:
    """Open a job for each answer of a request; see ``open_answer``.

    Each answer joins the job of the same place in an earlier equal request. If one job is refused,
    those that were accepted before it are cancelled.

    Raises:
        InvalidRequest: The request is not valid, or wants more answers than the queue ever takes.
        IdempotencyKeyReused: The key belongs to another request.
        LogUnavailable: No job was accepted.
        Overloaded: There is no room for all of them.
        QueueUnavailable: The jobs cannot be enqueued; the accepted ones are cancelled again.
        RateLimited: The agent sends too many requests.
    """
    prepared, job = await _open_first(app, parse, request, protocol=protocol)
    if job is not None:
        return prepared.parsed, (job,)
    return prepared.parsed, await _open_each(app, prepared, request)


async def _open_each(app: App, prepared: _PreparedRequest, request: Request) -> tuple[OpenJob, ...]:
    commands = await app.call(_commands, app, prepared)
    repeat = prepared.repeat
    fresh = [one for one in commands if await _find_joining(app, one, repeat) is None]
    if fresh:
        await app.call(_admit, app, fresh)
    opened: list[OpenJob] = []
    try:
        for command in commands:
            # Looked up again: the job that was found may have been given up since.
            target = await _find_joining(app, command, repeat) if command not in fresh else None
            if target is not None:
                opened.append(await _join(app, target, request))
            else:
                opened.append(await _open_new(app, partial(_record, app, command), request))
    except BaseException as error:
        await _abandon(opened, error)
        raise
    return tuple(opened)


def _record(app: App, command: NewJob, job_id: JobId) -> Accepted:
    return app.job_submission.submit(command, job_id=job_id)


def _commands(app: App, prepared: _PreparedRequest) -> list[NewJob]:
    """Return a command for each answer.

    Equal answers of one request do not repeat each other, and a repeat of the request finds the
    job of each: the digest covers the whole request and the place of the answer in it.
    """
    whole, parsed = prepared.command, prepared.parsed
    chats, key = parsed.chats, whole.submitted.idempotency
    asked = [asked_of(replace(whole, request=chat), seeded=parsed.seeded) for chat in chats]
    request = digest_of("\n".join(asked).encode())
    turns: list[tuple[Message, ...]] = []
    for place, chat in enumerate(chats):
        if place and chat.messages == chats[place - 1].messages:
            turns.append(turns[-1])
        else:
            known = with_history(app, chat, whole.submitted.agent, whole.answers_to)
            turns.append(known.messages)
    return [
        replace(
            whole,
            submitted=replace(
                whole.submitted,
                asked=digest_of(f"{request}\nanswer {place}".encode()),
                idempotency=key
                if key is None or place == 0
                else digest_of(f"{key}\nanswer {place}".encode()),
                # The webhook is called once, for the first answer.
                webhook=whole.submitted.webhook if place == 0 else None,
            ),
            # Raw prompts have no turns.
            request=replace(chat, messages=turns[place]) if chat.raw is None else chat,
        )
        for place, chat in enumerate(chats)
    ]


async def _abandon(opened: Sequence[OpenJob], error: BaseException) -> None:
    for job in opened:
        if not isinstance(error, SemanticError):
            job.abandon(CLIENT_GONE)
        elif job.attached is None and job.reading is not None:
            job.reading.revoke(OTHERS_REFUSED)
        else:
            job.abandon(OTHERS_REFUSED)
        await job.close()
