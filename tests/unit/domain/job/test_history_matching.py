"""Which turns of a request are the answers of which jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.audit.recorded_answers import LoggedAnswers
from domain.chat.request import EDITED_ORIGIN, ChatRequest, Message, ToolCall
from domain.job.history_matching import (
    COMPARED_ANSWERS_MAX,
    SEARCHED_JOBS_MAX,
    match_history,
)
from domain.values import AgentId, Owner, digest_of
from tests.support.builders.answered_jobs import answer_job, asked, chat
from tests.support.builders.job_events import started, submitted
from tests.support.builders.log_events import append
from tests.support.fakes.event_log import InMemoryEventLog


def matched(
    log: InMemoryEventLog,
    request: ChatRequest,
    agent: str | None = "ann",
    owner: str | None = None,
) -> ChatRequest:
    return match_history(
        request,
        None if agent is None else AgentId(agent),
        views=log.views,
        answers=LoggedAnswers(log=log, payloads=log),
        owner=None if owner is None else Owner(owner),
    )


def origins(
    log: InMemoryEventLog,
    request: ChatRequest,
    agent: str | None = "ann",
    owner: str | None = None,
) -> list[str]:
    return [turn.origin for turn in matched(log, request, agent, owner).messages]


def said(text: str, origin: str = "") -> Message:
    return Message(role="assistant", content=text, origin=origin)


USER = Message(role="user", content="hi")


def test_an_echoed_answer_of_the_agent_gets_its_job_and_nothing_else_changes() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello, you.", agent="ann")
    request = asked("hi", "Hello,  you.", "more")
    found = matched(log, request)
    assert found.messages[1].origin == "job-1"
    changed = replace(request.messages[1], origin="job-1")
    assert found == replace(request, messages=(request.messages[0], changed, request.messages[2]))


def test_texts_that_no_answer_has_stay_without_a_job() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann")
    assert origins(log, asked("Hello", "Goodbye", "Hello")) == ["", "", ""]


def test_the_last_turn_is_what_the_answer_continues_and_is_not_matched() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann")
    assert origins(log, asked("hi", "Hello")) == ["", ""]
    assert origins(log, chat(said("Hello"), USER)) == ["job-1", ""]


def test_turns_with_calls_or_of_another_author_are_not_matched() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann")
    call = ToolCall(id="call-1", name="look", arguments={})
    for turn in (
        replace(said("Hello"), tool_calls=(call,)),
        Message(role="system", content="Hello"),
        Message(role="tool", content="Hello", tool_call_id="call-1"),
    ):
        request = chat(USER, turn, USER)
        assert matched(log, request) is request


def test_a_turn_that_has_a_job_keeps_it() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann")
    request = chat(USER, said("Hello", origin="job-9"), USER)
    assert matched(log, request) is request
    both = chat(USER, said("Hello", origin="job-9"), USER, said("Hello"), USER)
    assert origins(log, both) == ["", "job-9", "", "job-1", ""]


def test_equal_answers_are_matched_in_their_order_from_the_newest_back() -> None:
    log = InMemoryEventLog()
    for number in (1, 2, 3):
        answer_job(log, f"job-{number}", "Yes", agent="ann")
    answers = asked("a", "Yes", "b", "Yes", "c")
    assert origins(log, answers) == ["", "job-2", "", "job-3", ""]


def test_an_answer_is_matched_with_one_turn_only() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Yes", agent="ann")
    answer_job(log, "job-2", "No", agent="ann")
    answers = asked("a", "Yes", "b", "No", "c", "Yes", "d")
    assert origins(log, answers) == ["", "", "", "job-2", "", "job-1", ""]


def test_a_request_without_echoes_between_matched_ones_keeps_all_its_turns() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "one", agent="ann")
    answer_job(log, "job-2", "two", agent="ann")
    answers = asked("a", "one", "b", "edited", "c", "two", "d")
    assert origins(log, answers) == ["", "job-1", "", "", "", "job-2", ""]


@pytest.mark.parametrize("agent", ["bob", None])
def test_answers_to_others_are_not_those_of_an_agent(agent: str | None) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent=agent)
    assert origins(log, asked("hi", "Hello", "more")) == ["", "", ""]


def test_the_latest_jobs_of_an_agent_are_compared() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "first", agent="ann")
    answer_job(log, "job-2", "second", agent="ann")
    for number in range(COMPARED_ANSWERS_MAX - 1):
        append(log, f"job-open-{number}", submitted(agent="ann"), started())
        append(log, f"job-other-{number}", submitted(agent="bob"))
    assert origins(log, asked("a", "first", "b", "second", "c")) == ["", "", "", "job-2", ""]


def test_without_an_agent_answers_of_conversations_with_the_same_beginning_are_matched() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", request=asked("hi"))
    answer_job(log, "job-2", "Hello", request=asked("good morning"))
    assert origins(log, asked("hi", "Hello", "more"), None) == ["", "job-1", ""]
    assert origins(log, asked("good morning", "Hello", "more"), None) == ["", "job-2", ""]
    assert origins(log, asked("ho", "Hello", "more"), None) == ["", "", ""]


def test_an_agent_needs_no_common_beginning() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", request=asked("good morning"), agent="ann")
    assert origins(log, asked("hi", "Hello", "more")) == ["", "job-1", ""]


def test_a_beginning_that_was_erased_is_not_the_same() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", request=asked("hi"))
    log.lose_payload(digest_of(asked("hi").to_bytes()))
    assert origins(log, asked("hi", "Hello", "more"), None) == ["", "", ""]
    append(log, "job-2", submitted(agent="ann"))
    answer_job(log, "job-3", "Hello", request=asked("ho"), agent="ann")
    log.lose_payload(digest_of(asked("ho").to_bytes()))
    assert origins(log, asked("hi", "Hello", "more")) == ["", "job-3", ""]


def test_an_answer_that_was_erased_is_passed_over() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann")
    append(log, "job-2", submitted(agent="ann"), started())
    assert origins(log, asked("hi", "Hello", "more")) == ["", "job-1", ""]


def test_answers_to_agents_do_not_match_a_request_without_one() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", request=asked("hi"))
    answer_job(log, "job-2", "Hello", request=asked("hi"), agent="ann")
    assert origins(log, asked("hi", "Hello", "more"), None) == ["", "job-1", ""]


@pytest.mark.parametrize(("further", "origin"), [(-1, "job-1"), (0, "")])
def test_jobs_without_an_agent_are_searched_among_the_latest_of_all(
    further: int, origin: str
) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello")
    for number in range(SEARCHED_JOBS_MAX + further):
        append(log, f"job-other-{number}", submitted(agent="ann"))
    assert origins(log, asked("hi", "Hello", "more"), None) == ["", origin, ""]


@pytest.mark.parametrize(("further", "origin"), [(-1, "job-1"), (0, "")])
def test_so_many_of_the_jobs_without_an_agent_are_compared(further: int, origin: str) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello")
    for number in range(COMPARED_ANSWERS_MAX + further):
        append(log, f"job-other-{number}", submitted())
    assert origins(log, asked("hi", "Hello", "more"), None) == ["", origin, ""]


@pytest.mark.parametrize("agent", ["ann", None])
def test_only_answers_to_the_same_key_match(agent: str | None) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent=agent, owner="mine")
    answer_job(log, "job-2", "Hello", agent=agent, owner="theirs")
    answer_job(log, "job-3", "Hello", agent=agent)
    request = asked("hi", "Hello", "more")
    assert origins(log, request, agent, "mine") == ["", "job-1", ""]
    assert origins(log, request, agent, "nobody") == ["", "", ""]
    assert origins(log, request, agent) == ["", "job-3", ""]


@pytest.mark.parametrize("agent", ["ann", None])
def test_jobs_of_other_keys_take_no_place_among_the_latest(agent: str | None) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent=agent, owner="mine")
    for number in range(SEARCHED_JOBS_MAX):
        append(log, f"job-other-{number}", submitted(agent=agent))
    request = asked("hi", "Hello", "more")
    assert origins(log, request, agent, "mine") == ["", "job-1", ""]


@pytest.mark.parametrize("origin", ["job-2", "job-3", "job-unknown"])
def test_a_job_of_another_key_is_dropped_from_a_turn(origin: str) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Mine", owner="mine")
    answer_job(log, "job-2", "Hello", owner="theirs")
    answer_job(log, "job-3", "Hello")
    request = chat(USER, said("Edited", origin="job-1"), said("Hello", origin=origin), USER)
    found = matched(log, request, None, "mine")
    assert found == replace(request, messages=(USER, request.messages[1], said("Hello"), USER))
    assert matched(log, request, None) is request


def test_a_turn_whose_job_was_dropped_is_matched_with_an_own_answer() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann", owner="mine")
    answer_job(log, "job-2", "Hello", agent="ann", owner="theirs")
    request = chat(USER, said("Hello", origin="job-2"), USER)
    assert origins(log, request, "ann", "mine") == ["", "job-1", ""]


def test_a_job_of_another_key_is_dropped_also_from_the_last_turn_and_from_calls() -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-2", "Hello", owner="theirs")
    call = ToolCall(id="call-1", name="look", arguments={})
    calling = replace(said("", origin="job-2"), tool_calls=(call,))
    request = chat(USER, calling, said("Hello", origin="job-2"))
    assert origins(log, request, None, "mine") == ["", "", ""]


@pytest.mark.parametrize("owner", ["mine", None])
def test_an_edited_turn_is_matched_with_no_answer(owner: str | None) -> None:
    log = InMemoryEventLog()
    answer_job(log, "job-1", "Hello", agent="ann", owner="mine")
    request = chat(USER, said("Hello", origin=EDITED_ORIGIN), USER)
    assert origins(log, request, "ann", owner) == ["", EDITED_ORIGIN, ""]
