"""The state of an agent that keeps its own history, folded from its events. Pure.

The history is a list of jobs. The request of a job holds the whole conversation before it, so the
next turn needs only that request and its answer. A turn counts once its job has an answer. Until
then no other turn can be added. A turn that ended without an answer does not count, and the next
turn takes its number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import singledispatch
from typing import Any

from domain.chat.request import canonical_json
from domain.errors import AgentNotFound, AgentTurnConflict, InvalidRequest
from domain.events.agent import (
    AgentDeleted,
    AgentEvent,
    AgentForgotten,
    AgentForked,
    AgentRegistered,
    AgentTurnAdded,
)
from domain.values import AgentId, Digest, JobId, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of an agent; a turn overrides them, and ``None`` means the default of the service."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] | None = None
    thinking: bool | None = None

    def over(self, defaults: AgentOptions) -> AgentOptions:
        """Return these options; those that are ``None`` come from ``defaults``."""
        given = {name: value for name, value in self.by_name().items() if value is not None}
        return replace(defaults, **given)

    def by_name(self) -> dict[str, Any]:
        """Return every option by its name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The settings that all turns of an agent share.

    Attributes:
        system: The system prompt.
        tools: Definitions in OpenAI's function format.
        options: Generation options.
    """

    system: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    options: AgentOptions = AgentOptions()

    def to_bytes(self) -> bytes:
        """Return the canonical JSON form, whose digest the events hold."""
        return canonical_json(asdict(self))

    @classmethod
    def from_bytes(cls, payload: bytes) -> Profile:
        """Return the profile that ``to_bytes`` encoded."""
        data = json.loads(payload)
        options = dict(data["options"])
        if options.get("stop") is not None:
            options["stop"] = tuple(options["stop"])
        return cls(
            system=data["system"], tools=tuple(data["tools"]), options=AgentOptions(**options)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The state of one agent.

    Attributes:
        id: Its name.
        version: Version of its stream, which also has the events of its contexts.
        life: Version of the event that created it, 0 if there is none or it was deleted.
        created_at: RFC 3339 instant of that event.
        parent: The agent that it was forked from.
        parent_life: ``life`` of the parent, since another agent may have got its name.
        inherited: Number of turns that the fork took over.
        base: The job of the last inherited turn.
        turns: The jobs of its own turns; the last may be open, or have ended without an answer.
    """

    id: AgentId
    version: int = 0
    life: int = 0
    created_at: str = ""
    profile: Digest = Digest("")
    parent: AgentId | None = None
    parent_life: int = 0
    inherited: int = 0
    base: JobId | None = None
    turns: tuple[JobId, ...] = ()

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
        msg = f"agent {agent.id} has {counted} turns"
        raise InvalidRequest(msg, field="from_turn")


def evolve(agent: Agent, event: AgentEvent, at: str) -> Agent:
    """Return the agent after the next event of its stream.

    Args:
        agent: The state before, with the ``version`` of the event.
        at: RFC 3339 instant of its record.
    """
    return _after(event, agent, at)


@singledispatch
def _after(event: AgentEvent, agent: Agent, at: str) -> Agent:
    raise NotImplementedError(event)


@_after.register
def _(event: AgentRegistered, agent: Agent, at: str) -> Agent:
    version = agent.version
    return Agent(id=agent.id, version=version, life=version, created_at=at, profile=event.profile)


@_after.register
def _(event: AgentForked, agent: Agent, at: str) -> Agent:
    return Agent(
        id=agent.id,
        version=agent.version,
        life=agent.version,
        created_at=at,
        profile=event.profile,
        parent=event.parent,
        parent_life=event.parent_life,
        inherited=event.turn,
        base=event.job,
    )


@_after.register
def _(event: AgentTurnAdded, agent: Agent, at: str) -> Agent:
    del at
    kept = event.turn - agent.inherited - 1
    return replace(agent, turns=(*agent.turns[:kept], event.job))


@_after.register(AgentDeleted)
@_after.register(AgentForgotten)
def _(event: AgentEvent, agent: Agent, at: str) -> Agent:
    del event, at
    return Agent(id=agent.id, version=agent.version)
