"""An agent: the record that decisions, lists and rows share, folded from its events. Pure.

The history of an agent that keeps its own is a list of jobs. The request of a job holds the whole
conversation before it, so the next turn needs only that request and its answer. A turn counts once
its job has an answer. Until then no other turn can be added. A turn that ended without an answer
does not count, and the next turn takes its number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from domain.chat.request import canonical_json
from domain.errors import AgentNotFound, AgentTurnConflict, InvalidRequest
from domain.events.agent import (
    AgentChanged,
    AgentDeleted,
    AgentForgotten,
    AgentForked,
    AgentRegistered,
    AgentTurnAdded,
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
from domain.job.state import Job, is_job_event, job_id_of
from domain.log.codec import decode_recorded
from domain.log.record import AGENT_STREAM, RecordedEvent
from domain.usage.figures import UsageFigures
from domain.usage.fold import usage_of
from domain.values import (
    SAMPLING_NAMES,
    AgentId,
    Digest,
    JobId,
    JobStatus,
    Owner,
    SamplingOptions,
    bias_from_json,
)

#: Types of the events of jobs that change their agent.
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
class AgentOptions(SamplingOptions):
    """Options of an agent; a turn overrides them, and ``None`` means the default of the service."""

    model: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    thinking: bool | None = None

    def over(self, defaults: AgentOptions) -> AgentOptions:
        """Return these options; those that are ``None`` come from ``defaults``."""
        given = {name: value for name, value in self.by_name().items() if value is not None}
        return replace(defaults, **given)

    def by_name(self) -> dict[str, Any]:
        """Return every option by its name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


#: Options that the bytes of a profile lack where they are not set: the digests of profiles without
#: them stay.
_LEFT_OUT_UNSET = frozenset(SAMPLING_NAMES) - {"temperature", "top_p", "top_k", "min_p"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a client has put into a conversation beside its turns, and taken out of it.

    Attributes:
        added: Items in the form of OpenAI Responses, each after the number of a turn; in order.
        removed: Ids of items, of turns too, that the conversation no longer has.
    """

    added: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What all turns of an agent share.

    Attributes:
        tools: Definitions in OpenAI's function format.
        metadata: Pairs of the client; no prompt has them.
        conversation: Of an agent that is a conversation of OpenAI's; ``None`` for any other.
    """

    system: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    options: AgentOptions = AgentOptions()
    metadata: Mapping[str, str] = field(default_factory=dict)
    conversation: Conversation | None = None

    def to_bytes(self) -> bytes:
        """Return the canonical JSON form, whose digest the events hold."""
        data = asdict(self)
        for name in _LEFT_OUT_UNSET:
            if data["options"][name] is None:
                del data["options"][name]
        for name in ("metadata", "conversation"):
            if not data[name]:
                del data[name]
        return canonical_json(data)

    @classmethod
    def from_bytes(cls, payload: bytes) -> Profile:
        """Return the profile that ``to_bytes`` encoded."""
        data = json.loads(payload)
        options = dict(data["options"])
        if options.get("stop") is not None:
            options["stop"] = tuple(options["stop"])
        options["logit_bias"] = bias_from_json(options.get("logit_bias"))
        held = data.get("conversation")
        return cls(
            system=data["system"],
            tools=tuple(data["tools"]),
            options=AgentOptions(**options),
            metadata=data.get("metadata", {}),
            conversation=held
            and Conversation(
                added=tuple((turn, item) for turn, item in held["added"]),
                removed=tuple(held["removed"]),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The record that decisions, lists and rows share; instants are RFC 3339.

    Decisions fold the agent's own stream, rows its jobs too: what follows from jobs is 0 in the
    record of the stream alone.

    Attributes:
        version: Version of its stream, which also has the events of its contexts.
        life: Version of the event that created it, 0 if there is none or it was deleted.
        created_at: Instant of that event.
        created_position: Position of that event; 0 if there is none, or it was deleted.
        parent_life: ``life`` of the parent, since another agent may have got its name.
        inherited: Number of turns that the fork took over.
        base: The job of the last inherited turn.
        turns: The jobs of its own turns; the last may be open, or have ended without an answer.
        owner: The API key that used it first; ``None`` without keys.
        first_seen: Instant of its first event.
        last_seen: Instant of its latest event.
        position: Position of the latest event folded in.
        last_model: Id of the model of its latest attempt.
        figures: Sums of its jobs and contexts; attempts that failed alone are not counted.
        known_tokens: Prompt tokens that the cache knew when its attempts began.
        cache_event: Type of the latest event of its context.
        cache_event_at: Instant of that event.
        context_tokens: Length of the context saved last; 0 once it is forgotten.
        disk_blocks: Blocks of that context at the time it was saved, its tail included. Evictions
            are recorded per worker and not per agent, so some may be evicted.
    """

    id: AgentId
    version: int = 0
    life: int = 0
    created_at: str = ""
    created_position: int = 0
    profile: Digest = Digest("")
    parent: AgentId | None = None
    parent_life: int = 0
    inherited: int = 0
    base: JobId | None = None
    turns: tuple[JobId, ...] = ()
    owner: Owner | None = None
    first_seen: str = ""
    last_seen: str = ""
    position: int = 0
    jobs: int = 0
    open_jobs: int = 0
    last_job: JobId | None = None
    last_model: str | None = None
    figures: UsageFigures = UsageFigures()
    known_tokens: int = 0
    cache_event: str | None = None
    cache_event_at: str | None = None
    context_tokens: int = 0
    disk_blocks: int = 0

    @property
    def exists(self) -> bool:
        """Whether it was created and not deleted since."""
        return self.life > 0

    @property
    def last(self) -> JobId | None:
        """The job of its latest own turn."""
        return self.turns[-1] if self.turns else None

    def number_of(self, job: JobId) -> int | None:
        """Return the number of the turn of a job; ``None`` if it is no own turn."""
        return self.inherited + self.turns.index(job) + 1 if job in self.turns else None

    def job_before(self, turn: int) -> JobId | None:
        """Return the job before an own turn or the next one."""
        own = turn - self.inherited - 1
        assert 0 <= own <= len(self.turns), "no turn of its own"
        return self.turns[own - 1] if own else self.base

    def counted(self, last: JobStatus | None) -> int:
        """Return how many turns have an answer; ``last`` is the status of its latest own job."""
        added = self.inherited + len(self.turns)
        return added if last is None or last is JobStatus.COMPLETED else added - 1


def next_turn(agent: Agent, last: JobStatus | None, expected: int | None) -> int:
    """Return the number of the turn that may be added.

    Args:
        last: Status of the job of its latest own turn, if it has one.
        expected: Number of turns that the caller expects; ``None`` for any.

    Raises:
        AgentNotFound: The agent was deleted, or never created.
        AgentTurnConflict: It has another number of turns, or one is open.
    """
    if not agent.exists:
        raise AgentNotFound(agent.id)
    counted = agent.counted(last)
    is_open = last is not None and not last.is_terminal
    if is_open or expected not in (None, counted):
        raise AgentTurnConflict(agent.id, turn=counted, job=agent.last if is_open else None)
    return counted + 1


def require_turn(agent: Agent, last: JobStatus | None, turn: int) -> None:
    """Refuse a turn that the history does not have.

    Raises:
        AgentNotFound: The agent was deleted, or never created.
        InvalidRequest: There is no such turn with an answer.
    """
    if not agent.exists:
        raise AgentNotFound(agent.id)
    counted = agent.counted(last)
    if turn > counted:
        raise InvalidRequest(f"agent {agent.id} has {counted} turns", field="from_turn")


def agent_of(recorded: RecordedEvent, job: Job | None) -> AgentId | None:
    """Return the agent that an event changes, if it changes one.

    Args:
        job: The job of the event after it, for an event of a job.
    """
    if recorded.stream.startswith(AGENT_STREAM):
        return AgentId(recorded.stream.removeprefix(AGENT_STREAM))
    if recorded.type in _JOB_TYPES and job is not None and job.submitted.agent is not None:
        return AgentId(job.submitted.agent)
    return None


def evolve(agent: Agent, recorded: RecordedEvent, job: Job | None = None) -> Agent:
    """Return the agent after the next event that changes it.

    Args:
        job: The job of the event after it, or the job that an event of a context names.
    """
    if not agent.first_seen:
        owner = recorded.data.get("owner") if job is None else job.submitted.owner
        agent = replace(agent, first_seen=recorded.recorded_at, owner=owner)
    change = usage_of(recorded, job)
    agent = replace(
        agent,
        last_seen=recorded.recorded_at,
        position=recorded.position,
        figures=agent.figures if change is None else agent.figures + change.figures,
    )
    event = decode_recorded(recorded)
    if is_job_event(recorded):
        return _after_job(event, agent, job_id_of(recorded))
    return _after(event, replace(agent, version=recorded.version), recorded)


def _after_job(event: Event, agent: Agent, job: JobId) -> Agent:
    match event:
        case JobSubmitted():
            return replace(agent, jobs=agent.jobs + 1, open_jobs=agent.open_jobs + 1, last_job=job)
        case AttemptStarted():
            known = agent.known_tokens + max(event.cached_tokens, event.known_tokens)
            return replace(agent, known_tokens=known, last_model=event.model)
        case JobRetried():
            return replace(agent, open_jobs=agent.open_jobs + 1)
        case _:
            return replace(agent, open_jobs=agent.open_jobs - 1)


def _after(event: Event, agent: Agent, recorded: RecordedEvent) -> Agent:
    match event:
        case AgentRegistered(profile=profile):
            return _created(profile, agent, recorded)
        case AgentChanged(profile=profile):
            return replace(agent, profile=profile)
        case AgentForked():
            return replace(
                _created(event.profile, agent, recorded),
                parent=event.parent,
                parent_life=event.parent_life,
                inherited=event.turn,
                base=event.job,
            )
        case AgentTurnAdded():
            kept = event.turn - agent.inherited - 1
            return replace(agent, turns=(*agent.turns[:kept], event.job))
        case AgentDeleted():
            return _without_history(agent)
        case _:
            return _after_cache(event, agent, recorded)


def _after_cache(event: Event, agent: Agent, recorded: RecordedEvent) -> Agent:
    """Return the agent after an event of its contexts."""
    tokens, blocks = agent.context_tokens, agent.disk_blocks
    match event:
        case AgentCacheSaved():
            tokens, blocks = event.tokens, len(event.blocks) + (event.tail is not None)
        case AgentCacheEvicted():
            tokens, blocks = 0, 0
        case AgentForgotten():
            agent, tokens, blocks = _without_history(agent), 0, 0
        case _:
            assert isinstance(event, AgentCacheRestored | AgentCacheMissed)
    return replace(
        agent,
        cache_event=recorded.type,
        cache_event_at=recorded.recorded_at,
        context_tokens=tokens,
        disk_blocks=blocks,
    )


def _created(profile: Digest, agent: Agent, recorded: RecordedEvent) -> Agent:
    return replace(
        _without_history(agent),
        life=recorded.version,
        created_at=recorded.recorded_at,
        created_position=recorded.position,
        profile=profile,
    )


def _without_history(agent: Agent) -> Agent:
    return replace(
        agent,
        life=0,
        created_at="",
        created_position=0,
        profile=Digest(""),
        parent=None,
        parent_life=0,
        inherited=0,
        base=None,
        turns=(),
    )
