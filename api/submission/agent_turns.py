"""Adds a turn to an agent: the job first, then its place in the history, then the queue."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from api.http.messages import Request
from api.http.request_headers import IDEMPOTENCY_KEY
from api.protocols.native.agents import parse_turn
from api.protocols.shared.parsed_request import ParsedRequest
from api.schemas.agents import TurnBody
from api.services import Services
from api.submission.submit import command_of, submit_command
from domain.errors import SemanticError
from domain.job.commands import ConfirmCancel, RequestCancel, SubmitJob
from domain.job.state import Job
from domain.usecases.agents import PlannedTurn, plan_turn, record_turn
from domain.usecases.jobs.commit import commit
from domain.usecases.jobs.submit import Accepted, idempotency_digest
from domain.values import AgentId, JobId, JobStatus, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTurn:
    """A turn that was accepted: its number and its job."""

    turn: int
    accepted: Accepted


async def add_turn(
    agent_id: AgentId, wire: TurnBody, request: Request, services: Services
) -> AddedTurn:
    """Accept a turn of an agent, or find the one of the same idempotency key.

    The job is in the log before the turn is, so that no turn is ever without one; no worker hears
    of it before. Of two at the same time one gets the turn, and the other's job is cancelled.

    Raises:
        AgentNotFound: There is no such agent.
        AgentTurnConflict: It has another number of turns than expected, or one is open.
        InvalidRequest: The turn cannot be accepted as it is.
        IdempotencyKeyReused: The key came before with another request.
        PayloadMissing: The texts of the turns before were erased.
        LogUnavailable: Nothing was accepted.
        Overloaded: Too many jobs are waiting.
        RateLimited: The agent asks too often, or has too many open jobs.
    """
    planned, parsed = await services.call(read_turn, agent_id, wire, request, services)
    # Not on a thread: the limits that are looked at belong to the event loop.
    command = command_of(parsed, request, services, protocol="jobs")
    job_id = services.ids.job_id()
    return await services.call(
        submit_turn, planned, command, parsed.seeded, job_id, request, services
    )


def read_turn(
    agent_id: AgentId, wire: TurnBody, request: Request, services: Services
) -> tuple[PlannedTurn, ParsedRequest]:
    """Return what a turn follows, and the turn with all of that before it; blocks."""
    key = IDEMPOTENCY_KEY.read(request)
    planned = plan_turn(
        agent_id,
        expected=wire.expected_turn,
        key=None if key is None else idempotency_digest(key),
        log=services.log,
        views=services.views,
        payloads=services.payloads,
    )
    parsed = parse_turn(
        wire,
        agent_id,
        planned.profile,
        planned.before,
        services.request_defaults,
    )
    return planned, parsed


def submit_turn(
    planned: PlannedTurn,
    command: SubmitJob,
    seeded: bool,  # noqa: FBT001 - handed to an executor
    job_id: JobId,
    request: Request,
    services: Services,
) -> AddedTurn:
    """Record the job, its place in the history, and queue it; blocks. See ``add_turn``."""
    claim = partial(_claim, planned, request, services)
    accepted = submit_command(command, seeded, job_id, services, claim=claim)
    if accepted.attached is not None:
        # A crash can have come between the two the first time.
        _record(planned, accepted.job_id, request, services)
    return AddedTurn(turn=planned.turn, accepted=accepted)


def _claim(planned: PlannedTurn, request: Request, services: Services, job_id: JobId) -> None:
    try:
        _record(planned, job_id, request, services)
    except SemanticError:
        with suppress(SemanticError):
            commit(job_id, RequestCancel(reason="turn_taken"), log=services.log, ids=services.ids)
            commit(job_id, _confirm, log=services.log, ids=services.ids)
        raise


def _confirm(job: Job) -> ConfirmCancel | None:
    """Nobody was told of the job; one that a reconciler found meanwhile is its worker's to end."""
    if job.status is not JobStatus.QUEUED:
        return None
    return ConfirmCancel(attempt=0, usage=Usage())


def _record(planned: PlannedTurn, job_id: JobId, request: Request, services: Services) -> None:
    record_turn(
        planned,
        job_id,
        correlation_id=request.id,
        log=services.log,
        views=services.views,
        ids=services.ids,
    )


def withdraw(job_id: JobId, services: Services) -> None:
    """Cancel the open turn of an agent that was deleted; blocks."""
    services.cancellation.cancel(job_id, reason="agent_deleted")
