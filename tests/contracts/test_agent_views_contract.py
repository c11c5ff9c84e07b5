"""What the agents projection returns, on the fake and in both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.agent.views import AgentPage
from domain.events.agent import AgentDeleted, AgentForked, AgentRegistered
from domain.events.cache import AgentCacheMissed, AgentCacheRestored
from domain.events.event import Event
from domain.values import AgentId, JobId, StreamName, Usage, digest_of
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_stores import STORES, Store, opened_store

PROFILE = digest_of(b"profile")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


def _append(store: Store, stream: str, *events: Event) -> None:
    version = len(store.log.load(StreamName(stream)))
    drafts = [draft(event) for event in events]
    store.log.append(StreamName(stream), drafts, expected_version=version)
    store.clock.advance(1)


def _names(page: AgentPage) -> list[str]:
    return [agent.id for agent in page.agents]


def test_agents_come_in_order_of_their_last_activity(store: Store) -> None:
    for number, agent in enumerate(("a", "b", "c", "a")):
        _append(store, f"job-{number}", submitted(agent=agent))
    _append(store, "job-none", submitted())
    assert _names(store.agents.page(limit=10)) == ["a", "c", "b"]
    first = store.agents.page(limit=2)
    assert (_names(first), first.has_more) == (["a", "c"], True)
    rest = store.agents.page(limit=2, before=AgentId("c"))
    assert (_names(rest), rest.has_more) == (["b"], False)
    assert _names(store.agents.page(limit=2, before=AgentId("unknown"))) == []
    assert store.agents.get(AgentId("unknown")) is None


def test_registered_agents_come_in_order_of_their_creation(store: Store) -> None:
    for agent in ("a", "b", "c"):
        _append(store, f"agent-{agent}", AgentRegistered(agent=AgentId(agent), profile=PROFILE))
    fork = AgentForked(
        agent=AgentId("d"), parent=AgentId("a"), parent_life=1, turn=2, profile=PROFILE
    )
    _append(store, "agent-d", fork)
    _append(store, "job-1", submitted(agent="a"))
    _append(store, "job-2", submitted(agent="session"))
    _append(store, "agent-b", AgentDeleted(agent=AgentId("b")))
    page = store.agents.page(limit=10, is_registered=True)
    assert _names(page) == ["d", "c", "a"]
    assert (page.agents[0].parent, page.agents[0].inherited) == ("a", 2)
    rest = store.agents.page(limit=10, before=AgentId("c"), is_registered=True)
    assert _names(rest) == ["a"]
    _append(store, "agent-b", AgentRegistered(agent=AgentId("b"), profile=PROFILE))
    assert _names(store.agents.page(limit=1, is_registered=True)) == ["b"]


def test_an_agent_has_its_sums_and_its_turns(store: Store) -> None:
    _append(store, "job-1", submitted(agent="a"), started(), completed())
    _append(store, "job-2", submitted(agent="a"), started())
    job = JobId("job-1")
    _append(
        store,
        "agent-a",
        AgentCacheRestored(
            job=job, source="disk", tokens=9, disk_tokens=4, prompt_tokens=10, took_ms=1.0
        ),
        AgentCacheMissed(job=job, reason="gone", at_token=1, missed_tokens=3),
    )
    view = store.agents.get(AgentId("a"))
    assert view is not None
    assert (view.jobs, view.open_jobs, view.last_job, view.last_model) == (2, 1, "job-2", "m")
    assert view.figures.usage == Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
    assert (
        view.known_tokens,
        view.figures.hits,
        view.figures.ram_tokens,
        view.figures.disk_tokens,
    ) == (8, 1, 5, 4)
    assert (view.figures.misses, view.figures.misses_gone, view.figures.missed_tokens) == (1, 1, 3)
    assert [(job.id, job.status.value) for job in store.agents.latest_jobs(AgentId("a"))] == [
        ("job-1", "completed"),
        ("job-2", "running"),
    ]
    assert store.agents.latest_jobs(AgentId("b")) == ()
    assert store.agents.page(limit=1).agents == (view,)
