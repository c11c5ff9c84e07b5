"""The vendor's tools that the client runs, toolsets, and searches for tools."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types.beta as sdk
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from api.dialects.anthropic.client_tools import CLIENT_TOOLS
from api.dialects.anthropic.encode import AnthropicEncoder, MessageForm, assemble_message
from api.dialects.anthropic.parse import MessagesRequest, parse
from api.dialects.anthropic.tools import ranked
from api.generation import AssembledAnswer, RequestDefaults
from api.http.sse import Part, encode
from domain.chat.items import Finished, StreamItem, ToolEnd, ToolInput, ToolStart
from domain.chat.request import ChatRequest, Message, ToolCall
from domain.errors import InvalidRequest
from domain.values import JobId, StopReason, Usage
from tests.support.clients.sse import WireEvent, events_in
from tests.support.fakes.time import SequentialIds

_JOB = JobId("job-" + "ab" * 16)
_CALL = "toolu_" + "ab" * 16 + "_0"
_EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
_BASH = {"type": "bash_20250124", "name": "bash"}
_BROWSER = {"type": "browser_toolset_20260801"}
_BM25 = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
_REGEX = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
_LATE: list[dict[str, Any]] = [
    {
        "name": name,
        "description": text,
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
        "defer_loading": True,
    }
    for name, text in (
        ("get_weather", "Report the weather of a city."),
        ("sendMail", "Send a letter to a person."),
    )
]
_ASK = {"role": "user", "content": "hi"}


def _parsed(*messages: dict[str, Any], **more: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 10, "messages": messages or [_ASK], **more}
    return parse(json.dumps(body).encode(), {}, RequestDefaults(ids=SequentialIds(), max_tokens=1))


def _names(chat: ChatRequest) -> list[str]:
    return [tool["function"]["name"] for tool in chat.tools]


def _items(*calls: tuple[str, str, Any]) -> list[StreamItem]:
    bodies: list[Any] = []
    for call_id, name, arguments in calls:
        text = json.dumps(arguments)
        pieces = [ToolInput(fragment=text[:3], ids=(1,)), ToolInput(fragment=text[3:], ids=(2,))]
        bodies += [ToolStart(id=call_id, name=name), *pieces, ToolEnd()]
    bodies.append(Finished(stop_reason=StopReason.END_TURN, usage=Usage()))
    return [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(bodies)]


def _answered(parsed: MessagesRequest, *calls: tuple[str, str, Any]) -> sdk.BetaMessage:
    """Return the message of an answer, which is the same in pieces and whole."""
    answer, items = AssembledAnswer(), _items(*calls)
    for item in items:
        answer.add(item)
    whole = assemble_message(
        answer, MessageForm(model="m", thinking="none", tools=parsed.form.tools), _JOB
    )
    encoder = AnthropicEncoder(
        MessageForm(model="m", thinking="none", tools=parsed.form.tools),
        job_id=_JOB,
        request_id="r",
    )
    parts: list[Part] = encoder.open()
    for item in items:
        parts += encoder.item(item)
    blocks, reason = _collected(events_in(encode(parts)))
    assert blocks == whole["content"]
    assert reason == whole["stop_reason"]
    return TypeAdapter(sdk.BetaMessage).validate_python(whole)


def _collected(events: list[WireEvent]) -> tuple[list[Any], str]:
    blocks: list[Any] = []
    text, reason = "", ""
    for event in (one.json for one in events):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            text = ""
        elif event["type"] == "content_block_delta":
            text += event["delta"]["partial_json"]
        elif event["type"] == "content_block_stop" and text:
            blocks[-1] = {**blocks[-1], "input": json.loads(text)}
            text = ""
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    return blocks, reason


@pytest.mark.parametrize("kind", [name for name in CLIENT_TOOLS if "toolset" not in name])
def test_a_tool_of_the_vendor_is_a_function_with_its_fixed_name(kind: str) -> None:
    known = CLIENT_TOOLS[kind]
    chat = _parsed(tools=[{"type": kind, "name": known.name, "enable_zoom": True}]).chat
    (function,) = (tool["function"] for tool in chat.tools)
    assert (function["name"], bool(function["description"])) == (known.name, True)
    assert ("anyOf" in json.dumps(chat.narrowed)) == bool(known.selector)
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat


def test_a_call_is_held_to_the_inputs_of_its_command() -> None:
    chat = _parsed(tools=[_EDITOR]).chat
    (shown,), (held,) = chat.tools, chat.callable_tools
    assert "anyOf" not in json.dumps(shown)
    view, create, *_ = held["function"]["parameters"]["anyOf"]
    assert (view["properties"].keys(), view["required"]) == (
        {"command", "path", "view_range"},
        ["command", "path"],
    )
    assert create["required"] == ["command", "path", "file_text"]


def test_settings_of_a_tool_stand_in_its_description() -> None:
    screen = {"display_width_px": 800, "display_height_px": 600, "display_number": 1}
    computer = {"type": "computer_20251124", "name": "computer", **screen}
    (shown, editor) = _parsed(tools=[computer, _EDITOR | {"max_characters": 99}]).chat.tools
    assert "800 x 600" in shown["function"]["description"]
    assert "99 characters" in editor["function"]["description"]
    actions = shown["function"]["parameters"]["properties"]["action"]["enum"]
    assert "scroll" in actions
    assert "zoom" not in actions


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        (_BASH | {"name": "shell"}, "tools.0"),
        ({"type": "bash_20250124"}, "tools.0"),
        ({"input_schema": {"type": "object"}}, "tools.0"),
        ({"type": "bash_20991231", "name": "bash"}, "tools.0.type"),
        (_BROWSER | {"configs": {"fly": {"enabled": True}}}, "tools.0"),
    ],
)
def test_a_tool_that_is_not_as_the_vendor_has_it_is_refused(
    tool: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _parsed(tools=[tool])
    assert (caught.value.field or "").startswith(field)


def test_a_call_of_a_tool_of_the_vendor_has_its_name() -> None:
    parsed = _parsed(tools=[_BASH, _EDITOR])
    (call,) = _answered(parsed, (_CALL, "bash", {"command": "ls"})).content
    assert isinstance(call, sdk.BetaToolUseBlock)
    assert (call.name, call.input, call.toolset_name) == ("bash", {"command": "ls"}, None)


def test_members_of_a_toolset_are_functions_and_calls_have_their_toolset() -> None:
    late = {"zoom": {"enabled": False}, "find": None, "wait": {"defer_loading": True}}
    parsed = _parsed(tools=[_BROWSER | {"configs": late}])
    names = _names(parsed.chat)
    assert "browser__find" in names
    assert not {"browser__zoom", "browser__wait"} & set(names)
    message = _answered(parsed, (_CALL, "browser__find", {"query": "button"}))
    (call,) = message.content
    assert isinstance(call, sdk.BetaToolUseBlock)
    assert (call.name, call.toolset_name) == ("find", "browser")
    sent = json.loads(message.model_dump_json(exclude_none=True))["content"]
    turn = _parsed(_ASK, {"role": "assistant", "content": sent}, _ASK, tools=[_BROWSER])
    assert turn.chat.messages[1].tool_calls == (
        ToolCall(id=_CALL, name="browser__find", arguments={"query": "button"}),
    )


def test_the_toolsets_have_the_members_and_inputs_of_the_sdk() -> None:
    for family in ("Browser", "Computer"):
        known = CLIENT_TOOLS[f"{family.lower()}_toolset_20260801"]
        configs = getattr(sdk, f"Beta{family}ToolsetConfigsParam").__annotations__
        assert known.members.keys() == configs.keys()
        for member in known.members:
            words = "".join(word.capitalize() for word in member.split("_"))
            model = getattr(sdk, f"Beta{family}{words}Input")
            fields = {one.alias or name: one for name, one in model.model_fields.items()}
            schema = known.schema([member])
            assert schema["properties"].keys() == fields.keys(), member
            wanted = {name for name, one in fields.items() if one.is_required()}
            assert set(schema["required"]) == wanted, member


def test_the_memory_tool_has_the_commands_of_the_sdk() -> None:
    known = CLIENT_TOOLS["memory_20250818"]
    for member, spec in known.members.items():
        words = "".join(word.capitalize() for word in member.split("_"))
        fields = getattr(sdk, f"BetaMemoryTool20250818{words}Command").model_fields
        wanted = {
            name if one.is_required() else f"{name}?"
            for name, one in fields.items()
            if name != "command"
        }
        assert set(spec.split()) == wanted, member


@pytest.mark.parametrize(
    ("tool", "arguments", "found"),
    [
        (_BM25, {"query": "the weather of Paris"}, ["get_weather"]),
        (_BM25, {"query": "mail"}, ["sendMail"]),
        (_BM25, {"query": "city"}, ["get_weather", "sendMail"]),
        (_BM25, {"query": "nothing"}, []),
        (_BM25, {"query": 1}, None),
        (_BM25, {"pattern": "x"}, None),
        (_REGEX, {"pattern": "get_.*"}, ["get_weather"]),
        (_REGEX, {"pattern": "(?i)SENDMAIL"}, ["sendMail"]),
        (_REGEX, {"pattern": "(a+)+$" * 20 + "("}, None),
        (_REGEX, {"pattern": "x" * 201}, None),
    ],
)
def test_a_search_runs_here_and_pauses_the_turn(
    tool: dict[str, Any], arguments: Any, found: list[str] | None
) -> None:
    parsed = _parsed(tools=[tool, *_LATE])
    assert _names(parsed.chat) == [tool["name"]]
    message = _answered(parsed, (_CALL, tool["name"], arguments))
    call, result = message.content
    assert message.stop_reason == "pause_turn"
    assert isinstance(call, sdk.BetaServerToolUseBlock)
    assert isinstance(result, sdk.BetaToolSearchToolResultBlock)
    assert call.id == result.tool_use_id == f"srv{_CALL}"
    if found is None:
        assert isinstance(result.content, sdk.BetaToolSearchToolResultError)
    else:
        assert isinstance(result.content, sdk.BetaToolSearchToolSearchResultBlock)
        assert [one.tool_name for one in result.content.tool_references] == found


def test_what_a_search_found_is_callable_in_the_turn_that_goes_on() -> None:
    tools = [_BM25, *_LATE]
    first = _parsed(tools=tools)
    message = _answered(first, (_CALL, "tool_search_tool_bm25", {"query": "weather"}))
    sent = json.loads(message.model_dump_json(exclude_none=True))["content"]
    text = {"type": "text", "text": "Here it is."}
    second = _parsed(_ASK, {"role": "assistant", "content": [*sent, text]}, tools=tools).chat
    assert second.tools == first.chat.tools
    assert [one["function"]["name"] for one in second.deferred_tools] == ["get_weather"]
    _, call, result, after = second.messages
    assert call.tool_calls == (
        ToolCall(id=_CALL, name="tool_search_tool_bm25", arguments={"query": "weather"}),
    )
    assert call.origin == _JOB
    assert (result.role, result.tool_call_id) == ("tool", _CALL)
    assert '"name":"get_weather"' in result.content
    assert after == Message(role="assistant", content="Here it is.")


def test_a_turn_with_another_call_beside_a_search_waits_for_its_result() -> None:
    parsed = _parsed(tools=[_BM25, _BASH, *_LATE])
    calls = [
        (_CALL, "tool_search_tool_bm25", {"query": "mail"}),
        (_CALL[:-1] + "1", "bash", {"command": "ls"}),
    ]
    message = _answered(parsed, *calls)
    assert message.stop_reason == "tool_use"
    kinds = [block.type for block in message.content]
    assert kinds == ["server_tool_use", "tool_search_tool_result", "tool_use"]


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=8))
def test_ranking_names_each_text_once_and_only_those_with_a_word(
    query: str, texts: list[str]
) -> None:
    found = ranked(query, texts, limit=5)
    assert len(found) == len(set(found)) <= 5
    assert all(0 <= place < len(texts) for place in found)
    for place, text in enumerate(texts):
        if ranked(text, [text], limit=1):
            assert place in ranked(text, texts, limit=len(texts))


def test_rare_words_count_more_and_long_texts_less() -> None:
    texts = ["read a file", "read a mail", "write a long list of words into a file, then stop"]
    assert ranked("file mail", texts, limit=3) == [1, 0, 2]
