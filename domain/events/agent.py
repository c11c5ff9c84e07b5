"""Events of an agent, on its stream ``agent-…``."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from domain.values import AgentId, Digest, JobId, Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered:
    """An agent that keeps its own history was created; see ``domain.agent.state``.

    Attributes:
        agent: Its name.
        profile: Digest of its system prompt, tools and options.
        owner: Name of the API key of the request; ``None`` without keys.
    """

    agent: AgentId
    profile: Digest
    owner: Owner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChanged:
    """The profile of an agent was replaced; its turns stay.

    Attributes:
        agent: The agent.
        profile: Digest of its new profile.
    """

    agent: AgentId
    profile: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnAdded:
    """A job was accepted as a turn of an agent; it counts once the job has its answer.

    A turn whose job ended without an answer is replaced by the next one of the same number.

    Attributes:
        turn: Its number, from 1.
    """

    agent: AgentId
    turn: int
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentForked:
    """An agent was created that continues another one after one of its turns.

    Attributes:
        agent: The new agent.
        parent: The forked agent.
        parent_life: Version of the event of the parent's stream that created the parent.
        turn: The last inherited turn; 0 for none.
        profile: Digest of the parent's profile.
        job: The job of that turn; ``None`` for turn 0.
        request: Digest of that job's request, so that the text outlives the parent's.
        output: Digest of its answer, for the same reason.
        owner: As in ``AgentRegistered``.
    """

    agent: AgentId
    parent: AgentId
    parent_life: int
    turn: int
    profile: Digest
    job: JobId | None = None
    request: Digest | None = None
    output: Digest | None = None
    owner: Owner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeleted:
    """The owner deleted an agent; texts that no other owner needs are erased soon after."""

    agent: AgentId


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentForgotten:
    """The texts of an agent were erased; the events of its jobs stay in the log.

    Attributes:
        shared: Number of texts that stay because jobs of other agents refer to them.
    """

    agent: AgentId
    jobs: int
    payloads: int
    payload_bytes: int
    shared: int


AgentEvent = (
    AgentRegistered | AgentChanged | AgentTurnAdded | AgentForked | AgentDeleted | AgentForgotten
)
#: Events of an agent's stream that make its history; no archive takes them out of the log.
AGENT_HISTORY = frozenset(cls.__name__ for cls in typing.get_args(AgentEvent))
