"""The list of agents, folded from the log: their jobs and the state of their contexts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import singledispatch

from domain.events.agent import AGENT_HISTORY, AgentForgotten
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
from domain.log.codec import decode_recorded
from domain.log.record import RecordedEvent
from domain.values import AgentId, JobId, Usage

#: Most turns of an agent that its view holds.
TURNS_KEPT = 20
_PREFIX = "agent-"
_JOB_EVENTS = (
    JobSubmitted,
    AttemptStarted,
    JobCompleted,
    JobCancelled,
    JobFailed,
    JobExpired,
    JobRetried,
)
#: Types of the events that the list is folded from.
AGENT_TYPES = AGENT_HISTORY | {
    cls.__name__
    for cls in (
        *_JOB_EVENTS,
        AgentCacheSaved,
        AgentCacheRestored,
        AgentCacheMissed,
        AgentCacheEvicted,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJob:
    """One job of an agent.

    Attributes:
        job: The job.
        at: RFC 3339 instant of acceptance.
        status: ``queued``, ``running``, ``completed``, ``cancelled``, ``failed`` or ``expired``.
        usage: Token counts; of the latest attempt while the job is open.
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
        id: The agent.
        first_seen: RFC 3339 instant of its first event.
        last_seen: RFC 3339 instant of its latest event.
        jobs: Number of its jobs.
        open_jobs: Number of its jobs that have not ended.
        usage: Token counts of its ended jobs.
        hits: Jobs that restored a cached context.
        misses: Jobs that computed a context although it had been saved.
        cache_event: Type of the latest event of its context.
        cache_event_at: RFC 3339 instant of that event.
        context_tokens: Length of the context saved last; 0 once it is forgotten.
        disk_blocks: Blocks of that context at the time it was saved, its tail included. Evictions
            are recorded per worker and not per agent, so some may be evicted.
        turns: The latest jobs, oldest first, at most ``TURNS_KEPT``.
        position: Position of the latest event folded in.
    """

    id: AgentId
    first_seen: str
    last_seen: str
    jobs: int = 0
    open_jobs: int = 0
    usage: Usage = Usage()
    hits: int = 0
    misses: int = 0
    cache_event: str | None = None
    cache_event_at: str | None = None
    context_tokens: int = 0
    disk_blocks: int = 0
    turns: tuple[AgentJob, ...] = ()
    position: int = 0

    @property
    def cached_ratio(self) -> float:
        """Return the share of prompt tokens that came from the cache."""
        cached, prompt = self.usage.cached_tokens, self.usage.prompt_tokens
        return cached / prompt if prompt else 0.0


@dataclass(slots=True)
class Agents:
    """The fold of the list of agents; it takes every event of the log in order."""

    _views: dict[AgentId, AgentView] = field(default_factory=dict)
    #: Agent of each job that can still change; a completed job cannot be retried.
    _open: dict[str, AgentId] = field(default_factory=dict)

    def fold(self, recorded: RecordedEvent) -> None:
        """Take the next event of the log."""
        if recorded.type not in AGENT_TYPES:
            return
        event = decode_recorded(recorded)
        agent = self._agent_of(event, recorded)
        if agent is None:
            return
        view = self._views.get(agent) or AgentView(
            id=agent, first_seen=recorded.recorded_at, last_seen=recorded.recorded_at
        )
        self._views[agent] = replace(
            _apply(event, view, recorded),
            last_seen=recorded.recorded_at,
            position=recorded.position,
        )

    def views(self) -> tuple[AgentView, ...]:
        """Return the agents, the latest seen first."""
        return tuple(sorted(self._views.values(), key=lambda view: -view.position))

    def _agent_of(self, event: Event, recorded: RecordedEvent) -> AgentId | None:
        if recorded.stream.startswith(_PREFIX):
            return AgentId(recorded.stream.removeprefix(_PREFIX))
        if isinstance(event, JobSubmitted):
            if event.agent is not None:
                self._open[recorded.stream] = event.agent
            return event.agent
        if isinstance(event, JobCompleted):
            return self._open.pop(recorded.stream, None)
        return self._open.get(recorded.stream)


def fold_agents(events: Iterable[RecordedEvent]) -> tuple[AgentView, ...]:
    """Return the agents of all events of the log, the latest seen first."""
    agents = Agents()
    for event in events:
        agents.fold(event)
    return agents.views()


@singledispatch
def _apply(event: Event, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event, recorded
    return view


@_apply.register
def _(event: JobSubmitted, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    turn = AgentJob(job=JobId(recorded.stream), at=recorded.recorded_at, status="queued")
    turns = (*view.turns, turn)[-TURNS_KEPT:]
    return replace(view, jobs=view.jobs + 1, open_jobs=view.open_jobs + 1, turns=turns)


@_apply.register
def _(event: AttemptStarted, view: AgentView, recorded: RecordedEvent) -> AgentView:
    usage = Usage(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)
    return _with_turn(view, recorded, status="running", usage=usage)


@_apply.register
def _(event: JobCompleted, view: AgentView, recorded: RecordedEvent) -> AgentView:
    return _ended(view, recorded, "completed", event.usage)


@_apply.register
def _(event: JobCancelled, view: AgentView, recorded: RecordedEvent) -> AgentView:
    return _ended(view, recorded, "cancelled", event.usage)


@_apply.register
def _(event: JobExpired, view: AgentView, recorded: RecordedEvent) -> AgentView:
    return _ended(view, recorded, "expired", event.usage)


@_apply.register
def _(event: JobFailed, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return _ended(view, recorded, "failed", Usage())


@_apply.register
def _(event: JobRetried, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    again = replace(view, open_jobs=view.open_jobs + 1)
    return _with_turn(again, recorded, status="queued", usage=Usage())


@_apply.register
def _(event: AgentCacheSaved, view: AgentView, recorded: RecordedEvent) -> AgentView:
    blocks = len(event.blocks) + (event.tail is not None)
    return replace(
        _with_cache_event(view, recorded), context_tokens=event.tokens, disk_blocks=blocks
    )


@_apply.register
def _(event: AgentCacheRestored, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return replace(_with_cache_event(view, recorded), hits=view.hits + 1)


@_apply.register
def _(event: AgentCacheMissed, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return replace(_with_cache_event(view, recorded), misses=view.misses + 1)


@_apply.register
def _(event: AgentCacheEvicted, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return replace(_with_cache_event(view, recorded), context_tokens=0, disk_blocks=0)


@_apply.register
def _(event: AgentForgotten, view: AgentView, recorded: RecordedEvent) -> AgentView:
    del event
    return replace(_with_cache_event(view, recorded), context_tokens=0, disk_blocks=0)


def _with_cache_event(view: AgentView, recorded: RecordedEvent) -> AgentView:
    return replace(view, cache_event=recorded.type, cache_event_at=recorded.recorded_at)


def _ended(view: AgentView, recorded: RecordedEvent, status: str, usage: Usage) -> AgentView:
    ended = replace(view, open_jobs=view.open_jobs - 1, usage=view.usage + usage)
    return _with_turn(ended, recorded, status=status, usage=usage)


def _with_turn(view: AgentView, recorded: RecordedEvent, *, status: str, usage: Usage) -> AgentView:
    """Update the turn of a job, if the view still holds it."""
    return replace(
        view,
        turns=tuple(
            replace(turn, status=status, usage=usage)
            if turn.job == JobId(recorded.stream)
            else turn
            for turn in view.turns
        ),
    )
