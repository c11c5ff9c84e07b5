"""What is said of an agent itself, on its own stream."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from domain.values import AgentId, Digest, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered:
    """An agent that keeps its own history was made; see ``domain.agent.state``.

    Attributes:
        agent: Its name.
        profile: Digest of its system prompt, tools and options.
    """

    agent: AgentId
    profile: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnAdded:
    """A job was accepted as a turn of an agent; it counts once the job has its answer.

    A turn whose job ended without an answer is replaced by the next one of the same number.

    Attributes:
        agent: Whose turn.
        turn: Its number, from 1.
        job: The job.
    """

    agent: AgentId
    turn: int
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentForked:
    """An agent began where another one was after one of its turns.

    Attributes:
        agent: The new agent.
        parent: The other one.
        parent_life: Version of the event of the parent's stream that made the parent.
        turn: The turn after which it goes its own way; 0 takes over none.
        profile: Digest of what the parent was registered with.
        job: The job of that turn; ``None`` for turn 0.
        request: Digest of that job's request, so that the text outlives the parent's.
        output: Digest of its answer, for the same reason.
    """

    agent: AgentId
    parent: AgentId
    parent_life: int
    turn: int
    profile: Digest
    job: JobId | None = None
    request: Digest | None = None
    output: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeleted:
    """Its owner wants to see an agent no more; its texts stay until somebody erases them."""

    agent: AgentId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentForgotten:
    """The texts of an agent were erased; what its jobs were stays in the log without them.

    Attributes:
        agent: Whose.
        jobs: How many jobs it had.
        payloads: How many texts were erased; those that others need too are not.
        payload_bytes: Their length together.
        shared: How many texts stay because jobs of others refer to them.
    """

    agent: AgentId
    jobs: int
    payloads: int
    payload_bytes: int
    shared: int


AgentEvent = AgentRegistered | AgentTurnAdded | AgentForked | AgentDeleted | AgentForgotten
#: Events of an agent's stream that make its history; no archive takes them out of the log.
AGENT_HISTORY = frozenset(cls.__name__ for cls in typing.get_args(AgentEvent))
