"""The list of agents, folded from the whole log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.agent.state import Agent
from domain.agent.views import LATEST_JOBS_MAX, FoldedAgents, fold_agents
from domain.events.agent import AgentRegistered
from domain.events.event import Event
from domain.events.job import JobAttached, JobCancelled, JobFailed, JobRetried
from domain.values import AgentId, Usage, digest_of
from tests.support.builders.job_events import completed, started, submitted, worker_event
from tests.support.builders.told_log import ToldLog, second

A, B = AgentId("a"), AgentId("b")
REGISTERED = AgentRegistered(agent=A, profile=digest_of(b"profile"))
DONE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
FAILED = JobFailed(error="engine_failure", message="it broke")


def _views(log: ToldLog) -> dict[str, Agent]:
    return {view.id: view for view in _agents(log)}


def _agents(log: ToldLog) -> tuple[Agent, ...]:
    return fold_agents(log.told()).page(limit=100).agents


def _accept(log: ToldLog, *numbers: int, agent: str = "a") -> None:
    for number in numbers:
        log.tell(f"job-{number}", submitted(agent=agent))


def _turns(log: ToldLog) -> list[tuple[str, str]]:
    return [(job.id, job.status.value) for job in fold_agents(log.told()).latest_jobs(A)]


def _names(first: int, last: int) -> list[str]:
    return [f"job-{number}" for number in range(first, last + 1)]


def test_no_events_make_no_agents() -> None:
    assert _agents(ToldLog()) == ()


def test_an_agent_has_its_jobs_as_turns_oldest_first() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(agent="a"), started(), completed())
    log.tell("job-2", submitted(agent="a"))
    assert _turns(log) == [("job-1", "completed"), ("job-2", "queued")]
    (agent,) = _agents(log)
    assert (agent.first_seen, agent.last_seen, agent.position) == (second(0), second(3), 4)
    assert (agent.jobs, agent.open_jobs, agent.last_job, agent.last_model) == (2, 1, "job-2", "m")
    assert (agent.figures.usage, agent.known_tokens) == (DONE, 4)


def test_agents_seen_last_come_first() -> None:
    log = ToldLog()
    _accept(log, 1, agent="a")
    _accept(log, 2, agent="b")
    _accept(log, 3, agent="c")
    log.tell("job-2", started())
    assert [view.id for view in _agents(log)] == ["b", "c", "a"]
    log.tell("agent-a", REGISTERED)
    assert [view.id for view in _agents(log)] == ["a", "b", "c"]


def test_an_agent_without_jobs_has_no_turns() -> None:
    log = ToldLog()
    log.tell("agent-a", REGISTERED)
    _accept(log, 1, agent="b")
    agents = fold_agents(log.told())
    assert (agents.latest_jobs(A), _views(log)[A].created_position) == ((), 1)
    assert [job.id for job in agents.latest_jobs(B)] == ["job-1"]


def test_jobs_without_an_agent_and_other_streams_are_left_out() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(), started(), completed())
    log.tell("worker-1", worker_event())
    assert _agents(log) == ()


def test_every_past_can_be_read_while_the_log_goes_on() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(agent="a"), started(), FAILED, JobRetried(reason="api"))
    agents = FoldedAgents()
    seen = []
    for recorded in log.told():
        agents.fold(recorded)
        (view,), (job,) = agents.page(limit=9).agents, agents.latest_jobs(A)
        seen.append((view.position, view.open_jobs, job.status.value))
    assert seen == [(1, 1, "queued"), (2, 1, "running"), (3, 0, "failed"), (4, 1, "queued")]


def test_the_oldest_turns_leave_the_list_and_stay_counted() -> None:
    log = ToldLog()
    _accept(log, *range(1, LATEST_JOBS_MAX + 1))
    assert [job for job, _ in _turns(log)] == _names(1, LATEST_JOBS_MAX)
    _accept(log, LATEST_JOBS_MAX + 1, LATEST_JOBS_MAX + 2)
    assert [job for job, _ in _turns(log)] == _names(3, LATEST_JOBS_MAX + 2)
    assert _views(log)[A].jobs == LATEST_JOBS_MAX + 2


def test_turns_of_one_agent_do_not_crowd_out_those_of_another() -> None:
    log = ToldLog()
    _accept(log, 0, agent="b")
    _accept(log, *range(1, LATEST_JOBS_MAX + 2))
    agents = fold_agents(log.told())
    assert [job.id for job in agents.latest_jobs(B)] == ["job-0"]
    assert [job.id for job in agents.latest_jobs(A)] == _names(2, LATEST_JOBS_MAX + 1)


@pytest.mark.parametrize(
    ("end", "usage"),
    [
        (completed(), DONE),
        (JobCancelled(attempt=1, usage=replace(DONE, completion_tokens=1)), None),
    ],
)
def test_a_job_that_is_no_turn_any_more_still_ends(end: Event, usage: Usage | None) -> None:
    log = ToldLog()
    log.tell("job-0", submitted(agent="a"), started())
    _accept(log, *range(1, LATEST_JOBS_MAX + 1))
    log.tell("job-0", end)
    view = _views(log)[A]
    assert (view.jobs, view.open_jobs) == (LATEST_JOBS_MAX + 1, LATEST_JOBS_MAX)
    assert view.figures.usage == (usage or replace(DONE, completion_tokens=1))
    assert view.position == LATEST_JOBS_MAX + 3


def test_a_job_that_is_no_turn_any_more_can_be_retried() -> None:
    log = ToldLog()
    log.tell("job-0", submitted(agent="a"), started(), FAILED)
    _accept(log, *range(1, LATEST_JOBS_MAX + 1))
    log.tell("job-0", JobRetried(reason="api"), started(2), completed(2))
    view = _views(log)[A]
    assert (view.open_jobs, view.figures.usage, view.known_tokens) == (LATEST_JOBS_MAX, DONE, 8)
    assert view.last_seen == second(LATEST_JOBS_MAX + 5)


def test_a_repeated_request_for_an_old_answer_changes_nothing() -> None:
    log = ToldLog()
    log.tell("job-0", submitted(agent="a"), started(), completed())
    _accept(log, *range(1, LATEST_JOBS_MAX + 1))
    before = _agents(log)
    log.tell("job-0", JobAttached(reason="retry"))
    assert _agents(log) == before
