"""What the usage projection returns, on the fake and in both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.events.cache import AgentCacheMissed, AgentCacheRestored
from domain.events.event import Event
from domain.usage.figures import BOUNDS_US, Measure, UsageGroup
from domain.values import JobId, StreamName
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, Store, opened_store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def _run(store: Store, name: str, agent: str | None) -> None:
    events = [draft(submitted(agent=agent)), draft(started()), draft(completed())]
    store.log.append(StreamName(name), events, expected_version=0)


def test_an_empty_log_has_no_usage(store: Store) -> None:
    assert store.usage.totals() == {}
    assert store.usage.histograms() == {}
    assert store.usage.grouped(UsageGroup.DAY) == {}


def test_totals_are_the_sums_of_the_hours(store: Store) -> None:
    for number in range(6):
        _run(store, f"job-{number}", "ann" if number % 2 else None)
        store.clock.advance(1800)
    totals = store.usage.totals()
    assert totals["m"].jobs == 6
    for group in UsageGroup:
        found = store.usage.grouped(group)
        assert list(found) == sorted(found)
        assert sum(one.prompt_tokens for one in found.values()) == totals["m"].prompt_tokens
    assert store.usage.grouped(UsageGroup.MODEL) == totals
    assert [one.jobs for one in store.usage.grouped(UsageGroup.HOUR).values()] == [2, 2, 2]
    assert {name: one.jobs for name, one in store.usage.grouped(UsageGroup.AGENT).items()} == {
        "": 3,
        "ann": 3,
    }
    histogram = store.usage.histograms()["m", Measure.FIRST_TOKEN]
    assert (histogram.count, histogram.sum_us) == (6, 18_000)
    assert len(histogram.counts) == len(BOUNDS_US[Measure.FIRST_TOKEN]) + 1


def test_sums_by_agent_are_those_of_the_first_agents_too(store: Store) -> None:
    for number, agent in enumerate(["zoe", "ann", None, "zoe"]):
        _run(store, f"job-{number}", agent)
        store.clock.advance(1800)
    sums = store.usage.by_agent()
    assert {key: one.jobs for key, one in sums.items()} == {
        ("m", "zoe"): 2,
        ("m", "ann"): 1,
        ("m", ""): 1,
    }
    first, second = store.usage.grouped(UsageGroup.HOUR)
    assert {key[1] for key in store.usage.by_agent(since=second)} == {"", "zoe"}
    assert {key[1] for key in store.usage.by_agent(since=first, until=second)} == {"zoe", "ann"}
    assert store.usage.first_agents(1) == ("zoe",)
    assert store.usage.first_agents(9) == ("zoe", "ann")


def test_since_is_included_and_until_is_not(store: Store) -> None:
    for number in range(3):
        _run(store, f"job-{number}", None)
        store.clock.advance(3600)
    first, second, third = store.usage.grouped(UsageGroup.HOUR)
    assert set(store.usage.grouped(UsageGroup.HOUR, since=second)) == {second, third}
    assert set(store.usage.grouped(UsageGroup.HOUR, until=second)) == {first}
    assert store.usage.grouped(UsageGroup.AGENT, since=first, until=first) == {}


def test_contexts_of_an_agent_are_counted_with_the_model_of_the_job(store: Store) -> None:
    _run(store, "job-1", "ann")
    events: list[Event] = [
        AgentCacheRestored(
            job=JobId("job-1"),
            source="disk",
            tokens=500,
            disk_tokens=200,
            prompt_tokens=600,
            took_ms=7.5,
        ),
        AgentCacheMissed(job=JobId("job-1"), reason="gone", at_token=1, missed_tokens=30),
        AgentCacheMissed(job=JobId("job-gone"), reason="gone", at_token=1, missed_tokens=5),
    ]
    for version, event in enumerate(events):
        store.log.append(StreamName("agent-ann"), [draft(event)], expected_version=version)
    sums = store.usage.totals()
    assert (sums["m"].hits, sums["m"].ram_tokens, sums["m"].disk_tokens) == (1, 300, 200)
    assert (sums["m"].misses_gone, sums[""].misses_gone) == (1, 1)
    assert store.usage.grouped(UsageGroup.AGENT)["ann"].missed_tokens == 35
