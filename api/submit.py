"""Turns a request into jobs and opens their items, or joins the job of an earlier equal request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from api.access.job_limits import JobLimits
from api.access.rate_limits import AgentLimits
from api.calls import Background, BlockingCalls
from api.http.messages import Request
from api.http.request_headers import is_retry
from api.job_commands import JobCommands, ModelBinding
from api.parsed_request import ParsedRequest
from api.streaming.feed import Feed, OpenJob
from api.streaming.readers import CLIENT_GONE, JobReaders, JobReading
from domain.chat.request import ChatRequest
from domain.errors import QueueUnavailable, SemanticError
from domain.job.eta import EtaSource
from domain.job.listing import JobViews
from domain.job.new_job import NewJob
from domain.job.request_dedup import JoinTarget, RequestRepeat, is_read_by_another, job_to_join
from domain.job.state import Job
from domain.log.ports import EventLog, PayloadStore
from domain.ports import Clock, IdSource
from domain.usecases.history_matching import match_history
from domain.usecases.jobs.submit import (
    Accepted,
    JobSubmission,
    require_room,
    require_share,
)
from domain.usecases.recorded_answers import LoggedAnswers
from domain.values import AgentId, Digest, JobId, Owner, Priority, digest_of, rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
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


def asked_of(command: NewJob, *, seeded: bool) -> Digest:
    """Return a digest that is equal for requests with the same question and answer format."""
    agent = command.submitted.agent
    asked = command.request.asked(protocol=command.submitted.protocol, agent=agent, seeded=seeded)
    if command.submitted.webhook is not None:
        # A request with a webhook must not join a job that notifies another receiver, or none.
        asked = digest_of(f"{asked}\n{command.submitted.webhook}".encode())
    if command.wire is not None:
        # The answer shows parts of its request, so these must be equal too.
        asked = digest_of(f"{asked}\n".encode() + command.wire)
    if command.keyspace:
        asked = digest_of(f"{asked}\nkey {command.keyspace}".encode())
    return asked


def asking(command: NewJob, asked: Digest) -> NewJob:
    """Return the job of a request with the digest by which its repeats find it."""
    return replace(command, submitted=replace(command.submitted, asked=asked))


#: Jobs with the same digest, newest first, that a repeat may join.
ALIKE_MAX: Final = 16

Parse = Callable[[], ParsedRequest]
SubmittedT = TypeVar("SubmittedT", "Accepted", "PreparedRequest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Accepts jobs: log first, queue second.

    Attributes:
        log: Recorded jobs, for history matching.
        payloads: Texts of requests and answers.
        views: The jobs projection.
        jobs: Records and enqueues jobs.
        ids: Fresh ids.
        clock: For deadlines.
        eta: The time until the queue has room.
        require_admission: Raises ``Draining`` while no new jobs are accepted.
        limits: Limits of every job.
        agents: Limits of every agent.
        models: Binds requests to models.
        commands: Makes the jobs of requests.
        call: Runs what blocks.
        background: Finishes submissions whose client left.
        feed: Opens the items of a job.
        readers: The connections of each job.
    """

    log: EventLog
    payloads: PayloadStore
    views: JobViews
    jobs: JobSubmission
    ids: IdSource
    clock: Clock
    eta: EtaSource
    require_admission: Callable[[], None]
    limits: JobLimits
    agents: AgentLimits
    models: ModelBinding
    commands: JobCommands
    call: BlockingCalls
    background: Background
    feed: Feed
    readers: JobReaders

    def accept(self, parse: Parse, request: Request, *, protocol: str) -> Accepted:
        """Record a job and enqueue it, or return the job of the same idempotency key; blocks.

        Raises:
            InvalidRequest: The request is not valid.
            IdempotencyKeyReused: The key belongs to another request.
            LogUnavailable: No job was accepted.
            ModelNotFound: There is no model of that name.
            Overloaded: Too many jobs are waiting.
            RateLimited: The agent sends too many requests.
        """
        parsed = parse()
        command = self.commands.of(parsed, request, protocol=protocol, waits_for_model=True)
        accepted = self.submit(command, self.ids.job_id(), seeded=parsed.seeded)
        attached, joined = accepted.attached, accepted.joined_trace
        request.marks.accept(accepted.job_id, attached=attached, joined_trace=joined)
        return accepted

    async def open(
        self, parse: Parse, request: Request, *, protocol: str
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
        prepared, job = await self.open_first(parse, request, protocol=protocol)
        assert job is not None, "a request for several answers belongs to open_choices"  # noqa: S101
        return prepared.parsed, job

    async def open_first(
        self, parse: Parse, request: Request, *, protocol: str
    ) -> tuple[PreparedRequest, OpenJob | None]:
        """Prepare a request and open its job; see ``open``.

        A request without earlier equal ones takes one call of the executor.

        Returns:
            No job where the request wants several answers; nothing is recorded then.
        """
        job_id = self.ids.job_id()
        blocking = partial(self._prepare_and_submit, parse, request, protocol, job_id)
        prepared, job = await self._call_subscribed(job_id, blocking, request)
        if prepared.accepted is not None:
            return prepared, await self._open(prepared.accepted, job, request)
        await job.close()
        if prepared.parsed.more:
            return prepared, None
        target = await self.find_joining(prepared.command, prepared.repeat, alike=prepared.alike)
        if target is not None:
            return prepared, await self.join(target, request)
        return prepared, await self.open_new(
            partial(self.submit, prepared.command, seeded=prepared.parsed.seeded), request
        )

    async def open_new(self, submit_as: Callable[[JobId], Accepted], request: Request) -> OpenJob:
        """Open the items of the job that ``submit_as`` records; see ``open``."""
        job_id = self.ids.job_id()
        accepted, job = await self._call_subscribed(job_id, partial(submit_as, job_id), request)
        return await self._open(accepted, job, request)

    async def find_joining(
        self,
        command: NewJob,
        repeat: RequestRepeat,
        *,
        alike: Sequence[Job] | None = None,
    ) -> JoinTarget | None:
        """Return the earlier job that a request should join, if there is one.

        The caller must call ``join`` before it awaits anything else.

        Args:
            command: The job to submit otherwise; one with an idempotency key joins nothing here.
            repeat: Whether the request may join a job.
            alike: From ``PreparedRequest``; ``None`` reads them.
        """
        if (
            command.submitted.asked is None
            or command.submitted.idempotency is not None
            or not repeat.may_join
        ):
            return None
        state = self.readers.connections.state
        if alike is None:
            alike = await self.call(self._alike, command)
        target = job_to_join(alike, repeat, state)
        if target is None and is_read_by_another(alike, repeat, state):
            # The client may have closed that connection a moment ago and repeats on another one.
            await self.readers.connections.wait_for_departure(self.limits.dedup_grace_s)
            alike = await self.call(self._alike, command)
            target = job_to_join(alike, repeat, state)
        return target

    async def join(self, target: JoinTarget, request: Request) -> OpenJob:
        """Open the items of an earlier job; the log records who joined it."""
        # Counted as a reader before the first await, so that the job is not cancelled meanwhile.
        reading = self.readers.begin(target.job_id)
        try:
            joined = await self.call(
                self.jobs.attach,
                target.job_id,
                reason=target.reason,
                request_id=request.id,
                trace=str(request.trace),
            )
        except BaseException:
            reading.abandon(CLIENT_GONE)
            raise
        return await self._open_existing(target, reading, request, joined.joined_trace)

    def submit(
        self,
        command: NewJob,
        job_id: JobId,
        *,
        seeded: bool,
        claim: Callable[[JobId], None] | None = None,
    ) -> Accepted:
        """Record a job and enqueue it if there is room; blocks. See ``domain`` ``submit``."""
        if command.submitted.asked is None:
            command = asking(command, asked_of(command, seeded=seeded))
        matched = self.match_history(command.request, command.submitted.agent, command.answers_to)
        command = replace(command, request=matched)
        self.admit([command])
        return self.record(command, job_id, claim=claim)

    def admit(self, commands: Sequence[NewJob]) -> None:
        """Refuse the jobs of one request, at least one, where there is no room; blocks.

        Raises:
            Draining: No new jobs are accepted.
            ModelNotLoaded: They cannot wait for their model, and no worker has it.
            Overloaded: Too many jobs are waiting.
            RateLimited: The agent has too many open jobs, or its key the share of the queue.
        """
        views, first = self.views, commands[0]
        # A job that repeats an idempotency key needs no room.
        fresh = sum(
            one.submitted.idempotency is None or views.keyed(one.submitted.idempotency) is None
            for one in commands
        )
        if not fresh:
            return
        self.require_admission()
        self.models.require(first)
        limit = self.limits.queue_limit_of(first.submitted.priority)
        require_room(
            first.submitted.priority,
            jobs_max=limit,
            views=views,
            eta=self.eta,
            jobs=fresh,
            memory_wait_s=self._memory_wait_of(first),
            model=first.submitted.bound_model,
            has_own_line=self.models.loaded.has_own_line,
        )
        if first.answers_to is not None:
            require_share(
                first.submitted.priority,
                first.answers_to,
                jobs_max=limit,
                views=views,
                eta=self.eta,
                jobs=fresh,
                model=first.submitted.bound_model,
                has_own_line=self.models.loaded.has_own_line,
            )
        self.agents.require_place(first.submitted.agent, views, fresh)

    def _memory_wait_of(self, job: NewJob) -> float:
        """Return how long others may wait for memory before a job is refused; 0 for any time."""
        if job.request.embedding is not None:
            return 0.0  # vectors take no memory of contexts
        waits = job.submitted.waits_for_model or job.submitted.priority is not Priority.INTERACTIVE
        return 0.0 if waits else self.limits.memory_wait_s

    def record(
        self, command: NewJob, job_id: JobId, *, claim: Callable[[JobId], None] | None = None
    ) -> Accepted:
        """Record an admitted job and enqueue it; blocks."""
        return self.jobs.submit(command, job_id=job_id, claim=claim)

    def match_history(
        self, request: ChatRequest, agent: AgentId | None, answers_to: Owner | None
    ) -> ChatRequest:
        """Return the request with the origins of its turns; blocks. See ``match_history``."""
        answers = LoggedAnswers(log=self.log, payloads=self.payloads)
        return match_history(request, agent, views=self.views, answers=answers, owner=answers_to)

    def _prepare_and_submit(
        self, parse: Parse, request: Request, protocol: str, job_id: JobId
    ) -> PreparedRequest:
        """Parse, and record the job unless an earlier one may be joined or several are wanted."""
        parsed = parse()
        command = self.commands.of(parsed, request, protocol=protocol, waits_for_model=False)
        since = self.clock.now() - timedelta(seconds=self.limits.join_window_s)
        repeat = RequestRepeat(
            is_retry=is_retry(request.headers),
            has_session=parsed.agent is not None,
            is_repeatable=parsed.is_repeatable,
            since=rfc3339(since),
        )
        prepared = PreparedRequest(parsed=parsed, command=command, repeat=repeat)
        if parsed.more:
            return prepared
        if command.submitted.idempotency is None and repeat.may_join:
            asked = asked_of(command, seeded=parsed.seeded)
            command = asking(command, asked)
            alike = self._alike(command)
            if alike:
                # Whether one of them can be joined depends on connections of the event loop.
                return replace(prepared, command=command, alike=alike)
        return replace(prepared, accepted=self.submit(command, job_id, seeded=parsed.seeded))

    def _alike(self, command: NewJob) -> Sequence[Job]:
        """Return the jobs of equal requests with the same binding, newest first; blocks."""
        assert command.submitted.asked is not None  # noqa: S101 - only such a request joins
        return self.models.same(self.views.alike(command.submitted.asked, limit=ALIKE_MAX), command)

    def _require_model_of(self, job_id: JobId) -> None:
        self.models.require_present(self.views.get(job_id))

    async def _call_subscribed(
        self, job_id: JobId, blocking: Callable[[], SubmittedT], request: Request
    ) -> tuple[SubmittedT, OpenJob]:
        """Run a submission on the executor, its items subscribed beforehand.

        The submission is not cancelled with its request: a job that is just being recorded then
        gets its cancellation in the background.
        """
        job = OpenJob(job_id, self.feed, request)
        submitting = asyncio.ensure_future(self.call(blocking))
        try:
            return await asyncio.shield(submitting), job
        except asyncio.CancelledError:
            self.background.start(self._abandon_after(submitting, job))
            raise
        except BaseException:
            await job.close()
            raise

    async def _abandon_after(self, submitting: asyncio.Future[SubmittedT], job: OpenJob) -> None:
        await asyncio.wait([submitting])
        if submitting.exception() is None:
            result = submitting.result()
            accepted = result if isinstance(result, Accepted) else result.accepted
            if accepted is not None:
                self.readers.begin(accepted.job_id).abandon(CLIENT_GONE)
        await job.close()

    async def _open(self, accepted: Accepted, job: OpenJob, request: Request) -> OpenJob:
        if accepted.attached is not None:
            await job.close()
            await self.call(self._require_model_of, accepted.job_id)
        reading = self.readers.begin(accepted.job_id)
        if accepted.attached is not None:
            target = JoinTarget(job_id=accepted.job_id, reason=accepted.attached)
            trace = accepted.joined_trace
            return await self._open_existing(target, reading, request, trace)
        request.marks.accept(accepted.job_id)
        if not accepted.queued:
            reading.revoke(QueueUnavailable.code)
            await job.close()
            raise QueueUnavailable("the queue is not reachable just now")
        job.start()
        job.read_by(reading)
        return job

    async def _open_existing(
        self, target: JoinTarget, reading: JobReading, request: Request, trace: str | None
    ) -> OpenJob:
        try:
            job = await self.feed.open_job(target.job_id, request)
        except BaseException:
            reading.abandon(CLIENT_GONE)
            raise
        request.marks.accept(target.job_id, attached=target.reason, joined_trace=trace)
        job.read_by(reading, attached=target.reason)
        return job


#: The reason of a cancellation because another job of the same request was refused.
OTHERS_REFUSED: Final = "other_answers_refused"


async def open_choices(
    submission: Submission, parse: Parse, request: Request, *, protocol: str
) -> tuple[ParsedRequest, tuple[OpenJob, ...]]:
    """Open a job for each answer of a request; see ``Submission.open``.

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
    prepared, job = await submission.open_first(parse, request, protocol=protocol)
    if job is not None:
        return prepared.parsed, (job,)
    return prepared.parsed, await _open_each(submission, prepared, request)


async def _open_each(
    submission: Submission, prepared: PreparedRequest, request: Request
) -> tuple[OpenJob, ...]:
    commands = await submission.call(_commands, prepared, submission)
    repeat = prepared.repeat
    fresh = [one for one in commands if await submission.find_joining(one, repeat) is None]
    if fresh:
        await submission.call(submission.admit, fresh)
    opened: list[OpenJob] = []
    try:
        for command in commands:
            # Looked up again: the job that was found may have been given up since.
            target = (
                await submission.find_joining(command, repeat) if command not in fresh else None
            )
            if target is not None:
                opened.append(await submission.join(target, request))
            else:
                record = partial(submission.record, command)
                opened.append(await submission.open_new(record, request))
    except BaseException as error:
        await _abandon(opened, error)
        raise
    return tuple(opened)


def _commands(prepared: PreparedRequest, submission: Submission) -> list[NewJob]:
    """Return a command for each answer.

    Equal answers of one request do not repeat each other, and a repeat of the request finds the
    job of each: the digest covers the whole request and the place of the answer in it.
    """
    whole, parsed = prepared.command, prepared.parsed
    chats, key = parsed.chats, whole.submitted.idempotency
    asked = [asked_of(replace(whole, request=chat), seeded=parsed.seeded) for chat in chats]
    request = digest_of("\n".join(asked).encode())
    messages = submission.match_history(chats[0], whole.submitted.agent, whole.answers_to).messages
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
            # Answers to one conversation have the same turns before them; raw prompts have none.
            request=replace(chat, messages=messages) if chat.raw is None else chat,
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
