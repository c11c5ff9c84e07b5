"""Forks continue another agent after one of its turns, over several generations and lives."""

from __future__ import annotations

import pytest

from domain.agent.state import AgentOptions, Profile
from domain.errors import AgentExists, AgentNotFound, ConcurrencyConflict, InvalidRequest
from domain.events.agent import AgentForked, AgentRegistered
from domain.events.cache import AgentCacheSaved
from domain.events.job import JobFailed
from domain.log.folded_stream import TRIES_MAX
from domain.values import AgentId, JobId, Owner, StreamName, digest_of
from tests.support.builders.agent_world import AgentWorld
from tests.support.builders.told_log import second

A, B = AgentId("a"), AgentId("b")
KIND = Profile(system="Be kind.", options=AgentOptions(max_tokens=5))
PROFILE = digest_of(KIND.to_bytes())
SAVED = AgentCacheSaved(job=JobId("job-9"), fingerprint="f", blocks=("x",), tail=None, tokens=256)


def _with_turns(number: int, name: str = "a") -> AgentWorld:
    """Return a world with one agent; its jobs are ``job-a1`` and so on."""
    world = AgentWorld()
    world.register(name, KIND)
    _say(world, name, *range(1, number + 1))
    return world


def _say(world: AgentWorld, name: str, *turns: int) -> None:
    for turn in turns:
        world.say(name, f"job-{name}{turn}", f"{name}{turn}?", f"{name}{turn}!")


def _texts(world: AgentWorld, name: str) -> list[str]:
    return [message.content for message in world.plan(name).before]


def test_a_fork_continues_after_the_latest_answer() -> None:
    world = _with_turns(2)
    world.log.tell("agent-b", SAVED)
    at = len(world.log.told())
    fork = world.fork("a", "b")
    assert (fork.id, fork.version, fork.life, fork.created_at) == (B, 2, 2, second(at))
    assert (fork.profile, fork.parent, fork.parent_life) == (PROFILE, A, 1)
    assert (fork.inherited, fork.base) == (2, "job-a2")
    assert world.plan("b").turn == 3
    assert _texts(world, "b") == ["a1?", "a1!", "a2?", "a2!"]


def test_the_event_of_a_fork_names_the_texts_that_it_needs() -> None:
    world = _with_turns(2)
    world.records.fork(A, B, from_turn=1, correlation_id="req-7", owner=Owner("alice"))
    job = world.log.views.rows[JobId("job-a1")]
    (recorded,) = world.log.load(StreamName("agent-b"))
    assert (recorded.correlation_id, recorded.type) == ("req-7", "AgentForked")
    assert recorded.data == {
        "agent": "b",
        "parent": "a",
        "parent_life": 1,
        "turn": 1,
        "profile": PROFILE,
        "job": "job-a1",
        "request": job.submitted.request,
        "output": job.output,
        "owner": "alice",
    }


def test_a_fork_before_the_first_turn_has_the_profile_only() -> None:
    world = _with_turns(1)
    world.fork("a", "b", from_turn=0)
    assert world.events("b") == [
        AgentForked(agent=B, parent=A, parent_life=1, turn=0, profile=PROFILE)
    ]
    assert world.plan("b").profile == KIND
    assert _texts(world, "b") == []


def test_a_fork_of_an_agent_without_turns_is_at_turn_zero() -> None:
    world = _with_turns(0)
    assert (world.fork("a", "b").inherited, world.fork("a", "c").base) == (0, None)


def test_a_fork_at_a_job_that_was_archived_names_the_job_only() -> None:
    world = _with_turns(2)
    del world.log.views.rows[JobId("job-a1")]
    world.fork("a", "b", from_turn=1)
    (event,) = world.events("b")
    assert isinstance(event, AgentForked)
    assert (event.job, event.request, event.output) == ("job-a1", None, None)


@pytest.mark.parametrize("ends", [False, True])
def test_a_turn_without_an_answer_is_not_inherited(*, ends: bool) -> None:
    world = _with_turns(1)
    world.ask("a", "job-a2")
    if ends:
        world.log.tell("job-a2", JobFailed(error="engine_failure", message="it broke"))
    with pytest.raises(InvalidRequest, match="agent a has 1 turns") as refused:
        world.fork("a", "b", from_turn=2)
    assert refused.value.field == "from_turn"
    fork = world.fork("a", "b")
    assert (fork.inherited, fork.base) == (1, "job-a1")


def test_an_agent_that_is_not_there_cannot_be_forked() -> None:
    world = _with_turns(1)
    world.delete("a")
    for parent in ("a", "nobody"):
        with pytest.raises(AgentNotFound, match=f"agent {parent} does not exist"):
            world.fork(parent, "b")


@pytest.mark.parametrize("child", ["a", "b"])
def test_the_name_of_a_fork_must_be_free(child: str) -> None:
    world = _with_turns(1)
    world.register("b")
    with pytest.raises(AgentExists, match=f"agent {child} exists already"):
        world.fork("a", child)


def test_a_fork_goes_on_apart_from_its_parent() -> None:
    world = _with_turns(2)
    world.fork("a", "b", from_turn=1)
    _say(world, "b", 2)
    _say(world, "a", 3)
    assert _texts(world, "b") == ["a1?", "a1!", "b2?", "b2!"]
    assert _texts(world, "a") == ["a1?", "a1!", "a2?", "a2!", "a3?", "a3!"]


@pytest.mark.parametrize(
    ("turn", "job"),
    [(0, None), (1, "job-a1"), (2, "job-a2"), (3, "job-a3"), (4, "job-b4"), (5, "job-b5")],
)
def test_each_turn_of_a_fork_can_be_forked(turn: int, job: str | None) -> None:
    world = _with_turns(4)
    world.fork("a", "b", from_turn=3)
    _say(world, "b", 4, 5)
    fork = world.fork("b", "c", from_turn=turn)
    assert (fork.parent, fork.parent_life, fork.inherited, fork.base) == (B, 1, turn, job)


@pytest.mark.parametrize(("turn", "job"), [(1, "job-a1"), (2, "job-a2"), (3, "job-b3")])
def test_turns_are_inherited_over_several_forks(turn: int, job: str) -> None:
    world = _with_turns(3)
    world.fork("a", "b", from_turn=2)
    _say(world, "b", 3, 4)
    world.fork("b", "c", from_turn=4)
    assert world.fork("c", "d", from_turn=turn).base == job


def test_turns_of_a_parent_that_was_deleted_are_found_in_its_old_life() -> None:
    world = _with_turns(2)
    world.log.tell("agent-a", SAVED)
    world.fork("a", "b")
    world.delete("a")
    assert world.fork("b", "c", from_turn=1).base == "job-a1"
    world.register("a", KIND)
    world.say("a", "job-other")
    assert world.fork("b", "d", from_turn=1).base == "job-a1"
    _say(world, "b", 3)
    assert _texts(world, "b") == ["a1?", "a1!", "a2?", "a2!", "b3?", "b3!"]


def test_a_later_life_of_a_parent_has_turns_of_its_own() -> None:
    world = _with_turns(2)
    world.delete("a")
    world.register("a", KIND)
    for number in (1, 2):
        world.say("a", f"job-new{number}")
    fork = world.fork("a", "b")
    assert (fork.parent_life, fork.base) == (5, "job-new2")
    assert world.fork("b", "c", from_turn=1).base == "job-new1"


def test_the_last_inherited_turn_is_known_without_the_parent() -> None:
    world = AgentWorld()
    event = AgentForked(
        agent=B, parent=A, parent_life=1, turn=2, profile=PROFILE, job=JobId("job-a2")
    )
    world.log.tell("agent-b", event)
    assert world.fork("b", "c", from_turn=2).base == "job-a2"


def test_a_saved_context_at_the_same_time_does_not_hinder_a_fork() -> None:
    world = _with_turns(1)
    world.log.rivals = [("agent-b", SAVED)] * (TRIES_MAX - 1)
    assert world.fork("a", "b").life == TRIES_MAX


def test_a_fork_gives_up_when_every_try_is_overtaken() -> None:
    world = _with_turns(1)
    world.log.rivals = [("agent-b", SAVED)] * (TRIES_MAX + 2)
    with pytest.raises(ConcurrencyConflict):
        world.fork("a", "b")
    assert len(world.log.rivals) == 2


def test_an_agent_that_gets_the_name_first_keeps_it() -> None:
    world = _with_turns(1)
    world.log.rivals = [("agent-b", AgentRegistered(agent=B, profile=PROFILE))]
    with pytest.raises(AgentExists, match="agent b exists already"):
        world.fork("a", "b")
