"""Tools of every type as the model is offered them, and calls as it made them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.openai_responses.parse import (
    input_items,
    listed_items,
    parse_request,
    read_body,
    requested_fields,
)
from api.dialects.openai_responses.tools import GRAMMARS_MAX
from api.generation import ParsedRequest, RequestDefaults
from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice
from domain.errors import InvalidRequest
from tests.support.fakes.time import SequentialIds

_BASH = {"type": "function", "name": "Bash", "parameters": {"type": "object"}}
_NOTE = {"type": "custom", "name": "note", "description": "Take a note."}
_CRM = {"type": "namespace", "name": "crm", "description": "All of it.", "tools": [
    {"type": "function", "name": "find", "parameters": {"type": "object"}}, _NOTE,
]}  # fmt: skip
_SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
_LATE = _BASH | {"name": "Late", "defer_loading": True}
_FOUND: list[dict[str, Any]] = [
    {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"q": "x"}},
    {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [_CRM, _LATE]},
]


def _parsed(**fields: Any) -> ParsedRequest:
    wire = read_body(json.dumps({"model": "m", "input": "hi"} | fields).encode())
    requested = requested_fields(wire, input_items(wire))
    return parse_request(
        wire, requested, requested.items, {}, RequestDefaults(ids=SequentialIds(), max_tokens=9)
    )


def _chat(**fields: Any) -> ChatRequest:
    return _parsed(**fields).chat


def _names(tools: Any) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def test_every_type_is_a_function_to_the_model() -> None:
    chat = _chat(tools=[_BASH, _NOTE, _CRM, _SEARCH, _BASH])
    assert _names(chat.tools) == ["Bash", "note", "crm__find", "crm__note", "tool_search"]
    note = chat.tools[1]["function"]
    assert note["description"] == "Take a note."
    assert note["parameters"]["required"] == ["input"]
    assert not chat.narrowed
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat


def test_a_grammar_holds_the_call_and_is_no_part_of_the_prompt() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "^a+$"}
    chat = _chat(tools=[_NOTE | {"format": grammar}])
    (shown_tool,), (held,) = chat.tools, chat.callable_tools
    assert "pattern" not in json.dumps(shown_tool)
    assert held["function"]["parameters"]["properties"]["input"]["pattern"] == "^(?:a+)$"
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat


def test_tools_that_wait_are_left_out_until_a_search_has_found_them() -> None:
    assert _names(_chat(tools=[_BASH, _LATE]).tools) == ["Bash", "Late"]
    chat = _chat(tools=[_SEARCH, _LATE, _BASH])
    assert _names(chat.tools) == ["tool_search", "Bash"]
    later = _chat(tools=[_SEARCH, _LATE, _BASH], input=[{"role": "user", "content": "hi"}, *_FOUND])
    assert later.tools == chat.tools
    assert _names(later.deferred_tools) == ["crm__find", "crm__note", "Late"]
    assert _names(later.callable_tools) == [*_names(later.tools), *_names(later.deferred_tools)]
    call, result = later.messages[-2:]
    assert call.tool_calls == (ToolCall(id="c", name="tool_search", arguments={"q": "x"}),)
    assert result.content.count("<function>") == 3
    nothing = _chat(input=[_FOUND[0], _FOUND[1] | {"tools": []}])
    assert nothing.messages[-1].content == "No tools were found."


_OF_THE_VENDOR: dict[str, Any] = {
    "tools of a server": {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "s",
        "tools": [{"name": "t", "input_schema": {}}],
    },
    "call of a server": {
        "type": "mcp_call", "id": "m", "name": "t", "arguments": "{}", "output": 5
    },
    "search call of the vendor": {
        "type": "tool_search_call",
        "call_id": None,
        "execution": "server",
        "arguments": ["crm"],
    },
    "search output of the vendor": {
        "type": "tool_search_output", "call_id": None, "execution": "server", "tools": [_BASH]
    },
    "unknown": {"type": "of_next_year", "role": "robot", "content": 5, "tools": 7, "id": 3},
}  # fmt: skip


@pytest.mark.parametrize("item", _OF_THE_VENDOR.values(), ids=_OF_THE_VENDOR)
def test_items_of_the_vendor_are_refused_by_name(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(input=[item])
    assert (caught.value.field or "").startswith("input.0.")


def test_additional_tools_are_described_where_they_stand_and_callable_from_then_on() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [_CRM]}
    asked = [{"role": "user", "content": "hi"}, added, {"role": "user", "content": "go"}]
    chat = _chat(tools=[_BASH], input=asked)
    assert _names(chat.tools) == ["Bash"]
    assert _names(chat.deferred_tools) == ["crm__find", "crm__note"]
    assert "".join(one.content for one in chat.messages).count("<function>") == 2
    wire = read_body(json.dumps({"model": "m", "input": asked}).encode())
    listed = listed_items(input_items(wire), "0")[1]
    assert (listed["type"], listed["role"]) == ("additional_tools", "developer")
    assert [tool["name"] for tool in listed["tools"]] == ["crm"]
    assert _chat(input=[asked[0], added | {"tools": []}]) == _chat(input=asked[:1])


def test_calls_of_every_type_are_calls_to_the_model() -> None:
    chat = _chat(input=[
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "a", "namespace": "crm", "name": "find",
         "arguments": '{"x": 1}'},
        {"type": "custom_tool_call", "call_id": "b", "name": "note", "input": "x\n"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "noted"},
        {"type": "function_call_output", "call_id": "a",
         "output": [{"type": "input_text", "text": "found"}]},
    ])  # fmt: skip
    assert chat.messages[1:] == (
        Message(
            role="assistant",
            content="",
            tool_calls=(
                ToolCall(id="a", name="crm__find", arguments={"x": 1}),
                ToolCall(id="b", name="note", arguments={"input": "x\n"}),
            ),
        ),
        Message(role="tool", content="noted", tool_call_id="b"),
        Message(role="tool", content="found", tool_call_id="a"),
    )


@pytest.mark.parametrize(
    ("spec", "choice"),
    [
        ({"type": "custom", "name": "note"}, ToolChoice(mode="tool", name="note")),
        ({"type": "function", "name": "find"}, ToolChoice(mode="tool", name="crm__find")),
        ({"type": "function", "name": "crm__find"}, ToolChoice(mode="tool", name="crm__find")),
        (
            {"type": "allowed_tools", "mode": "auto",
             "tools": [{"type": "function", "name": "Bash"}, {"type": "web_search"}]},
            ToolChoice(allowed=("Bash",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required",
             "tools": [{"type": "custom", "name": "note"}, {"type": "tool_search"}]},
            ToolChoice(mode="any", allowed=("note", "tool_search")),
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, ToolChoice(allowed=())),
    ],
)  # fmt: skip
def test_a_choice_names_tools_by_type(spec: Any, choice: ToolChoice) -> None:
    tools = [_BASH, _NOTE, _CRM, _SEARCH]
    chat = _chat(tools=tools, tool_choice=spec)
    assert chat.tool_choice == choice
    # Whatever is chosen, the prompt begins with all of them.
    assert chat.tools == _chat(tools=tools).tools
    if choice.allowed is not None:
        assert _names(chat.callable_tools) == list(choice.allowed)
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat


@pytest.mark.parametrize("spec", [
    {"type": "custom", "name": "Bash"}, {"type": "function", "name": "note"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
])  # fmt: skip
def test_a_demand_that_nothing_can_answer_is_refused(spec: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(tools=[_BASH, _NOTE], tool_choice=spec)
    assert caught.value.field == "tool_choice"


def test_grammars_have_a_limit_and_namespaces_one_level() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a"}
    many = [_NOTE | {"name": f"n{n}", "format": grammar} for n in range(GRAMMARS_MAX + 1)]
    assert len(_chat(tools=many[1:]).narrowed) == GRAMMARS_MAX
    with pytest.raises(InvalidRequest) as caught:
        _chat(tools=[{"type": "namespace", "name": "all", "tools": many}])
    assert caught.value.field == "tools"
    nested = {"type": "namespace", "name": "outer", "description": "", "tools": [_CRM, _BASH]}
    wire = read_body(json.dumps({"model": "m", "tools": [nested]}).encode())
    assert _names(_chat(tools=[nested]).tools) == ["outer__Bash"]
    (echoed,) = requested_fields(wire, ()).echo["tools"]
    assert [tool["name"] for tool in echoed["tools"]] == ["Bash"]


def test_items_are_listed_in_the_words_of_their_type() -> None:
    wire = read_body(json.dumps({"model": "m", "input": _FOUND}).encode())
    call, result = listed_items(input_items(wire), "0")
    assert (call["id"], call["arguments"]) == ("tsc_0_i0", {"q": "x"})
    assert (result["id"], result["tools"][0]["name"]) == ("tso_0_i1", "crm")
