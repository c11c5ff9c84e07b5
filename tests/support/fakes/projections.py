"""The usage and agents projections of an event log in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from domain.agent.as_of import fold_agents
from domain.agent.views import AgentPage, AgentView
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

    def get(self, agent: AgentId) -> AgentView | None:
        return next((view for view in self._views() if view.id == agent), None)

    def page(
        self,
        *,
        limit: int,
        before: AgentId | None = None,
        is_registered: bool = False,
        owner: Owner | None = None,
    ) -> AgentPage:
        views = [view for view in self._views() if owner in {None, view.owner}]
        if is_registered:
            views = [view for view in views if view.created_position]
            views.sort(key=lambda view: -view.created_position)
        if before is not None:
            names = [view.id for view in views]
            views = views[names.index(before) + 1 :] if before in names else []
        rows = tuple(replace(view, turns=()) for view in views[:limit])
        return AgentPage(agents=rows, has_more=len(views) > limit)

    def turns(self, agents: Iterable[AgentView]) -> tuple[AgentView, ...]:
        found = {view.id: view for view in self._views()}
        return tuple(replace(view, turns=found[view.id].turns) for view in agents)

    def _views(self) -> tuple[AgentView, ...]:
        return fold_agents(self._log.read_all(limit=self._log.head().position))
