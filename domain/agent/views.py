"""The rows of agents, and their lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Protocol

from domain.events.agent import (
    AgentDeleted,
    AgentForgotten,
    AgentForked,
    AgentRegistered,
)
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
)
from domain.events.event import Event
from domain.events.job import (
    AttemptStarted,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobRetried,
    JobSubmitted,
)
from domain.job.state import Job
from domain.log.codec import decode_recorded
from domain.log.record import AGENT_STREAM, RecordedEvent
from domain.values import AgentId, JobId, JobStatus, Owner, Usage

#: Most turns of an agent that its view holds.
TURNS_KEPT = 20
#: Types of the events of jobs that change the row of their agent.
_JOB_TYPES = frozenset(
    cls.__name__
    for cls in (
        JobSubmitted,
        AttemptStarted,
        JobCompleted,
        JobCancelled,
        JobFailed,
        JobExpired,
        JobRetried,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJob:
    """One job of an agent.

    Attributes:
        at: RFC 3339 instant of acceptance.
        status: ``queued``, ``running``, ``completed``, ``cancelled``, ``failed`` or ``expired``.
        usage: Token counts; of the latest attempt while the job runs.
    """

    job: JobId
    at: str
    status: str
    usage: Usage = Usage()

    @property
    def prefilled_tokens(self) -> int:
        """Return the number of computed prompt tokens."""
        return self.usage.prompt_tokens - self.usage.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One row of the list of agents.

    Attributes:
        first_seen: RFC 3339 instant of its first event.
        last_seen: RFC 3339 instant of its latest event.
        jobs: Number of its jobs.
        open_jobs: Number of its jobs that have not ended.
        usage: Token counts of its ended jobs.
        known_tokens: Prompt tokens that the cache knew when its attempts began.
        hits: Jobs that restored a cached context.
        ram_tokens: Restored tokens that were in memory.
        disk_tokens: Restored tokens that were read from disk.
        misses_diverged: Saved contexts that the prompt did not continue.
        misses_gone: Saved contexts whose blocks were evicted.
        misses_model_changed: Saved contexts of another model.
        missed_tokens: Saved tokens that were computed again.
        cache_event: Type of the latest event of its context.
        cache_event_at: RFC 3339 instant of that event.
        context_tokens: Length of the context saved last; 0 once it is forgotten.
        disk_blocks: Blocks of that context at the time it was saved, its tail included. Evictions
            are recorded per worker and not per agent, so some may be evicted.
        last_job: Its latest accepted job.
        last_model: Id of the model of its latest attempt.
        position: Position of the latest event folded in.
        created_position: Position of the event that created it as an agent with a history of its
            own; 0 if there is none, or it was deleted.
        created_at: RFC 3339 instant of that event.
        parent: The agent that it was forked from.
        inherited: Number of turns that the fork took over.
        owner: The API key that used it first; ``None`` without keys.
        turns: The latest jobs, oldest first, at most ``TURNS_KEPT``; from the rows of the jobs.
    """

    id: AgentId
    first_seen: str
    last_seen: str
    jobs: int = 0
    open_jobs: int = 0
    usage: Usage = Usage()
    known_tokens: int = 0
    hits: int = 0
    ram_tokens: int = 0
    disk_tokens: int = 0
    misses_diverged: int = 0
    misses_gone: int = 0
    misses_model_changed: int = 0
    missed_tokens: int = 0
    cache_event: str | None = None
    cache_event_at: str | None = None
    context_tokens: int = 0
    disk_blocks: int = 0
    last_job: str | None = None
    last_model: str | None = None
    position: int = 0
    created_position: int = 0
    created_at: str | None = None
    parent: str | None = None
    inherited: int = 0
    owner: Owner | None = None
    turns: tuple[AgentJob, ...] = ()

    @property
    def cached_ratio(self) -> float:
        """Return the share of prompt tokens that came from the cache."""
        cached, prompt = self.usage.cached_tokens, self.usage.prompt_tokens
        return cached / prompt if prompt else 0.0

    @property
    def misses(self) -> int:
        """Return the number of jobs that computed a context although it had been saved."""
        return self.misses_diverged + self.misses_gone + self.misses_model_changed


def agent_of(recorded: RecordedEvent, job: Job | None) -> AgentId | None:
    """Return the agent whose row an event changes, if it changes one.

    Args:
        job: The row of its job after it, for an event of a job.
    """
    if recorded.stream.startswith(AGENT_STREAM):
        return AgentId(recorded.stream.removeprefix(AGENT_STREAM))
    if recorded.type in _JOB_TYPES and job is not None and job.submitted.agent is not None:
        return AgentId(job.submitted.agent)
    return None


def project_agent(
    view: AgentView | None, agent: AgentId, recorded: RecordedEvent, job: Job | None
) -> AgentView:
    """Return the row of an agent after an event that changes it.

    Args:
        view: The row before; ``None`` for the first event.
        job: The row of its job after it, for an event of a job.
    """
    at = recorded.recorded_at
    if view is None:
        owner = recorded.data.get("owner") if job is None else job.submitted.owner
        view = AgentView(id=agent, first_seen=at, last_seen=at, owner=owner)
    if recorded.stream.startswith(AGENT_STREAM):
        view = _apply(decode_recorded(recorded), view, recorded)
    else:
        assert job is not None
        view = _after_job(view, recorded, job)
    return replace(view, last_seen=at, position=recorded.position)


def turn_of(job: Job) -> AgentJob:
    """Return a job as a turn of its agent; a failed or waiting job has no usage."""
    has_usage = job.status not in {JobStatus.QUEUED, JobStatus.FAILED}
    return AgentJob(
        job=job.id,
        at=job.created_at,
        status=job.status.value,
        usage=job.usage if has_usage else Usage(),
    )


def _after_job(view: AgentView, recorded: RecordedEvent, job: Job) -> AgentView:
    if recorded.type == JobSubmitted.__name__:
        return replace(
            view, jobs=view.jobs + 1, open_jobs=view.open_jobs + 1, last_job=recorded.stream
        )
    if recorded.type == AttemptStarted.__name__:
        known = max(recorded.data["cached_tokens"], recorded.data.get("known_tokens", 0))
        return replace(
            view, known_tokens=view.known_tokens + known, last_model=recorded.data["model"]
        )
    if recorded.type == JobRetried.__name__:
        return replace(view, open_jobs=view.open_jobs + 1)
    # A failed job has no usage of its own; its row holds what its last attempt expected.
    usage = Usage() if job.status is JobStatus.FAILED else job.usage
    return replace(view, open_jobs=view.open_jobs - 1, usage=view.usage + usage)


@singledispatch
def _apply(event: Event, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event, recorded
    return view


@_apply.register
def _(event: AgentRegistered, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return _created(view, recorded)


@_apply.register
def _(event: AgentForked, view: AgentView, recorded: RecordedEvent) -> AgentView:
    return replace(_created(view, recorded), parent=event.parent, inherited=event.turn)


@_apply.register
def _(event: AgentDeleted, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event, recorded
    return _without_history(view)


@_apply.register
def _(event: AgentCacheSaved, view: AgentView, recorded: RecordedEvent) -> AgentView:
    blocks = len(event.blocks) + (event.tail is not None)
    return replace(
        _with_cache_event(view, recorded), context_tokens=event.tokens, disk_blocks=blocks
    )


@_apply.register
def _(event: AgentCacheRestored, view: AgentView, recorded: RecordedEvent) -> AgentView:
    return replace(
        _with_cache_event(view, recorded),
        hits=view.hits + 1,
        ram_tokens=view.ram_tokens + event.tokens - event.disk_tokens,
        disk_tokens=view.disk_tokens + event.disk_tokens,
    )


@_apply.register
def _(event: AgentCacheMissed, view: AgentView, recorded: RecordedEvent) -> AgentView:
    return replace(
        _with_cache_event(view, recorded),
        misses_diverged=view.misses_diverged + (event.reason not in {"gone", "model_changed"}),
        misses_gone=view.misses_gone + (event.reason == "gone"),
        misses_model_changed=view.misses_model_changed + (event.reason == "model_changed"),
        missed_tokens=view.missed_tokens + event.missed_tokens,
    )


@_apply.register
def _(event: AgentCacheEvicted, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return replace(_with_cache_event(view, recorded), context_tokens=0, disk_blocks=0)


@_apply.register
def _(event: AgentForgotten, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    forgotten = replace(_with_cache_event(view, recorded), context_tokens=0, disk_blocks=0)
    return _without_history(forgotten)


def _with_cache_event(view: AgentView, recorded: RecordedEvent) -> AgentView:
    return replace(view, cache_event=recorded.type, cache_event_at=recorded.recorded_at)


def _created(view: AgentView, recorded: RecordedEvent) -> AgentView:
    return replace(
        _without_history(view),
        created_position=recorded.position,
        created_at=recorded.recorded_at,
    )


def _without_history(view: AgentView) -> AgentView:
    return replace(view, created_position=0, created_at=None, parent=None, inherited=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    """A page of agents; ``has_more``: whether others follow."""

    agents: tuple[AgentView, ...]
    has_more: bool


class AgentViews(Protocol):
    """The agents projection. Each method raises ``LogUnavailable``."""

    def get(self, agent: AgentId) -> AgentView | None:
        """Return an agent with its turns, if an event names it."""
        ...

    def page(
        self,
        *,
        limit: int,
        before: AgentId | None = None,
        is_registered: bool = False,
        owner: Owner | None = None,
    ) -> AgentPage:
        """Return agents without their turns, the latest seen first.

        Args:
            limit: Most rows, from 1.
            before: Only agents after this one; an unknown name gives an empty page.
            is_registered: Only agents with a history of their own, the latest created first.
            owner: Only agents of this API key.
        """
        ...

    def turns(self, agents: Iterable[AgentView]) -> tuple[AgentView, ...]:
        """Return the agents with their turns."""
        ...
