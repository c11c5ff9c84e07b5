"""The turns of an agent: planned on the loaded history, then recorded beside other writers."""

from __future__ import annotations

import pytest

from domain.agent.agents import PlannedTurn
from domain.agent.state import AgentOptions, Profile
from domain.chat.request import Message
from domain.errors import AgentNotFound, AgentTurnConflict, ConcurrencyConflict, PayloadMissing
from domain.events.agent import AgentDeleted, AgentRegistered, AgentTurnAdded
from domain.events.cache import AgentCacheSaved
from domain.events.event import Event
from domain.events.job import JobCancelled, JobFailed
from domain.log.folded_stream import TRIES_MAX
from domain.values import AgentId, JobId, StreamName, Usage, digest_of
from tests.support.builders.agent_world import AgentWorld

A = AgentId("a")
KIND = Profile(system="Be kind.", options=AgentOptions(max_tokens=5))
SAVED = AgentCacheSaved(job=JobId("job-9"), fingerprint="f", blocks=("x",), tail=None, tokens=256)
FAILED = JobFailed(error="engine_failure", message="it broke")


def _registered(profile: Profile = KIND) -> AgentWorld:
    world = AgentWorld()
    world.register("a", profile)
    return world


def _turn(number: int, job: str) -> AgentTurnAdded:
    return AgentTurnAdded(agent=A, turn=number, job=JobId(job))


def test_the_first_turn_has_the_profile_and_nothing_before_it() -> None:
    world = _registered()
    assert world.plan("a", expected=0) == PlannedTurn(
        agent=world.records.load(A), turn=1, profile=KIND, before=()
    )


def test_a_turn_follows_the_conversation_so_far() -> None:
    world = _registered()
    world.say("a", "job-1", "One?", "1.")
    world.say("a", "job-2", "Two?", "2.")
    planned = world.plan("a", expected=2)
    assert planned.turn == 3
    assert planned.agent.turns == ("job-1", "job-2")
    assert planned.before == (
        Message(role="user", content="One?"),
        Message(role="assistant", content="1.", origin="job-1"),
        Message(role="user", content="Two?"),
        Message(role="assistant", content="2.", origin="job-2"),
    )


def test_a_turn_that_ended_without_an_answer_is_left_out_of_the_conversation() -> None:
    world = _registered()
    world.say("a", "job-1", "One?", "1.")
    world.ask("a", "job-2", "Two?")
    world.log.tell("job-2", FAILED)
    planned = world.plan("a", expected=1)
    assert planned.turn == 2
    assert [message.content for message in planned.before] == ["One?", "1."]
    world.accept("job-3", planned, "Again?")
    world.record(planned, "job-3")
    assert world.records.load(A).turns == ("job-1", "job-3")


def test_no_turn_is_planned_while_one_is_open() -> None:
    world = _registered()
    world.say("a", "job-1")
    world.ask("a", "job-2")
    with pytest.raises(AgentTurnConflict) as refused:
        world.plan("a")
    assert (refused.value.turn, refused.value.job) == (1, "job-2")


@pytest.mark.parametrize("expected", [0, 2])
def test_another_number_of_turns_than_expected_is_refused(expected: int) -> None:
    world = _registered()
    world.say("a", "job-1")
    with pytest.raises(AgentTurnConflict) as refused:
        world.plan("a", expected=expected)
    assert (refused.value.turn, refused.value.job) == (1, None)


def test_no_turn_is_planned_for_an_agent_that_is_not_there() -> None:
    world = _registered()
    world.delete("a")
    for name in ("a", "nobody"):
        with pytest.raises(AgentNotFound, match=f"agent {name} does not exist"):
            world.plan(name)


def test_a_repeated_request_gets_the_turn_that_it_added() -> None:
    world = _registered()
    world.say("a", "job-1", "One?", "1.")
    world.ask("a", "job-2", "Two?", key="key-2")
    for expected in (None, 1, 7):
        planned = world.plan("a", expected=expected, key="key-2")
        assert planned.turn == 2
        assert [message.content for message in planned.before] == ["One?", "1."]


def test_a_repeated_first_request_gets_the_first_turn() -> None:
    world = _registered()
    world.ask("a", "job-1", key="key-1")
    world.log.tell("job-1", JobCancelled(attempt=0, usage=Usage()))
    planned = world.plan("a", key="key-1")
    assert (planned.turn, planned.before) == (1, ())


def test_a_key_of_another_agent_names_no_turn_of_this_one() -> None:
    world = _registered()
    world.register("b")
    world.ask("b", "job-9", key="key-9")
    world.say("a", "job-1")
    assert world.plan("a", key="key-9").turn == 2
    assert world.plan("a", key="key-none").turn == 2
    assert world.plan("a").turn == 2


def test_a_turn_cannot_be_planned_on_texts_that_were_erased() -> None:
    world = _registered()
    world.say("a", "job-1")
    world.log.lose_payload(digest_of(KIND.to_bytes()))
    with pytest.raises(PayloadMissing):
        world.plan("a")


def test_a_recorded_turn_has_its_number_and_its_job() -> None:
    world = _registered()
    world.say("a", "job-1")
    world.ask("a", "job-2")
    assert world.events("a")[1:] == [_turn(1, "job-1"), _turn(2, "job-2")]
    recorded = world.log.load(StreamName("agent-a"))
    assert [one.correlation_id for one in recorded] == ["create-a", "turn", "turn"]
    assert [one.event_id for one in recorded] == [f"{number:032x}" for number in (1, 2, 3)]


def test_a_turn_that_is_recorded_already_is_not_recorded_again() -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.record(planned, "job-1")
    world.record(planned, "job-1")
    assert world.events("a")[1:] == [_turn(1, "job-1")]


def test_a_turn_whose_recording_was_overtaken_by_itself_is_recorded_once() -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.log.rivals = [("agent-a", _turn(1, "job-1"))]
    world.record(planned, "job-1")
    assert world.events("a")[1:] == [_turn(1, "job-1")]


def test_a_turn_that_another_request_added_first_is_a_conflict() -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.accept("job-2", planned, "Two?")
    world.log.rivals = [("agent-a", _turn(1, "job-2"))]
    with pytest.raises(AgentTurnConflict) as refused:
        world.record(planned, "job-1")
    assert (refused.value.turn, refused.value.job) == (0, "job-2")


def test_a_turn_that_was_answered_meanwhile_is_a_conflict_too() -> None:
    world = _registered()
    planned = world.plan("a")
    world.say("a", "job-2")
    world.accept("job-1", planned, "One?")
    with pytest.raises(AgentTurnConflict) as refused:
        world.record(planned, "job-1")
    assert (refused.value.turn, refused.value.job) == (1, None)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_turn_of_an_agent_that_was_deleted_meanwhile_is_lost(*, is_made_again: bool) -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.delete("a")
    if is_made_again:
        world.register("a", KIND)
    before = world.events("a")
    with pytest.raises(AgentNotFound, match="agent a does not exist"):
        world.record(planned, "job-1")
    assert world.events("a") == before


@pytest.mark.parametrize(
    "rivals",
    [
        [AgentDeleted(agent=A)],
        [AgentDeleted(agent=A), AgentRegistered(agent=A, profile=digest_of(KIND.to_bytes()))],
    ],
)
def test_an_agent_that_is_deleted_between_two_tries_is_not_found(rivals: list[Event]) -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.log.rivals = [("agent-a", one) for one in rivals]
    with pytest.raises(AgentNotFound):
        world.record(planned, "job-1")


def test_a_context_that_is_saved_meanwhile_is_no_conflict() -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.log.rivals = [("agent-a", SAVED)] * (TRIES_MAX - 1)
    world.record(planned, "job-1")
    assert world.events("a")[-1] == _turn(1, "job-1")


def test_recording_gives_up_when_every_try_is_overtaken() -> None:
    world = _registered()
    planned = world.plan("a")
    world.accept("job-1", planned, "One?")
    world.log.rivals = [("agent-a", SAVED)] * (TRIES_MAX + 2)
    with pytest.raises(ConcurrencyConflict):
        world.record(planned, "job-1")
    assert len(world.log.rivals) == 2
