"""The usage and agents projections of an event log in memory."""

from __future__ import annotations

from collections.abc import Mapping

from domain.agent.state import Agent
from domain.agent.views import AgentPage, FoldedAgents, fold_agents
from domain.job.state import Job
from domain.log.ports import EventLog
from domain.usage.figures import BOUNDS_US, Histogram, Measure, UsageFigures, UsageGroup, bucket_of
from domain.usage.fold import DAY_CHARACTERS, UsageChange
from domain.values import AgentId, Owner


class InMemoryUsageViews:
    """``UsageViews`` of an ``InMemoryEventLog``: every addition, summed when asked."""

    def __init__(self) -> None:
        self.changes: list[UsageChange] = []

    def totals(self) -> Mapping[str, UsageFigures]:
        return self.grouped(UsageGroup.MODEL)

    def histograms(self) -> Mapping[tuple[str, Measure], Histogram]:
        found: dict[tuple[str, Measure], list[int]] = {}
        for change in self.changes:
            for measure, us in change.durations:
                found.setdefault((change.key.model, measure), []).append(us)
        return {
            key: Histogram(
                counts=tuple(
                    sum(1 for us in durations if bucket_of(key[1], us) == bucket)
                    for bucket in range(len(BOUNDS_US[key[1]]) + 1)
                ),
                sum_us=sum(durations),
            )
            for key, durations in found.items()
        }

    def by_agent(
        self, *, since: str | None = None, until: str | None = None
    ) -> Mapping[tuple[str, str], UsageFigures]:
        sums: dict[tuple[str, str], UsageFigures] = {}
        for change in self.changes:
            if (since or "") <= change.key.hour and (until is None or change.key.hour < until):
                key = change.key.model, change.key.agent
                sums[key] = sums.get(key, UsageFigures()) + change.figures
        return sums

    def first_agents(self, limit: int) -> tuple[str, ...]:
        agents = dict.fromkeys(change.key.agent for change in self.changes if change.key.agent)
        return tuple(agents)[:limit]

    def grouped(
        self,
        group: UsageGroup,
        *,
        since: str | None = None,
        until: str | None = None,
        owner: Owner | None = None,
    ) -> Mapping[str, UsageFigures]:
        sums: dict[str, UsageFigures] = {}
        for change in self.changes:
            if owner not in {None, change.key.owner}:
                continue
            if (since or "") <= change.key.hour and (until is None or change.key.hour < until):
                names = {**change.key._asdict(), "day": change.key.hour[:DAY_CHARACTERS]}
                name = names[group.value]
                sums[name] = sums.get(name, UsageFigures()) + change.figures
        return dict(sorted(sums.items()))


class InMemoryAgentViews:
    """``AgentViews`` of an ``InMemoryEventLog``: folds the whole log for each call."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def get(self, agent: AgentId) -> Agent | None:
        return self._folded().get(agent)

    def page(
        self,
        *,
        limit: int,
        before: AgentId | None = None,
        is_registered: bool = False,
        owner: Owner | None = None,
    ) -> AgentPage:
        return self._folded().page(
            limit=limit, before=before, is_registered=is_registered, owner=owner
        )

    def latest_jobs(self, agent: AgentId) -> tuple[Job, ...]:
        return self._folded().latest_jobs(agent)

    def _folded(self) -> FoldedAgents:
        return fold_agents(self._log.select(limit=self._log.head().position))
