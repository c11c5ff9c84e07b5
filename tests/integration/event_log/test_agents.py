"""The list of agents, from the log alone."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from domain.agent.state import Agent
from domain.agent.views import LATEST_JOBS_MAX, FoldedAgents, fold_agents
from domain.chat.request import canonical_json
from domain.events.agent import AgentForgotten
from domain.events.cache import AgentCacheMissed, AgentCacheRestored, AgentCacheSaved
from domain.events.event import Event
from domain.events.job import JobFailed, JobRetried, JobSubmitted
from domain.values import AgentId, JobId, StreamName, Usage
from ops.cli.agents import row_of
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.log.database import reader_engine
from ops.log.reader import LogReader
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.job_histories import histories
from tests.support.builders.log_files import new_log
from tests.support.day_and_night import examples
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

SAVED = AgentCacheSaved(job=JobId("job-0"), fingerprint="f", blocks=("a",), tail="b", tokens=300)
RESTORED = AgentCacheRestored(
    job=JobId("job-0"), source="ram", tokens=5, disk_tokens=0, prompt_tokens=9, took_ms=1.0
)
MISSED = AgentCacheMissed(job=JobId("job-0"), reason="gone", at_token=0, missed_tokens=20)
FORGOTTEN = AgentForgotten(agent=AgentId("a"), jobs=1, payloads=2, payload_bytes=3, shared=0)

cache_lives = st.lists(st.sampled_from([SAVED, RESTORED, MISSED, FORGOTTEN]), max_size=5)


def rows(agents: FoldedAgents) -> bytes:
    found = agents.page(limit=100).agents
    return canonical_json([row_of(agent, agents.latest_jobs(agent.id)) for agent in found])


@examples(5, night=10)
@given(
    st.lists(histories(), min_size=1, max_size=4),
    st.lists(cache_lives, min_size=2, max_size=2),
    st.randoms(use_true_random=False),
)
def test_every_past_is_what_the_live_list_was_then(
    lives: list[tuple[Event, ...]], caches: list[list[Event]], order: Any
) -> None:
    streams = {f"job-{number}": list(life) for number, life in enumerate(lives)}
    streams |= {f"agent-{name}": life for name, life in zip("ab", caches, strict=True)}
    steps = [name for name, life in streams.items() for _ in life]
    order.shuffle(steps)
    live, snapshots = FoldedAgents(), {}
    with tempfile.TemporaryDirectory() as directory:
        url = new_log(Path(directory))
        with open_log(url, clock=SystemClock()) as log:
            versions = dict.fromkeys(streams, 0)
            for name in steps:
                event = streams[name][versions[name]]
                (recorded,) = log.append(
                    StreamName(name), [draft(event)], expected_version=versions[name]
                )
                versions[name] += 1
                live.fold(recorded)
                snapshots[recorded.position] = rows(live)
        engine = reader_engine(url)
        for position, snapshot in snapshots.items():
            past = fold_agents(LogReader(engine).walk(limit=position))
            assert rows(past) == snapshot
            events = list(LogReader(engine).walk(limit=position))
            asked = [one.data["agent"] for one in events if one.type == JobSubmitted.__name__]
            for view in past.page(limit=100).agents:
                assert view.jobs == asked.count(view.id)
                assert 0 <= view.open_jobs <= view.jobs
        engine.dispose()


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = InMemoryEventLog(self.clock)

    def tell(self, stream: str, *events: Event) -> None:
        version = len(self.log.load(StreamName(stream)))
        drafts = [draft(event) for event in events]
        self.log.append(StreamName(stream), drafts, expected_version=version)
        self.clock.advance(1)

    def folded(self) -> FoldedAgents:
        return fold_agents(self.log.read_all(limit=10_000))

    def agents(self) -> tuple[Agent, ...]:
        return self.folded().page(limit=100).agents

    def latest(self, agent: str) -> list[tuple[str, str, Usage]]:
        jobs = self.folded().latest_jobs(AgentId(agent))
        return [(job.id, job.status.value, job.own_usage) for job in jobs]


def test_tokens_are_those_of_jobs_that_have_ended() -> None:
    world = World()
    world.tell("job-1", submitted(agent="a"), started())
    (view,) = world.agents()
    begun = Usage(prompt_tokens=10, cached_tokens=4)
    assert (view.open_jobs, view.figures.usage) == (1, Usage())
    assert world.latest("a") == [("job-1", "running", begun)]
    world.tell("job-1", completed())
    world.tell("job-2", submitted(agent="a"), started(), completed())
    world.tell("job-3", submitted(), started(), completed())
    (view,) = world.agents()
    assert (view.jobs, view.open_jobs) == (2, 0)
    assert view.figures.usage == Usage(prompt_tokens=20, cached_tokens=8, completion_tokens=6)
    assert view.figures.cached_ratio == pytest.approx(0.4)
    done = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
    assert world.latest("a") == [(name, "completed", done) for name in ("job-1", "job-2")]


def test_a_job_that_is_retried_is_open_again() -> None:
    world = World()
    world.tell("job-1", submitted(agent="a"), JobFailed(error="e", message="m"))
    assert world.agents()[0].open_jobs == 0
    assert world.latest("a") == [("job-1", "failed", Usage())]
    world.tell("job-1", JobRetried(reason="api"))
    assert world.agents()[0].open_jobs == 1
    assert world.latest("a") == [("job-1", "queued", Usage())]


def test_contexts_are_counted_and_forgotten() -> None:
    world = World()
    world.tell("agent-a", SAVED, RESTORED, MISSED, RESTORED)
    (view,) = world.agents()
    assert (view.figures.hits, view.figures.misses, view.context_tokens, view.disk_blocks) == (
        2,
        1,
        300,
        2,
    )
    assert view.cache_event == "AgentCacheRestored"
    world.tell("agent-a", FORGOTTEN)
    (view,) = world.agents()
    assert (view.context_tokens, view.disk_blocks, view.cache_event) == (0, 0, "AgentForgotten")


def test_who_was_seen_last_comes_first_and_old_turns_go() -> None:
    world = World()
    for number in range(LATEST_JOBS_MAX + 3):
        world.tell(f"job-{number}", submitted(agent="a"))
    world.tell("job-b", submitted(agent="b"))
    world.tell("worker-1", worker_event())
    first, second = world.agents()
    assert (first.id, second.id) == ("b", "a")
    latest = world.latest("a")
    assert (second.jobs, len(latest)) == (LATEST_JOBS_MAX + 3, LATEST_JOBS_MAX)
    assert latest[-1][0] == f"job-{LATEST_JOBS_MAX + 2}"
    assert replace(first, position=0).last_seen == first.first_seen


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    clock = FakeClock()
    with open_log(new_log(tmp_path), clock=clock) as log:
        first = [draft(submitted(agent="writer")), draft(started()), draft(completed())]
        log.append(StreamName("job-1"), first, expected_version=0)
        clock.advance(60)
        log.append(StreamName("agent-writer"), [draft(SAVED)], expected_version=0)
        log.append(StreamName("job-2"), [draft(submitted(agent="other"))], expected_version=0)
    return tmp_path


def _run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments, "--data-dir", str(directory)])


def test_agents_are_listed_as_they_are_and_as_they_were(directory: Path) -> None:
    listed = json.loads(_run(directory, "agents", "ls", "--json").stdout)
    assert [(one["id"], one["jobs"]) for one in listed["data"]] == [("other", 1), ("writer", 1)]
    past = _run(directory, "agents", "ls", "--as-of", "4").stdout.splitlines()
    assert len(past) == 2
    assert past[1].startswith("writer")
    assert "4 (40%)" in past[1]


def test_an_agent_is_shown_with_its_turns(directory: Path) -> None:
    lines = _run(directory, "agents", "show", "writer").stdout.splitlines()
    assert lines[-1].split()[:6] == ["job-1", "completed", "10", "4", "6", "3"]
    assert any("300 tokens in 2 blocks" in line for line in lines)
    then = json.loads(_run(directory, "agents", "show", "writer", "--as-of", "2", "--json").stdout)
    assert (then["turns"][0]["status"], then["disk_blocks"]) == ("running", 0)
    missing = _run(directory, "agents", "show", "other", "--as-of", "3")
    assert missing.exit_code == 1
    assert "not in the log" in missing.stderr


def test_a_job_is_shown_as_it_was(directory: Path) -> None:
    then = json.loads(_run(directory, "jobs", "show", "job-1", "--as-of", "2", "--json").stdout)
    assert (then["status"], then["as_of"]["position"]) == ("running", 2)
    lines = _run(directory, "jobs", "show", "job-1", "--as-of", "5").stdout.splitlines()
    assert ["status", "completed"] in [line.split() for line in lines]
    assert _run(directory, "jobs", "show", "job-2", "--as-of", "4").exit_code == 1
