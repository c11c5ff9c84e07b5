"""Sums by model and agent over the whole log, with a bounded number of agents.

The tables of usage have a row for each hour, model and agent. Hours that are over do not change, so
they are read once, and a scrape reads the last ones only.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from domain.ports import Clock
from domain.usage.figures import UsageFigures
from domain.usage.fold import HOUR_CHARACTERS
from domain.usage.ports import UsageViews
from domain.values import rfc3339

#: The label of the agents without sums of their own.
OTHER: Final = "other"
#: Hours that are read again: clocks of several machines differ, and a commit may come late.
OPEN_HOURS: Final = 3

_Sums = dict[tuple[str, str], UsageFigures]


class AgentTotals:
    """Reads the sums. Safe to use from any thread.

    The first agents of the log have sums of their own. An agent that has once been counted under
    ``OTHER`` stays there, so that no sum decreases.

    Args:
        usage: The tables of usage.
        clock: Now.
        agents_max: Agents with sums of their own; 0: agents have no samples of their own.
    """

    def __init__(self, usage: UsageViews, clock: Clock, agents_max: int) -> None:
        self._usage = usage
        self._clock = clock
        self._agents_max = agents_max
        self._lock = threading.Lock()
        self._until: str | None = None
        self._over: _Sums = {}

    def read(self) -> _Sums:
        """Return the sums by model and by the label of the agent.

        Jobs without an agent have an empty label, and so have all jobs where no
        agent has sums of its own.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        if not self._agents_max:
            return {(model, ""): sums for model, sums in self._usage.totals().items()}
        with self._lock:
            found = self._by_agent()
        # Read after the sums: each agent in them has its row.
        named = {"", *self._usage.first_agents(self._agents_max)}
        totals: _Sums = {}
        for (model, agent), sums in found.items():
            key = model, agent if agent in named else OTHER
            totals[key] = totals.get(key, UsageFigures()) + sums
        return totals

    def _by_agent(self) -> _Sums:
        """Return the sums of all agents, and keep those of the hours that are over."""
        open_from = _hour(self._clock.now() - timedelta(hours=OPEN_HOURS))
        if self._until is None or open_from > self._until:
            fresh = self._usage.by_agent(since=self._until, until=open_from)
            self._over, self._until = _added(self._over, fresh), open_from
        return _added(self._over, self._usage.by_agent(since=self._until))


def _hour(moment: datetime) -> str:
    return rfc3339(moment)[:HOUR_CHARACTERS]


def _added(sums: _Sums, more: Mapping[tuple[str, str], UsageFigures]) -> _Sums:
    totals = dict(sums)
    for key, figures in more.items():
        totals[key] = totals.get(key, UsageFigures()) + figures
    return totals
