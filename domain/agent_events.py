"""What is said of an agent itself, on its own stream."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import AgentId


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


AgentEvent = AgentForgotten
