"""Agents are registered, loaded, listed and deleted, also beside other writers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.agent.state import Agent, AgentOptions, Profile
from domain.chat.generation import EmittedCall
from domain.chat.request import Message, ToolCall
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    AgentExists,
    AgentNotFound,
    ConcurrencyConflict,
    LogUnavailable,
    PayloadMissing,
)
from domain.events.agent import AgentDeleted, AgentForked, AgentRegistered
from domain.events.cache import AgentCacheSaved
from domain.events.event import Event
from domain.events.job import JobFailed
from domain.log.folded_stream import TRIES_MAX
from domain.values import AgentId, JobId, JobStatus, Owner, StreamName, digest_of
from tests.support.builders.agent_world import AgentWorld
from tests.support.builders.told_log import second

A = AgentId("a")
KIND = Profile(system="Be kind.", options=AgentOptions(max_tokens=5))
PROFILE = digest_of(KIND.to_bytes())
SAVED = AgentCacheSaved(job=JobId("job-9"), fingerprint="f", blocks=("x",), tail=None, tokens=256)
REGISTERED = AgentRegistered(agent=A, profile=PROFILE)
FORKED = AgentForked(agent=A, parent=AgentId("p"), parent_life=1, turn=0, profile=PROFILE)


def test_a_registered_agent_is_new_and_has_its_profile() -> None:
    world = AgentWorld()
    agent, is_new = world.records.register(A, KIND, correlation_id="req-1", owner=Owner("alice"))
    assert is_new
    assert (agent.id, agent.version, agent.life) == (A, 1, 1)
    assert (agent.created_at, agent.profile, agent.turns) == (second(0), PROFILE, ())
    assert world.records.load(A) == agent
    assert world.records.profile_of(agent) == KIND
    (recorded,) = world.log.load(StreamName("agent-a"))
    assert recorded.data == {"agent": "a", "profile": PROFILE, "owner": "alice"}
    assert (recorded.correlation_id, recorded.event_id) == ("req-1", f"{1:032x}")


def test_an_agent_with_the_same_profile_is_returned_as_it_is() -> None:
    world = AgentWorld()
    first = world.register("a", KIND)
    assert world.records.register(A, KIND, correlation_id="again") == (first, False)
    assert len(world.log.told()) == 1


def test_a_name_with_another_profile_is_taken() -> None:
    world = AgentWorld()
    world.register("a", KIND)
    with pytest.raises(AgentExists, match="agent a exists already"):
        world.register("a", Profile())


def test_the_name_of_a_fork_is_taken_for_its_own_profile_too() -> None:
    world = AgentWorld()
    world.register("p", KIND)
    world.fork("p", "a")
    with pytest.raises(AgentExists):
        world.register("a", KIND)


@pytest.mark.parametrize("events", [(), (SAVED,), (REGISTERED, AgentDeleted(agent=A))])
def test_an_agent_that_was_not_registered_or_was_deleted_is_not_found(
    events: tuple[Event, ...],
) -> None:
    world = AgentWorld()
    world.log.tell("agent-a", *events)
    with pytest.raises(AgentNotFound, match="agent a does not exist"):
        world.records.load(A)


def test_a_name_is_free_again_after_its_agent_was_deleted() -> None:
    world = AgentWorld()
    world.register("a", Profile())
    assert world.delete("a").version == 1
    again = world.register("a", KIND)
    assert (again.life, again.version, again.created_at) == (3, 3, second(2))
    assert world.records.profile_of(again) == KIND


def test_events_of_contexts_move_the_version_of_an_agent_only() -> None:
    world = AgentWorld()
    agent = world.register("a", KIND)
    world.log.tell("agent-a", SAVED, SAVED)
    loaded = world.records.load(A)
    assert (loaded.version, loaded.life) == (3, agent.life)
    assert (loaded.created_at, loaded.profile) == (agent.created_at, agent.profile)


def test_a_saved_context_at_the_same_time_does_not_hinder_registration() -> None:
    world = AgentWorld()
    world.log.rivals = [("agent-a", SAVED)] * (TRIES_MAX - 1)
    agent, is_new = world.records.register(A, KIND, correlation_id="req-1")
    assert is_new
    assert agent.life == TRIES_MAX


def test_registration_gives_up_when_every_try_is_overtaken() -> None:
    world = AgentWorld()
    world.log.rivals = [("agent-a", SAVED)] * (TRIES_MAX + 2)
    with pytest.raises(ConcurrencyConflict):
        world.register("a", KIND)
    assert len(world.log.rivals) == 2


def test_the_same_registration_at_the_same_time_creates_one_agent() -> None:
    world = AgentWorld()
    world.log.rivals = [("agent-a", REGISTERED)]
    agent, is_new = world.records.register(A, KIND, correlation_id="req-1")
    assert (agent.version, is_new) == (1, False)


@pytest.mark.parametrize("rival", [AgentRegistered(agent=A, profile=digest_of(b"other")), FORKED])
def test_another_agent_of_the_name_at_the_same_time_wins(rival: Event) -> None:
    world = AgentWorld()
    world.log.rivals = [("agent-a", rival)]
    with pytest.raises(AgentExists):
        world.register("a", KIND)


def test_a_log_that_is_away_records_nothing() -> None:
    world = AgentWorld()
    world.log.unavailable = True
    with pytest.raises(LogUnavailable):
        world.register("a")
    world.log.unavailable = False
    assert world.log.told() == ()


def test_a_deleted_agent_is_returned_as_it_was() -> None:
    world = AgentWorld()
    before = world.register("a", KIND)
    assert world.delete("a") == before
    recorded = world.log.load(StreamName("agent-a"))[-1]
    assert (recorded.type, recorded.data) == ("AgentDeleted", {"agent": "a"})
    assert (recorded.correlation_id, recorded.event_id) == ("delete", f"{2:032x}")
    with pytest.raises(AgentNotFound):
        world.delete("a")


def test_deletion_goes_on_after_a_context_that_was_saved_meanwhile() -> None:
    world = AgentWorld()
    world.register("a")
    world.log.rivals = [("agent-a", SAVED)] * (TRIES_MAX - 1)
    assert world.delete("a").version == TRIES_MAX
    assert world.events("a")[-1] == AgentDeleted(agent=A)


def test_deletion_gives_up_when_every_try_is_overtaken() -> None:
    world = AgentWorld()
    world.register("a")
    world.log.rivals = [("agent-a", SAVED)] * (TRIES_MAX + 2)
    with pytest.raises(ConcurrencyConflict):
        world.delete("a")
    assert len(world.log.rivals) == 2


def test_of_two_deletions_the_second_finds_no_agent() -> None:
    world = AgentWorld()
    world.register("a")
    world.log.rivals = [("agent-a", AgentDeleted(agent=A))]
    with pytest.raises(AgentNotFound):
        world.delete("a")


def test_a_page_of_registered_agents_has_the_latest_created_first() -> None:
    world = AgentWorld()
    for name, owner in (("a", "alice"), ("b", "bob"), ("c", "alice")):
        world.records.register(AgentId(name), Profile(), correlation_id="req-1", owner=Owner(owner))
    world.log.tell("agent-d", SAVED)
    page = world.log.agents.page(is_registered=True, limit=2)
    assert ([view.id for view in page.agents], page.has_more) == (["c", "b"], True)
    page = world.log.agents.page(is_registered=True, limit=2, before=AgentId("b"))
    assert ([view.id for view in page.agents], page.has_more) == (["a"], False)
    page = world.log.agents.page(is_registered=True, limit=9, owner=Owner("alice"))
    assert [view.id for view in page.agents] == ["c", "a"]
    page = world.log.agents.page(limit=9)
    assert [view.id for view in page.agents] == ["d", "c", "b", "a"]


def test_the_last_status_is_that_of_the_latest_turn() -> None:
    world = AgentWorld()
    assert world.records.last_status(world.register("a")) is None
    world.say("a", "job-1")
    world.ask("a", "job-2")
    agent = world.records.load(A)
    assert world.records.last_status(agent) is JobStatus.QUEUED
    world.log.tell("job-2", JobFailed(error="engine_failure", message="it broke"))
    assert world.records.last_status(agent) is JobStatus.FAILED


def test_an_answer_of_an_archived_job_is_unknown() -> None:
    world = AgentWorld()
    world.register("a")
    world.say("a", "job-1")
    del world.log.views.rows[JobId("job-1")]
    assert world.records.last_status(world.records.load(A)) is JobStatus.EXPIRED


def test_a_conversation_ends_with_the_answer_of_the_job() -> None:
    world = AgentWorld()
    world.register("a")
    world.ask("a", "job-1", "Hello?")
    call = EmittedCall(id="call-1", name="look", arguments='{"at": 1}', is_complete=True)
    world.answer("job-1", StoredAnswer(text="Hi.", thinking="Hm.", calls=(call,)))
    assert world.records.conversation_until(JobId("job-1")) == (
        Message(role="user", content="Hello?"),
        Message(
            role="assistant",
            content="Hi.",
            reasoning="Hm.",
            tool_calls=(ToolCall(id="call-1", name="look", arguments={"at": 1}),),
            origin="job-1",
        ),
    )


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ("", {}),
        ("{}", {}),
        ('{"at": [1, null]}', {"at": [1, None]}),
        ('{"at": 1', {"unparsed": '{"at": 1'}),
        ("[1]", {"unparsed": "[1]"}),
        ("null", {"unparsed": "null"}),
    ],
)
def test_arguments_that_are_no_object_are_kept_as_text(
    arguments: str, parsed: dict[str, object]
) -> None:
    world = AgentWorld()
    world.register("a")
    world.ask("a", "job-1")
    calls = (EmittedCall(id="call-1", name="f", arguments=arguments),)
    world.answer("job-1", StoredAnswer(text="", calls=calls))
    answer = world.records.conversation_until(JobId("job-1"))[-1]
    assert answer.tool_calls == (ToolCall(id="call-1", name="f", arguments=parsed),)


def test_a_conversation_without_its_answer_or_its_texts_is_missing() -> None:
    world = AgentWorld()
    world.register("a")
    world.ask("a", "job-1")
    for job in ("job-1", "job-none"):
        with pytest.raises(PayloadMissing, match=f"payload {job} is not stored"):
            world.records.conversation_until(JobId(job))
    world.answer("job-1", StoredAnswer(text="Hi."))
    output = digest_of(StoredAnswer(text="Hi.").to_bytes())
    world.log.lose_payload(output)
    with pytest.raises(PayloadMissing, match=output):
        world.records.conversation_until(JobId("job-1"))


def test_a_change_replaces_the_profile_and_gives_up_when_every_try_is_overtaken() -> None:
    world = AgentWorld()
    world.register("a", KIND)
    world.log.rivals = [("agent-a", SAVED)]

    def label(_: Agent, before: Profile) -> Profile:
        return replace(before, metadata={"k": "v"})

    changed = world.records.change(A, label, correlation_id="c")
    assert (changed.life, changed.version) == (1, 3)
    assert world.records.change(A, label, correlation_id="c") == changed
    after = world.records.profile_of(world.records.load(A))
    assert after == replace(KIND, metadata={"k": "v"})
    world.log.rivals = [("agent-a", SAVED)] * TRIES_MAX
    with pytest.raises(ConcurrencyConflict):
        world.records.change(A, lambda _, __: KIND, correlation_id="c")
