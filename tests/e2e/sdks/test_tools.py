"""Tools and counts through the official SDKs, unmodified and with strict response validation."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
}
_WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": _SCHEMA,
}
_BASH: Any = {
    "name": "Bash",
    "description": "Run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
_ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
_COLD: dict[str, Any] = {"temperature": 0}


def _counted(usage: Any) -> int:
    created = usage.cache_creation_input_tokens or 0
    return int(usage.input_tokens + usage.cache_read_input_tokens + created)


@pytest.mark.parametrize("choice", [None, {"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_anthropic_call_comes_whole(claude: anthropic.Anthropic, choice: Any) -> None:
    more = {"tool_choice": choice} if choice else {}
    message = claude.messages.create(
        model="gpt-m", max_tokens=80, tools=[_WEATHER], messages=_ASK, extra_body=_COLD, **more
    )
    (call,) = (block for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "tool_use"
    assert call.id.startswith("toolu_")
    assert (call.name, list(call.input)) == ("get_weather", ["location"])


def test_anthropic_call_is_streamed_and_its_result_is_taken(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(
        model="gpt-m", max_tokens=80, tools=[_WEATHER], messages=_ASK, extra_body=_COLD
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    (call,) = (block for block in message.content if block.type == "tool_use")
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == call.input
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 degrees."}
    answer = claude.messages.create(
        model="gpt-m",
        max_tokens=40,
        tools=[_WEATHER],
        messages=[
            *_ASK,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ],
        extra_body=_COLD,
    )
    assert answer.stop_reason in {"end_turn", "max_tokens", "tool_use"}
    assert answer.usage.cache_read_input_tokens


def test_named_tool_is_called_whatever_was_asked(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="gpt-m",
        max_tokens=80,
        tools=[_WEATHER, _BASH],
        tool_choice={"type": "tool", "name": "Bash", "disable_parallel_tool_use": True},
        messages=_ASK,
        extra_body=_COLD,
    )
    assert [block.type for block in message.content] == ["tool_use"]
    assert message.content[0].name == "Bash"  # type: ignore[union-attr]  # the line above says it


_REQUIRED = {
    "view": {"path"},
    "create": {"path", "file_text"},
    "str_replace": {"path", "old_str"},
    "insert": {"path", "insert_line", "new_str"},
}


def test_a_call_of_the_vendors_editor_has_what_its_command_requires(
    claude: anthropic.Anthropic,
) -> None:
    for question in ("Show me a.txt", "Write hello into a new file b.txt"):
        message = claude.messages.create(
            model="gpt-m",
            max_tokens=200,
            tools=[{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}],
            tool_choice={"type": "tool", "name": "str_replace_based_edit_tool"},
            messages=[{"role": "user", "content": question}],
            extra_body=_COLD,
        )
        (call,) = (block for block in message.content if block.type == "tool_use")
        given: Any = call.input
        beside = given.keys() - _REQUIRED[given["command"]] - {"command"}
        assert given.keys() >= _REQUIRED[given["command"]], message
        assert beside <= {"view_range", "new_str"}, message


def test_a_call_of_openais_patch_is_one_of_its_operations(oai: openai.OpenAI) -> None:
    response = oai.responses.create(
        model="gpt-m",
        input="Delete the file a.txt",
        tools=[{"type": "apply_patch"}],
        tool_choice={"type": "apply_patch"},
        temperature=0,
        max_output_tokens=200,
    )
    (call,) = (one for one in response.output if one.type == "apply_patch_call")
    assert call.operation.type in {"create_file", "update_file", "delete_file"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief."},
        {"tools": [_WEATHER, _BASH]},
        {"tools": [_WEATHER], "tool_choice": {"type": "any"}},
        {"tools": [_WEATHER], "tool_choice": {"type": "none"}},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
    ],
    ids=str,
)
def test_count_is_what_the_call_reports(
    claude: anthropic.Anthropic, fields: dict[str, Any]
) -> None:
    counted = claude.messages.count_tokens(model="gpt-m", messages=_ASK, **fields)
    message = claude.messages.create(model="gpt-m", max_tokens=1, messages=_ASK, **fields)
    assert counted.input_tokens == _counted(message.usage)
    again = claude.messages.create(model="gpt-m", max_tokens=1, messages=_ASK, **fields)
    assert counted.input_tokens == _counted(again.usage)


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_that_is_too_long_is_a_400_in_the_words_that_clients_know(
    claude: anthropic.Anthropic, *, stream: bool
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ m"):
        claude.messages.create(
            model="gpt-m",
            max_tokens=1,
            stream=stream,
            messages=[{"role": "user", "content": "word " * 140_000}],
        )


def test_openai_calls_come_whole_and_in_pieces(oai: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": _SCHEMA}}
    asked: Any = {
        "model": "gpt-m", "messages": _ASK, "tools": [tool], "temperature": 0, "max_tokens": 80,
        "tool_choice": "required",
    }  # fmt: skip
    whole = oai.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    chunks = list(oai.chat.completions.create(**asked, stream=True))
    deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
    assert {delta.index for delta in deltas} == {0}
    assert deltas[0].function.name == call.function.name == "get_weather"
    assert "".join(d.function.arguments or "" for d in deltas) == call.function.arguments
    assert list(json.loads(call.function.arguments)) == ["location"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
