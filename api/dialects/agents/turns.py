"""Adds a turn to an agent: the job first, then its place in the history, then the queue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from api.app import App
from api.dialects.agents.bodies import AgentBody, AgentChangeBody, TurnBody
from api.dialects.jobs.bodies import OptionsBody
from api.dialects.jobs.wire import messages_of, queued_request
from api.dialects.openai_chat.parse import tools_of
from api.dialects.parsing import clamp_max_tokens, merge_turns, sampling_of, stop_texts
from api.generation import ParsedRequest, RequestDefaults
from api.http.messages import Request
from api.http.operation import IDEMPOTENCY_KEY
from api.submit import accept_job
from domain.agent.agents import PlannedTurn
from domain.agent.state import AgentOptions, Profile
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest, SemanticError
from domain.events.job import JobCancelled, JobCancelRequested
from domain.job.commit import commit
from domain.job.state import Job
from domain.job.submit import Accepted, idempotency_digest
from domain.values import AgentId, JobId, JobStatus, Usage


def profile_of(wire: AgentBody) -> Profile:
    """Return the profile of a new agent."""
    return Profile(
        system=wire.system or "",
        tools=tools_of(wire.tools),
        options=_options_of(wire),
        metadata=wire.metadata or {},
    )


def changed_profile(wire: AgentChangeBody, before: Profile) -> Profile:
    """Return a profile with the fields that the body has."""
    options = _options_of(wire).by_name()
    given = {
        name: value
        for name, value in options.items()
        if value is not None or name in wire.model_fields_set
    }
    after = replace(before, options=replace(before.options, **given))
    if "metadata" in wire.model_fields_set:
        after = replace(after, metadata=wire.metadata or {})
    return after


def parse_turn(
    wire: TurnBody,
    agent: AgentId,
    profile: Profile,
    before: Sequence[Message],
    defaults: RequestDefaults,
) -> ParsedRequest:
    """Return a turn of an agent as a request with the agent's history.

    Args:
        before: The conversation before the turn; empty for the first turn.
        defaults: Values for fields that neither the turn nor the profile sets.

    Raises:
        InvalidRequest: The turn begins with an assistant message.
    """
    turns = messages_of(wire)
    if turns[0].role == "assistant":
        msg = "a turn begins with a message to the agent; the service stores the agent's answers"
        raise InvalidRequest(msg, field="messages")
    options = _options_of(wire).over(profile.options)
    history = [turn for turn in before if turn.role != "system"]
    chat = ChatRequest(
        model=options.model or defaults.model,
        messages=merge_turns([profile.system], [*history, *turns]),
        max_tokens=clamp_max_tokens(options.max_tokens, defaults.max_tokens),
        sampling=sampling_of(options, wire.seed, defaults.ids),
        tools=profile.tools,
        stop=options.stop or (),
        thinking=bool(options.thinking),
        thinking_limit=defaults.efforts.limit(None, forbidden=options.thinking is False),
    )
    return queued_request(
        chat,
        wire,
        agent=agent,
        stream=bool(wire.stream),
        names_model=options.model is not None,
    )


def _options_of(wire: OptionsBody) -> AgentOptions:
    return AgentOptions(
        model=wire.model,
        max_tokens=wire.max_tokens,
        **wire.sampling.given(),
        stop=None if wire.stop is None else stop_texts(wire.stop),
        thinking=wire.thinking,
    )


def add_turn(
    app: App, agent_id: AgentId, wire: TurnBody, request: Request
) -> tuple[Accepted, PlannedTurn]:
    """Accept a turn of an agent, or find the one of the same idempotency key; blocks.

    The job is recorded before the turn, so that no turn is ever without one, and is enqueued
    after it. Of two concurrent turns one is recorded, and the other's job is cancelled.

    Raises:
        AgentNotFound: There is no such agent.
        AgentTurnConflict: It has another number of turns than expected, or one is open.
        InvalidRequest: The turn is not valid.
        PayloadMissing: The texts of the turns before were erased.
        SemanticError: As ``accept_job``, or a streamed turn is bound to a model that is not loaded.
    """
    key = IDEMPOTENCY_KEY.read(request)
    planned = app.agent_records.plan_turn(
        agent_id,
        expected=wire.expected_turn,
        key=None if key is None else idempotency_digest(key, request.caller.keyspace),
    )
    profile, claim = planned.profile, partial(claim_turn, app, planned, request)
    if profile.conversation is not None:
        raise InvalidRequest(f"{agent_id} is a conversation; its turns come from /v1/responses")
    parsed = parse_turn(wire, agent_id, profile, planned.before, app.defaults)
    accepted = accept_job(
        app,
        lambda: replace(parsed, claim=claim),
        request,
        protocol="jobs",
        waits_for_model=not parsed.stream,
    )
    return accepted, planned


def claim_turn(app: App, planned: PlannedTurn, request: Request, job_id: JobId) -> None:
    """Record the turn of a job that is not enqueued yet; cancel the job if that fails."""
    log, ids = app.log, app.ids
    try:
        app.agent_records.record_turn(planned, job_id, correlation_id=request.id)
    except SemanticError:
        request.marks.accept(job_id)
        with suppress(SemanticError):
            commit(job_id, JobCancelRequested(reason="turn_taken"), log=log, ids=ids)
            commit(job_id, _confirm, log=log, ids=ids)
        raise


def _confirm(job: Job) -> JobCancelled | None:
    """End a job that is still queued; its worker ends one that a reconciler has enqueued."""
    if job.status is not JobStatus.QUEUED:
        return None
    return JobCancelled(attempt=0, usage=Usage())
