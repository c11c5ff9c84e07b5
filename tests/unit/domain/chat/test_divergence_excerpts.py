"""What an operator reads of the first difference, and odd requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.chat.divergence import Cause, PromptDivergence, find_divergence, shared_parts
from domain.chat.request import ChatRequest, Message, RawPrompt, ToolCall
from domain.values import SamplingWish

JOB = "job-1"
SYSTEM = Message(role="system", content="You help.")
USER = Message(role="user", content="Read the file.")
ANSWER = Message(role="assistant", content="I read it.", origin=JOB)
NEXT = Message(role="user", content="And now?")


def tool(name: str, description: str = "does it") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description}}


BASH, READ, WRITE = tool("Bash"), tool("Read"), tool("Write")


def request(
    *messages: Message, tools: tuple[dict[str, Any], ...] = (), **fields: Any
) -> ChatRequest:
    wish = SamplingWish(seed=1)
    return ChatRequest(
        model="m", messages=messages, max_tokens=9, sampling=wish, tools=tools, **fields
    )


def difference(before: ChatRequest, now: ChatRequest) -> PromptDivergence:
    found = find_divergence(before, now, answered_by=JOB)
    assert found is not None
    return found


def system_difference(before: str, now: str) -> tuple[str, str]:
    found = difference(
        request(Message(role="system", content=before)),
        request(Message(role="system", content=now)),
    )
    assert (found.cause, found.place) == (Cause.SYSTEM_CHANGED, "system")
    return found.before, found.now


def test_excerpt_has_the_lead_and_marks_what_is_left_out() -> None:
    lead, rest = "abcdefghijklmnopqrst", "-" * 100
    before, now = system_difference(f"{lead}o{rest}", f"{lead}n{rest}")
    assert before == "…efghijklmnopqrsto" + "-" * 43 + "…"
    assert now == "…efghijklmnopqrstn" + "-" * 43 + "…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 60 + "…"),
    ],
)
def test_excerpt_of_a_short_text_is_the_text(text: str, shown: str) -> None:
    assert system_difference(text, "") == (shown, "")


@pytest.mark.parametrize(("lead", "mark"), [(16, ""), (17, "…")])
def test_excerpt_that_ends_with_its_text_has_no_mark_there(lead: int, mark: str) -> None:
    before, now = system_difference("l" * lead + "o" + "-" * 43, "l" * lead)
    assert before == mark + "l" * 16 + "o" + "-" * 43
    assert now == mark + "l" * 16


@pytest.mark.parametrize(
    ("before", "now", "cause", "place"),
    [
        ((BASH, READ, WRITE), (BASH, WRITE), Cause.TOOL_REMOVED, "tools[1] Read"),
        ((BASH, READ, tool("Bash", "other")), (BASH, READ), Cause.TOOL_REMOVED, "tools[2] Bash"),
        ((BASH, READ), (BASH, READ, tool("Bash", "other")), Cause.TOOL_ADDED, "tools[2] Bash"),
        ((BASH,), (BASH, {"type": "web_search"}), Cause.TOOL_ADDED, "tools[1] "),
        ((BASH,), (BASH, {"type": "function", "function": {}}), Cause.TOOL_ADDED, "tools[1] "),
    ],
)
def test_tools_are_named_where_they_part(
    before: tuple[dict[str, Any], ...], now: tuple[dict[str, Any], ...], cause: Cause, place: str
) -> None:
    found = difference(request(USER, tools=before), request(USER, tools=now))
    assert (found.cause, found.place) == (cause, place)


def test_tools_in_another_order_are_shown_by_their_names() -> None:
    found = difference(request(USER, tools=(BASH, READ)), request(USER, tools=(READ, BASH)))
    assert found == PromptDivergence(
        cause=Cause.TOOLS_REORDERED, place="tools[0] Read", before="Bash", now="Read"
    )


def test_edited_tool_is_shown_as_it_is_hashed() -> None:
    old, new = tool("Bash", "runs it"), tool("Bash", "\ud800")
    found = difference(request(USER, tools=(old,)), request(USER, tools=(new,)))
    assert found == PromptDivergence(
        cause=Cause.TOOL_EDITED,
        place="tools[0] Bash",
        before='…{"description":"runs it","name":"Bash"},"type":"function"}',
        now='…{"description":"\ufffd\ufffd\ufffd","name":"Bash"},"type":"function"}',
    )


@pytest.mark.parametrize(("before", "now"), [("low", "high"), (None, "high"), ("low", None)])
def test_change_of_effort_shows_both_values(before: str | None, now: str | None) -> None:
    found = difference(request(USER, effort=before), request(USER, effort=now))
    assert found == PromptDivergence(
        cause=Cause.EFFORT_CHANGED, place="effort", before=before or "", now=now or ""
    )


def test_cut_history_shows_what_was_cut() -> None:
    found = difference(request(SYSTEM, USER, ANSWER), request(SYSTEM, USER))
    assert found == PromptDivergence(
        cause=Cause.HISTORY_CUT, place="messages[2]", before="I read it."
    )


def test_edited_turn_of_a_history_of_the_same_length_is_no_cut() -> None:
    edited = replace(ANSWER, content="I did not.")
    found = difference(request(SYSTEM, USER, ANSWER, NEXT), request(SYSTEM, USER, edited, NEXT))
    assert found == PromptDivergence(
        cause=Cause.HISTORY_EDITED,
        place="messages[2] assistant",
        before="I read it.",
        now="I did not.",
    )


def test_conversation_without_a_system_prompt_begins_with_its_first_turn() -> None:
    other = replace(USER, content="Tell a joke.")
    found = difference(request(USER, ANSWER, NEXT), request(other, ANSWER, NEXT))
    assert (found.cause, found.place) == (Cause.OTHER_CONVERSATION, "messages[0] user")
    later = difference(request(USER, ANSWER, NEXT), request(USER, ANSWER, other))
    assert (later.cause, later.place) == (Cause.HISTORY_EDITED, "messages[2] user")


def test_turn_that_is_added_without_the_answer_has_no_difference() -> None:
    before = request(SYSTEM, USER)
    assert find_divergence(before, request(SYSTEM, USER, NEXT), answered_by=JOB) is None


def test_rewritten_answer_shows_its_thinking_text_and_calls() -> None:
    calls = (
        ToolCall(id="1", name="Bash", arguments={"b": 2, "a": 1}),
        ToolCall(id="2", name="Read", arguments={"path": "\ud800"}),
    )
    turn = Message(role="assistant", content="I read. ", reasoning="Well. ", tool_calls=calls)
    found = difference(request(SYSTEM, USER), request(SYSTEM, USER, turn, NEXT))
    assert found == PromptDivergence(
        cause=Cause.ANSWER_REWRITTEN,
        place="messages[2] assistant",
        now='Well. I read. [Bash {"a":1,"b":2}][Read {"path":"\ufffd\ufffd\ufffd"}]',
    )


def test_turn_of_another_role_in_place_of_the_answer_is_a_rewritten_answer() -> None:
    found = difference(request(SYSTEM, USER), request(SYSTEM, USER, NEXT, ANSWER))
    assert (found.cause, found.place) == (Cause.ANSWER_REWRITTEN, "messages[2] user")


def test_raw_texts_are_shown_and_ids_are_not() -> None:
    old, new = RawPrompt(text="def add(a)"), RawPrompt(text="def sub(a)")
    found = difference(request(raw=old), request(raw=new))
    assert (found.before, found.now) == ("def add(a)", "def sub(a)")
    ids = difference(request(raw=RawPrompt(ids=(1, 2))), request(raw=RawPrompt(ids=(1, 3))))
    assert (ids.before, ids.now) == ("", "")
    talk = difference(request(USER), request(raw=new))
    assert (talk.before, talk.now) == ("", "def sub(a)")


def test_raw_prompt_and_a_conversation_share_nothing() -> None:
    talk = request(SYSTEM, USER, tools=(BASH,))
    raw = replace(talk, raw=RawPrompt(text="def"))
    assert shared_parts(talk, raw) == shared_parts(raw, talk) == 0
