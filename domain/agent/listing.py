"""The port through which agents are listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from domain.agent.views import AgentView
from domain.values import AgentId, Owner


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
