"""The vendor's tools that the client runs: offered, called, answered and chosen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from pydantic import TypeAdapter

from api.dialects.openai_responses.client_tools import CLIENT_TOOLS, call_members
from api.dialects.openai_responses.parse import (
    input_items,
    listed_items,
    parse_request,
    read_body,
    requested_fields,
)
from api.dialects.openai_responses.tools import call_item
from api.dialects.parsing import IMAGE_UNSENT
from api.generation import Block, RequestDefaults
from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice
from domain.errors import InvalidRequest
from tests.support.fakes.time import SequentialIds

_OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
_INPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)
_PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 800,
    "display_height": 600,
    "environment": "linux",
}
_TOOLS = [
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    {"type": "computer"},
    _PREVIEW,
]
_CREATE = {"type": "create_file", "path": "a.txt", "diff": "+b"}
#: Arguments as the model writes them, by the tool.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "shell": {"commands": ["ls", "pwd"], "timeout_ms": 9},
    "local_shell": {"command": ["ls"], "env": {"A": "b"}},
    "apply_patch": {"operation": _CREATE},
    "computer": {"actions": [{"type": "click", "button": "left", "x": 1, "y": 2}]},
    "computer_use_preview": {"action": {"type": "drag", "path": [{"x": 1, "y": 2}]}},
}


def _chat(**fields: Any) -> ChatRequest:
    wire = read_body(json.dumps({"model": "m", "input": "hi"} | fields).encode())
    requested = requested_fields(wire, input_items(wire))
    defaults = RequestDefaults(ids=SequentialIds(), max_tokens=9)
    return parse_request(wire, requested, requested.items, {}, defaults).chat


def _kinds() -> Any:
    wire = read_body(json.dumps({"model": "m", "input": "hi", "tools": _TOOLS}).encode())
    return requested_fields(wire, ()).kinds


def _item(name: str, arguments: str) -> dict[str, Any]:
    block = Block(kind="tool", id="toolu_1", name=name, text=arguments)
    return call_item(block, _kinds(), "x_1", "completed")


def test_each_is_a_function_with_the_settings_of_the_client() -> None:
    skill = {"name": "pdf", "description": "Reads PDF.", "path": "/skills/pdf"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    functions = [tool["function"] for tool in _chat(tools=[*_TOOLS[1:], shell]).tools]
    assert [one["name"] for one in functions] == [*list(CLIENT_TOOLS)[1:], "shell"]
    assert "Skill pdf in /skills/pdf: Reads PDF." in functions[-1]["description"]
    assert "800 x 600" in functions[-2]["description"]
    assert "linux" in functions[-2]["description"]


def test_the_response_repeats_the_tools() -> None:
    wire = read_body(json.dumps({"model": "m", "input": "hi", "tools": _TOOLS}).encode())
    assert requested_fields(wire, ()).echo["tools"] == _TOOLS


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "shell", "environment": {"type": "container_auto"}}, "tools.0.environment"),
        ({"type": "code_interpreter"}, "tools.0.type"),
    ],
)
def test_what_only_the_vendor_can_run_is_refused(tool: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(tools=[tool])
    assert (caught.value.field or "").startswith(field)


@pytest.mark.parametrize("name", _ARGUMENTS)
def test_a_call_comes_back_as_it_was_made(name: str) -> None:
    item = _item(name, json.dumps(_ARGUMENTS[name]))
    assert item["type"] == CLIENT_TOOLS[name].call
    parsed = _OUTPUT_ITEM.validate_python(item)
    assert parsed.type == item["type"]
    sent = json.loads(parsed.model_dump_json())
    _INPUT_ITEM.validate_python(parsed.model_dump(exclude_none=True))
    chat = _chat(input=[{"role": "user", "content": "hi"}, sent], tools=_TOOLS)
    assert chat.messages[1].tool_calls == (
        ToolCall(id="toolu_1", name=name, arguments=_ARGUMENTS[name]),
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", '{"commands": "ls"}'),
        ("shell", '{"comm'),
        ("apply_patch", '{"operation": {"type": "rename_file", "path": "a"}}'),
        ("apply_patch", '{"operation": {"type": "create_file", "path": "a"}}'),
        ("computer", '{"actions": [{"type": "move", "x": "1", "y": 2}]}'),
    ],
)
def test_a_call_in_other_words_is_a_call_of_a_function(name: str, arguments: str) -> None:
    item = _item(name, arguments)
    assert (item["type"], item["name"]) == ("function_call", name)
    assert item["arguments"] == arguments


def test_a_call_that_was_cut_off_behind_its_last_brace_is_no_call_of_the_tool() -> None:
    text = json.dumps(_ARGUMENTS["apply_patch"])
    block = Block(kind="tool", id="toolu_1", name="apply_patch", text=text, is_whole=False)
    item = call_item(block, _kinds(), "x_1", "incomplete")
    assert (item["type"], item["status"]) == ("function_call", "incomplete")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["commands", "command", "operation", "type", "path", "actions", "x"]),
            inner | st.sampled_from(["create_file", "wait", "click"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(name=st.sampled_from(list(CLIENT_TOOLS)), arguments=_json)
@example(name="local_shell", arguments={"command": [], "type": None})
@example(name="local_shell", arguments={"command": [], "env": {"A": 1}})
def test_whatever_the_arguments_are_the_item_fits_the_sdk(name: str, arguments: Any) -> None:
    item = _item(name, json.dumps(arguments))
    assert _OUTPUT_ITEM.validate_python(item).type == item["type"]
    assert (call_members(name, json.dumps(arguments)) is None) == (item["type"] == "function_call")


_EXIT = {"type": "exit", "exit_code": 1}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [
                    {"stdout": "a", "stderr": "b", "outcome": _EXIT},
                    {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
                ],
            },
            "a\nb\n[exit code 1]\n[timed out]",
        ),
        ({"type": "local_shell_call_output", "id": "c", "output": "a"}, "a"),
        (
            {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "x"},
            "Error: x",
        ),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}, ""),
        (
            {
                "type": "computer_call_output",
                "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,A"},
            },
            IMAGE_UNSENT,
        ),
    ],
)
def test_a_result_is_a_turn_of_its_call(output: dict[str, Any], text: str) -> None:
    chat = _chat(input=[{"role": "user", "content": "hi"}, output])
    assert chat.messages[1] == Message(role="tool", content=text, tool_call_id="c")
    wire = read_body(json.dumps({"model": "m", "input": [output]}).encode())
    (listed,) = listed_items(input_items(wire), "0")
    assert listed["type"] == output["type"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "shell_call", "call_id": "c"},
        {"type": "apply_patch_call", "call_id": "c", "action": {}},
        {"type": "shell_call_output", "output": []},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a"}]},
    ],
)
def test_an_item_without_what_it_needs_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(input=[item])
    assert (caught.value.field or "").startswith("input.0")


@pytest.mark.parametrize(
    ("spec", "choice"),
    [
        ({"type": "shell"}, ToolChoice(mode="tool", name="shell")),
        ({"type": "apply_patch"}, ToolChoice(mode="tool", name="apply_patch")),
        ({"type": "computer_use"}, ToolChoice(mode="tool", name="computer")),
        ({"type": "computer_use_preview"}, ToolChoice(mode="tool", name="computer_use_preview")),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "local_shell"}]},
            ToolChoice(mode="any", allowed=("local_shell",)),
        ),
    ],
)
def test_a_choice_names_a_tool_by_its_type(spec: Any, choice: ToolChoice) -> None:
    assert _chat(tools=_TOOLS, tool_choice=spec).tool_choice == choice


def test_a_choice_of_a_tool_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no shell tool among") as caught:
        _chat(tool_choice={"type": "shell"})
    assert caught.value.field == "tool_choice"
