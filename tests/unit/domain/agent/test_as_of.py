"""The list of agents, folded from the whole log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.agent.as_of import Agents, fold_agents
from domain.agent.views import TURNS_KEPT, AgentJob, AgentView
from domain.events.agent import AgentRegistered
from domain.events.event import Event
from domain.events.job import JobAttached, JobCancelled, JobFailed, JobRetried
from domain.values import AgentId, JobId, Usage, digest_of
from tests.support.builders.job_events import completed, started, submitted, worker_event
from tests.support.builders.told_log import ToldLog, second

A, B = AgentId("a"), AgentId("b")
REGISTERED = AgentRegistered(agent=A, profile=digest_of(b"profile"))
DONE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
FAILED = JobFailed(error="engine_failure", message="it broke")


def _views(log: ToldLog) -> dict[str, AgentView]:
    return {view.id: view for view in fold_agents(log.told())}


def _accept(log: ToldLog, *numbers: int, agent: str = "a") -> None:
    for number in numbers:
        log.tell(f"job-{number}", submitted(agent=agent))


def _turns(log: ToldLog) -> list[tuple[str, str]]:
    return [(turn.job, turn.status) for turn in _views(log)[A].turns]


def _names(first: int, last: int) -> list[str]:
    return [f"job-{number}" for number in range(first, last + 1)]


def test_no_events_make_no_agents() -> None:
    assert fold_agents([]) == ()


def test_an_agent_has_its_jobs_as_turns_oldest_first() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(agent="a"), started(), completed())
    log.tell("job-2", submitted(agent="a"))
    assert fold_agents(log.told()) == (
        AgentView(
            id=A,
            first_seen=second(0),
            last_seen=second(3),
            jobs=2,
            open_jobs=1,
            usage=DONE,
            known_tokens=4,
            last_job="job-2",
            last_model="m",
            position=4,
            turns=(
                AgentJob(job=JobId("job-1"), at=second(0), status="completed", usage=DONE),
                AgentJob(job=JobId("job-2"), at=second(3), status="queued"),
            ),
        ),
    )


def test_agents_seen_last_come_first() -> None:
    log = ToldLog()
    _accept(log, 1, agent="a")
    _accept(log, 2, agent="b")
    _accept(log, 3, agent="c")
    log.tell("job-2", started())
    assert [view.id for view in fold_agents(log.told())] == ["b", "c", "a"]
    log.tell("agent-a", REGISTERED)
    assert [view.id for view in fold_agents(log.told())] == ["a", "b", "c"]


def test_an_agent_without_jobs_has_no_turns() -> None:
    log = ToldLog()
    log.tell("agent-a", REGISTERED)
    _accept(log, 1, agent="b")
    views = _views(log)
    assert (views[A].turns, views[A].created_position) == ((), 1)
    assert [turn.job for turn in views[B].turns] == ["job-1"]


def test_jobs_without_an_agent_and_other_streams_are_left_out() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(), started(), completed())
    log.tell("worker-1", worker_event())
    assert fold_agents(log.told()) == ()


def test_every_past_can_be_read_while_the_log_goes_on() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(agent="a"), started(), FAILED, JobRetried(reason="api"))
    agents = Agents()
    seen = []
    for recorded in log.told():
        agents.fold(recorded)
        (view,) = agents.views()
        seen.append((view.position, view.open_jobs, view.turns[0].status))
    assert seen == [(1, 1, "queued"), (2, 1, "running"), (3, 0, "failed"), (4, 1, "queued")]


def test_the_oldest_turns_leave_the_list_and_stay_counted() -> None:
    log = ToldLog()
    _accept(log, *range(1, TURNS_KEPT + 1))
    assert [job for job, _ in _turns(log)] == _names(1, TURNS_KEPT)
    _accept(log, TURNS_KEPT + 1, TURNS_KEPT + 2)
    assert [job for job, _ in _turns(log)] == _names(3, TURNS_KEPT + 2)
    assert _views(log)[A].jobs == TURNS_KEPT + 2


def test_turns_of_one_agent_do_not_crowd_out_those_of_another() -> None:
    log = ToldLog()
    _accept(log, 0, agent="b")
    _accept(log, *range(1, TURNS_KEPT + 2))
    views = _views(log)
    assert [turn.job for turn in views[B].turns] == ["job-0"]
    assert [turn.job for turn in views[A].turns] == _names(2, TURNS_KEPT + 1)


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
    _accept(log, *range(1, TURNS_KEPT + 1))
    log.tell("job-0", end)
    view = _views(log)[A]
    assert (view.jobs, view.open_jobs) == (TURNS_KEPT + 1, TURNS_KEPT)
    assert view.usage == (usage or replace(DONE, completion_tokens=1))
    assert view.position == TURNS_KEPT + 3


def test_a_job_that_is_no_turn_any_more_can_be_retried() -> None:
    log = ToldLog()
    log.tell("job-0", submitted(agent="a"), started(), FAILED)
    _accept(log, *range(1, TURNS_KEPT + 1))
    log.tell("job-0", JobRetried(reason="api"), started(2), completed(2))
    view = _views(log)[A]
    assert (view.open_jobs, view.usage, view.known_tokens) == (TURNS_KEPT, DONE, 8)
    assert view.last_seen == second(TURNS_KEPT + 5)


def test_a_repeated_request_for_an_old_answer_changes_nothing() -> None:
    log = ToldLog()
    log.tell("job-0", submitted(agent="a"), started(), completed())
    _accept(log, *range(1, TURNS_KEPT + 1))
    before = fold_agents(log.told())
    log.tell("job-0", JobAttached(reason="retry"))
    assert fold_agents(log.told()) == before
