"""Sums by agent: bounded, never decreasing, and read once for each hour that is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.operate.metrics import OPEN_HOURS, OTHER, AgentTotals
from domain.values import AgentId, StreamName
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock


@dataclass
class Asked:
    """Forwards to the views, and records which hours are asked for."""

    usage: Any
    since: list[str | None]

    def by_agent(self, *, since: str | None = None, until: str | None = None) -> Any:
        self.since.append(since)
        return self.usage.by_agent(since=since, until=until)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.usage, name)


class World:
    """A log, and what a scrape reads of it."""

    def __init__(self, agents_max: int) -> None:
        self.clock = FakeClock()
        self.log = InMemoryEventLog(self.clock)
        self.asked = Asked(self.log.usage, [])
        self.totals = AgentTotals(self.asked, self.clock, agents_max)
        self.jobs = 0

    def run(self, agent: str | None) -> None:
        self.jobs += 1
        accepted = replace(submitted(), agent=None if agent is None else AgentId(agent))
        events = [draft(one) for one in (accepted, started(), completed())]
        self.log.append(StreamName(f"job-{self.jobs}"), events, expected_version=0)

    def counts(self) -> dict[str, int]:
        return {agent: sums.completed for (_, agent), sums in self.totals.read().items()}


def test_later_agents_count_as_other_and_jobs_without_one_by_themselves() -> None:
    world = World(agents_max=2)
    for agent in ("b", None, "a", "c", "b", "d"):
        world.run(agent)
    assert world.counts() == {"b": 2, "": 1, "a": 1, OTHER: 2}


def test_agents_are_not_told_apart_by_default() -> None:
    world = World(agents_max=0)
    for agent in ("b", None, "a"):
        world.run(agent)
    assert world.counts() == {"": 3}


def test_hours_that_are_over_are_read_once() -> None:
    world = World(agents_max=2)
    world.run("a")
    world.counts()
    first = world.asked.since[-1]
    world.clock.advance((OPEN_HOURS + 2) * 3600)
    world.run("a")
    assert world.counts() == {"a": 2}
    world.asked.since.clear()
    assert world.counts() == {"a": 2}
    (since,) = world.asked.since
    assert since is not None
    assert first is not None
    assert since > first


@given(
    agents_max=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.integers(0, 9000))),
)
def test_no_sum_decreases_and_all_jobs_are_counted(
    agents_max: int, steps: list[tuple[str | None, int]]
) -> None:
    world, before = World(agents_max), dict[str, int]()
    for number, (agent, seconds) in enumerate(steps, start=1):
        world.run(agent)
        world.clock.advance(seconds)
        found = world.counts()
        assert all(found.get(name, 0) >= count for name, count in before.items())
        assert sum(found.values()) == number
        assert len(found) <= agents_max + 2
        before = found
