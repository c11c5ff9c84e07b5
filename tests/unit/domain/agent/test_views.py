"""An agent after the events of its jobs, of its contexts and of its history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.agent.state import Agent, agent_of, evolve
from domain.events.agent import (
    AgentDeleted,
    AgentForgotten,
    AgentForked,
    AgentRegistered,
    AgentTurnAdded,
)
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
)
from domain.events.event import Event
from domain.events.job import (
    AttemptFailed,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobExpired,
    JobFailed,
    JobHidden,
    JobRetried,
)
from domain.job.state import Job, fold_recorded, is_job_event
from domain.usage.figures import UsageFigures
from domain.values import AgentId, JobId, Owner, Usage, digest_of
from tests.support.builders.job_events import completed, started, submitted, worker_event
from tests.support.builders.told_log import ToldLog, second

A = AgentId("a")
PARENT = AgentId("parent")
DONE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
CUT = Usage(prompt_tokens=10, completion_tokens=1)
FAILED = JobFailed(error="engine_failure", message="it broke")
FAILED_ONCE = AttemptFailed(attempt=1, error="engine_failure", message="it broke", retryable=True)
SAVED = AgentCacheSaved(
    job=JobId("job-1"), fingerprint="f", blocks=("x", "y"), tail="z", tokens=600
)
EVICTED = AgentCacheEvicted(agent=A, blocks=3, reason="operator")
FORGOTTEN = AgentForgotten(agent=A, jobs=1, payloads=2, payload_bytes=3, shared=0)
REGISTERED = AgentRegistered(agent=A, profile=digest_of(b"profile"))
FORKED = AgentForked(
    agent=A, parent=PARENT, parent_life=1, turn=2, profile=digest_of(b"profile"), job=JobId("job-9")
)


def _restored(tokens: int, disk_tokens: int) -> AgentCacheRestored:
    return AgentCacheRestored(
        job=JobId("job-1"),
        source="disk",
        tokens=tokens,
        disk_tokens=disk_tokens,
        prompt_tokens=900,
        took_ms=1.0,
    )


def _missed(reason: str, tokens: int) -> AgentCacheMissed:
    return AgentCacheMissed(job=JobId("job-1"), reason=reason, at_token=5, missed_tokens=tokens)


def _rows(log: ToldLog) -> dict[AgentId, Agent]:
    jobs: dict[str, Job] = {}
    rows: dict[AgentId, Agent] = {}
    for recorded in log.told():
        job = None
        if is_job_event(recorded):
            job = jobs[recorded.stream] = fold_recorded(jobs.get(recorded.stream), recorded)
        agent = agent_of(recorded, job)
        if agent is not None:
            rows[agent] = evolve(rows.get(agent, Agent(id=agent)), recorded, job)
    return rows


def _after_jobs(*lives: tuple[Event, ...]) -> Agent:
    log = ToldLog()
    for number, life in enumerate(lives, start=1):
        log.tell(f"job-{number}", *life)
    return _rows(log)[A]


def _after(*events: Event) -> Agent:
    log = ToldLog()
    log.tell("agent-a", *events)
    return _rows(log)[A]


def test_an_accepted_job_opens_the_row() -> None:
    asked = replace(submitted(agent="a"), owner=Owner("alice"))
    assert _after_jobs((asked,)) == Agent(
        id=A,
        first_seen=second(0),
        last_seen=second(0),
        jobs=1,
        open_jobs=1,
        last_job=JobId("job-1"),
        position=1,
        owner=Owner("alice"),
    )


def test_a_running_job_shows_its_model_and_what_the_cache_knew() -> None:
    begun = replace(started(), model="other")
    view = _after_jobs((submitted(agent="a"), begun))
    assert (view.known_tokens, view.last_model, view.figures.usage) == (4, "other", Usage())
    assert (view.first_seen, view.last_seen, view.position) == (second(0), second(1), 2)


def test_known_tokens_are_those_beyond_the_cached_ones_too_and_add_up() -> None:
    jobs = [(submitted(agent="a"), replace(started(), known_tokens=known)) for known in (0, 7)]
    assert _after_jobs(*jobs).known_tokens == 4 + 7


def test_an_attempt_of_an_older_log_knew_the_cached_tokens() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(agent="a"), replace(started(), cached_tokens=0))
    accepted, begun = log.told()
    job = fold_recorded(fold_recorded(None, accepted), begun)
    data = {name: value for name, value in begun.data.items() if name != "known_tokens"}
    view = evolve(Agent(id=A), replace(begun, data=data, schema_version=1), job)
    assert view.known_tokens == 0


@pytest.mark.parametrize(
    ("end", "usage"),
    [
        (completed(), DONE),
        (JobCancelled(attempt=1, usage=CUT), CUT),
        (JobExpired(deadline=second(0), attempt=1, usage=CUT), CUT),
        (FAILED, Usage()),
    ],
)
def test_an_end_closes_the_job_and_counts_what_it_used(end: Event, usage: Usage) -> None:
    job = (submitted(agent="a"), started())
    view = _after_jobs(job, (*job, end), (*job, end))
    assert (view.jobs, view.open_jobs, view.last_job) == (3, 1, "job-3")
    assert view.figures.usage == usage + usage
    assert (view.last_seen, view.position) == (second(7), 8)


def test_a_retried_job_is_open_again_and_counts_as_one_job() -> None:
    job = (submitted(agent="a"), started())
    view = _after_jobs(job, (*job, FAILED, JobRetried(reason="api")))
    assert (view.jobs, view.open_jobs) == (2, 2)


@pytest.mark.parametrize(
    "event", [FAILED_ONCE, JobCancelRequested(reason="api"), JobAttached(reason="retry")]
)
def test_other_events_of_a_job_leave_the_row_as_it_is(event: Event) -> None:
    job = (submitted(agent="a"), started())
    assert _after_jobs((*job, event)) == _after_jobs(job)


def test_a_hidden_answer_leaves_the_row_as_it_is() -> None:
    job = (submitted(agent="a"), started(), completed())
    assert _after_jobs((*job, JobHidden())) == _after_jobs(job)


def test_only_events_of_agents_and_of_their_jobs_have_a_row() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(), started(), completed())
    log.tell("worker-1", worker_event())
    assert _rows(log) == {}
    (accepted, *_, of_worker) = log.told()
    assert agent_of(accepted, None) is None
    assert agent_of(of_worker, fold_recorded(None, accepted)) is None


def test_rows_of_several_agents_are_apart() -> None:
    log = ToldLog()
    log.tell("job-1", submitted(agent="a"))
    log.tell("agent-agent-b", SAVED)
    log.tell("job-2", submitted(agent="agent-b"))
    rows = _rows(log)
    assert {name: (row.jobs, row.context_tokens) for name, row in rows.items()} == {
        "a": (1, 0),
        "agent-b": (1, 600),
    }


@pytest.mark.parametrize("created", [REGISTERED, FORKED])
def test_the_first_owner_of_an_agent_is_kept(created: AgentRegistered | AgentForked) -> None:
    alice, bob = Owner("alice"), Owner("bob")
    owned = replace(created, owner=alice)
    assert _after(owned).owner == alice
    assert _after(owned, AgentDeleted(agent=A), replace(created, owner=bob)).owner == alice
    assert _after(SAVED).owner is None


def test_a_job_decides_the_owner_whatever_its_event_holds() -> None:
    log = ToldLog()
    log.tell("job-1", replace(submitted(agent="a"), owner=Owner("alice")), started())
    accepted, begun = log.told()
    job = fold_recorded(None, accepted)
    assert evolve(Agent(id=A), begun, job).owner == "alice"


def test_a_saved_context_shows_its_length_and_its_blocks() -> None:
    assert _after(SAVED) == Agent(
        id=A,
        first_seen=second(0),
        last_seen=second(0),
        cache_event="AgentCacheSaved",
        cache_event_at=second(0),
        context_tokens=600,
        disk_blocks=3,
        position=1,
        version=1,
    )
    shorter = _after(SAVED, replace(SAVED, tail=None, tokens=512))
    assert (shorter.context_tokens, shorter.disk_blocks) == (512, 2)


def test_restored_tokens_are_counted_by_where_they_were() -> None:
    view = _after(_restored(300, 100), _restored(50, 50))
    assert (view.figures.hits, view.figures.ram_tokens, view.figures.disk_tokens) == (2, 200, 150)
    assert (view.cache_event, view.cache_event_at) == ("AgentCacheRestored", second(1))


def test_missed_contexts_are_counted_by_their_reason() -> None:
    reasons = ["gone", "diverged", "model_changed", "gone", "gone", "diverged"]
    view = _after(SAVED, *(_missed(reason, 10 + at) for at, reason in enumerate(reasons)))
    assert (
        view.figures.misses_gone,
        view.figures.misses_diverged,
        view.figures.misses_model_changed,
    ) == (3, 2, 1)
    assert (view.figures.misses, view.figures.missed_tokens) == (6, 75)
    assert (view.cache_event, view.cache_event_at) == ("AgentCacheMissed", second(6))
    assert (view.context_tokens, view.disk_blocks) == (600, 3)


@pytest.mark.parametrize("event", [EVICTED, FORGOTTEN])
def test_a_deleted_context_has_no_tokens_and_no_blocks(event: Event) -> None:
    view = _after(SAVED, _restored(5, 2), event)
    assert (view.context_tokens, view.disk_blocks) == (0, 0)
    assert (view.figures.hits, view.figures.ram_tokens, view.figures.disk_tokens) == (1, 3, 2)
    assert (view.cache_event, view.cache_event_at) == (type(event).__name__, second(2))


def test_a_registered_agent_has_a_history_from_its_event_on() -> None:
    view = _after(SAVED, REGISTERED)
    assert (view.created_position, view.created_at) == (2, second(1))
    assert (view.parent, view.inherited, view.context_tokens) == (None, 0, 600)


def test_a_fork_shows_its_parent_and_what_it_inherited() -> None:
    view = _after(FORKED)
    assert (view.created_position, view.created_at) == (1, second(0))
    assert (view.parent, view.inherited) == (PARENT, 2)


def test_a_turn_changes_when_the_agent_was_seen_and_nothing_else() -> None:
    turn = AgentTurnAdded(agent=A, turn=1, job=JobId("job-1"))
    before, after = _after(REGISTERED), _after(REGISTERED, turn)
    assert after == replace(
        before, last_seen=second(1), position=2, version=2, turns=(JobId("job-1"),)
    )


@pytest.mark.parametrize("end", [AgentDeleted(agent=A), FORGOTTEN])
def test_a_deleted_agent_has_no_history(end: Event) -> None:
    view = _after(FORKED, SAVED, end)
    assert (view.exists, view.created_position, view.created_at) == (False, 0, "")
    assert (view.profile, view.base, view.parent_life, view.turns) == ("", None, 0, ())
    assert (view.parent, view.inherited) == (None, 0)


def test_deletion_keeps_the_context_and_a_new_life_has_no_parent() -> None:
    view = _after(FORKED, SAVED, AgentDeleted(agent=A))
    assert (view.context_tokens, view.cache_event) == (600, "AgentCacheSaved")
    again = _after(FORKED, AgentDeleted(agent=A), REGISTERED)
    assert (again.created_position, again.parent, again.inherited) == (3, None, 0)


@pytest.mark.parametrize(("prompt", "cached", "share"), [(0, 0, 0.0), (10, 4, 0.4), (8, 8, 1.0)])
def test_cached_share_is_of_the_prompt_tokens(prompt: int, cached: int, share: float) -> None:
    assert UsageFigures(prompt_tokens=prompt, cached_tokens=cached).cached_ratio == share


def test_an_agent_is_created_with_its_profile() -> None:
    created = _after(SAVED, REGISTERED)
    assert (created.version, created.life, created.profile) == (2, 2, REGISTERED.profile)
    assert created.exists
    assert not _after(SAVED).exists


def test_a_fork_knows_where_it_came_from() -> None:
    view = _after(FORKED)
    assert (view.life, view.profile, view.parent_life, view.base) == (1, FORKED.profile, 1, "job-9")


def _turns(*events: Event) -> tuple[JobId, ...]:
    return _after(*events).turns


def _added(turn: int, job: str) -> AgentTurnAdded:
    return AgentTurnAdded(agent=A, turn=turn, job=JobId(job))


def test_a_turn_of_the_same_number_replaces_the_one_that_had_no_answer() -> None:
    first, second_, again = _added(1, "job-1"), _added(2, "job-2"), _added(2, "job-3")
    assert _turns(REGISTERED, first, second_) == ("job-1", "job-2")
    assert _turns(REGISTERED, first, second_, again) == ("job-1", "job-3")


def test_turns_of_a_fork_begin_after_the_inherited_ones() -> None:
    assert _turns(FORKED, _added(3, "job-1")) == ("job-1",)
    assert _turns(FORKED, _added(3, "job-1"), _added(4, "job-2")) == ("job-1", "job-2")


@pytest.mark.parametrize("end", [AgentDeleted(agent=A), FORGOTTEN])
def test_the_next_life_of_an_agent_begins_without_turns(end: Event) -> None:
    assert _turns(REGISTERED, _added(1, "job-1"), end) == ()
    assert _after(REGISTERED, _added(1, "job-1"), end, REGISTERED).life == 4
