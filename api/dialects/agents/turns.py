"""Adds a turn to an agent: the job first, then its place in the history, then the queue."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from api.dialects.jobs.bodies import TurnBody
from api.dialects.jobs.parse import parse_turn
from api.http.messages import Request
from api.http.request_headers import IDEMPOTENCY_KEY
from api.parsed_request import ParsedRequest, RequestDefaults
from api.submit import Submission
from domain.errors import SemanticError
from domain.events.job import JobCancelled, JobCancelRequested
from domain.job.state import Job
from domain.usecases.agents import AgentRecords, PlannedTurn
from domain.usecases.jobs.commit import commit
from domain.usecases.jobs.submit import Accepted, idempotency_digest
from domain.values import AgentId, JobId, JobStatus, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTurn:
    """A turn that was accepted: its number and its job."""

    turn: int
    accepted: Accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurns:
    """Adds turns to agents.

    Attributes:
        submission: Accepts the jobs.
        defaults: Values for the fields that a turn leaves open.
    """

    submission: Submission
    records: AgentRecords
    defaults: RequestDefaults

    def add(self, agent_id: AgentId, wire: TurnBody, request: Request) -> AddedTurn:
        """Accept a turn of an agent, or find the one of the same idempotency key; blocks.

        The job is recorded before the turn, so that no turn is ever without one, and is enqueued
        after it. Of two concurrent turns one is recorded, and the other's job is cancelled.

        Raises:
            AgentNotFound: There is no such agent.
            AgentTurnConflict: It has another number of turns than expected, or one is open.
            InvalidRequest: The turn is not valid.
            IdempotencyKeyReused: The key belongs to another request.
            PayloadMissing: The texts of the turns before were erased.
            LogUnavailable: No turn was accepted.
            ModelNotFound: There is no model of that name.
            ModelNotLoaded: A streamed turn is bound to a model that no worker has.
            Overloaded: Too many jobs are waiting.
            RateLimited: The agent sends too many requests, or has too many open jobs.
        """
        planned, parsed = self._plan(agent_id, wire, request)
        submission = self.submission
        command = submission.commands.of(
            parsed, request, protocol="jobs", waits_for_model=not parsed.stream
        )
        accepted = submission.submit(
            command,
            submission.ids.job_id(),
            seeded=parsed.seeded,
            claim=partial(self._claim, planned, request),
        )
        if accepted.attached is not None:
            # The process may have died between the job and the turn the first time.
            self._record(planned, accepted.job_id, request)
        return AddedTurn(turn=planned.turn, accepted=accepted)

    def _plan(
        self, agent_id: AgentId, wire: TurnBody, request: Request
    ) -> tuple[PlannedTurn, ParsedRequest]:
        """Return the place of a turn, and the turn together with all turns before it."""
        key = IDEMPOTENCY_KEY.read(request)
        planned = self.records.plan_turn(
            agent_id,
            expected=wire.expected_turn,
            key=None if key is None else idempotency_digest(key, request.caller.keyspace),
        )
        parsed = parse_turn(
            wire,
            agent_id,
            planned.profile,
            planned.before,
            self.defaults,
        )
        return planned, parsed

    def _claim(self, planned: PlannedTurn, request: Request, job_id: JobId) -> None:
        """Record the turn of a job that is not enqueued yet; cancel the job if that fails."""
        log, ids = self.submission.log, self.submission.ids
        try:
            self._record(planned, job_id, request)
        except SemanticError:
            request.marks.accept(job_id)
            with suppress(SemanticError):
                commit(job_id, JobCancelRequested(reason="turn_taken"), log=log, ids=ids)
                commit(job_id, _confirm, log=log, ids=ids)
            raise

    def _record(self, planned: PlannedTurn, job_id: JobId, request: Request) -> None:
        self.records.record_turn(planned, job_id, correlation_id=request.id)


def _confirm(job: Job) -> JobCancelled | None:
    """End a job that is still queued; its worker ends one that a reconciler has enqueued."""
    if job.status is not JobStatus.QUEUED:
        return None
    return JobCancelled(attempt=0, usage=Usage())
