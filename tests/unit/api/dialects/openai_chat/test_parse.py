from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.jobs import wire as native
from api.dialects.openai_chat import parse as openai_chat
from api.dialects.parsing import IMAGE_UNSENT
from api.generation import ParsedRequest, RequestDefaults
from domain.chat.request import Message, ToolCall, ToolChoice
from domain.errors import InvalidRequest
from domain.values import Priority
from tests.support.fakes.time import SequentialIds

_DEFAULT = 777


def _parse(headers: dict[str, str] | None = None, **changes: Any) -> ParsedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | changes
    return openai_chat.parse(
        json.dumps(body).encode(),
        headers or {},
        RequestDefaults(ids=SequentialIds(), max_tokens=_DEFAULT),
    )


def _job(**body: Any) -> ParsedRequest:
    return native.parse(
        json.dumps(body).encode(),
        {},
        RequestDefaults(ids=SequentialIds(), max_tokens=_DEFAULT, model="served"),
    )


def test_smallest_chat_body_gets_defaults() -> None:
    parsed = _parse()
    assert parsed.chat.max_tokens == _DEFAULT
    assert parsed.chat.messages == (Message(role="user", content="hi"),)
    assert not parsed.stream
    assert not parsed.include_usage


def test_history_with_tools_and_parts_is_taken_whole() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "x"}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "user", "content": "And now?"},
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    parsed = _parse(
        messages=messages,
        tools=[tool],
        parallel_tool_calls=True,
        response_format={"type": "text"},
        stream=True,
        stream_options={"include_usage": True},
        session_id="agent-7",
    )
    assert parsed.chat.messages == (
        Message(role="system", content="Be kind."),
        Message(role="user", content=IMAGE_UNSENT),
        Message(
            role="assistant",
            content="",
            tool_calls=(
                ToolCall(id="c1", name="look", arguments={"at": "x"}),
                ToolCall(id="c2", name="look", arguments={"unparsed": "{"}),
            ),
        ),
        Message(role="tool", content="seen", tool_call_id="c1"),
        Message(role="user", content="And now?"),
    )
    assert [spec["function"]["name"] for spec in parsed.chat.tools] == ["look"]
    assert parsed.include_usage
    assert parsed.agent == "agent-7"


def test_newer_name_of_the_limit_wins_and_stop_may_be_one_text() -> None:
    chat = _parse(max_tokens=5, max_completion_tokens=6.0, stop="END", temperature=2).chat
    assert (chat.max_tokens, chat.stop, chat.sampling.temperature) == (6, ("END",), 2.0)


def test_reasoning_is_wanted_if_an_effort_is_named() -> None:
    assert _parse(reasoning_effort="low").chat.thinking
    assert _parse(reasoning_effort="low").chat.effort == "low"
    assert _parse().chat.effort is None
    assert not _parse(reasoning_effort="none").chat.thinking


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"n": 9}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"min_p": 1}, "min_p"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0.type"),
        ({"session_id": "no spaces"}, "session_id"),
    ],
)
def test_wrong_chat_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _parse(**changes)
    assert caught.value.field == field


def test_prompt_of_a_job_is_a_user_turn_after_its_system_text() -> None:
    parsed = _job(prompt="hi", system="Be kind.", priority="batch", agent_id="a/b", thinking=True)
    assert parsed.chat.messages == (
        Message(role="system", content="Be kind."),
        Message(role="user", content="hi"),
    )
    assert parsed.chat.model == "served"
    assert (parsed.priority, parsed.agent) == (Priority.BATCH, "a/b")
    assert parsed.chat.thinking


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": "x", "messages": [{"role": "user", "content": "y"}]},
        {"prompt": "x", "priority": "urgent"},
        {"messages": []},
    ],
)
def test_job_without_exactly_one_question_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        _job(**body)


_CLOCK = {"type": "function", "function": {"name": "clock"}}


def _allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    allowed = {"mode": mode, "tools": tools}
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ToolChoice(parallel=False)),
        ({"tool_choice": "none"}, ToolChoice(mode="none")),
        ({"tool_choice": "required"}, ToolChoice(mode="any")),
        (
            {"tool_choice": {"type": "function", "function": {"name": "clock"}}},
            ToolChoice(mode="tool", name="clock"),
        ),
        (_allowed("auto", "clock", "web"), ToolChoice(allowed=("clock",))),
        (_allowed("required", "clock"), ToolChoice(mode="any", allowed=("clock",))),
        (_allowed("auto"), ToolChoice(allowed=())),
    ],
)
def test_tool_choice_is_understood(fields: dict[str, Any], choice: ToolChoice) -> None:
    assert _parse(tools=[_CLOCK], **fields).chat.tool_choice == choice


def test_call_of_a_function_that_is_not_there_is_refused() -> None:
    unknown = {"type": "function", "function": {"name": "clcok"}}
    with pytest.raises(InvalidRequest, match="clcok") as refused:
        _parse(tools=[_CLOCK], tool_choice=unknown)
    assert refused.value.field == "tool_choice"
    with pytest.raises(InvalidRequest, match="no tools"):
        _parse(tools=[_CLOCK], **_allowed("required", "clcok"))


def test_form_of_the_answer_is_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert _parse(response_format=named).chat.answer_schema == schema
    assert _parse(response_format={"type": "json_object"}).chat.answer_schema == {}
    assert _parse(response_format={"type": "text"}).chat.answer_schema is None
