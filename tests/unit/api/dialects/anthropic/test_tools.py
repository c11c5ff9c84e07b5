from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.anthropic.bodies import CountBody
from api.dialects.anthropic.parse import MessagesRequest, counted_request_of, parse
from api.dialects.encoding import sign_reasoning, signed_reasoning
from api.dialects.parsing import IMAGE_UNSENT
from api.generation import ParsedRequest, RequestDefaults
from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice, unattributed
from domain.errors import InvalidRequest
from domain.values import JobId
from tests.support.fakes.time import SequentialIds

_JOB = JobId("job-" + "ab" * 16)
_BASH = {"name": "Bash", "description": "Run", "input_schema": {"type": "object"}}
_FIND = {"name": "Find", "description": "Seek", "input_schema": {"type": "object"}}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
_CALL = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}


def _parse(*messages: dict[str, Any], **more: Any) -> ParsedRequest:
    body = {
        "model": "m",
        "max_tokens": 10,
        "messages": messages or [{"role": "user", "content": "hi"}],
    } | more
    return parse(json.dumps(body).encode(), {}, RequestDefaults(ids=SequentialIds(), max_tokens=1))


def _chat(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    return _parse(*messages, **more).chat


def _result(content: Any, **more: Any) -> Message:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **more}
    if content is not ...:
        block["content"] = content
    chat = _chat(
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": [_CALL]},
        {"role": "user", "content": [block]},
        tools=[_BASH, _FIND | {"defer_loading": True}],
    )
    assert chat.messages[1].tool_calls == (
        ToolCall(id="toolu_1", name="Bash", arguments={"command": "ls"}),
    )
    return chat.messages[-1]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a.txt", "a.txt"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": "seen:"}, _IMAGE], f"seen:\n{IMAGE_UNSENT}"),
        ([], ""),
        (..., ""),
        (None, ""),
        ([{"type": "document", "title": "Plan", "source": {}}], "Plan"),
        ([{"type": "of_next_year", "x": 1}], "[of_next_year left out]"),
        (
            [{"type": "tool_reference", "tool_name": "Find"}],
            (
                '<function>{"description":"Seek","name":"Find","parameters":{"type":"object"}}'
                "</function>"
            ),
        ),
        ([{"type": "tool_reference", "tool_name": "Gone"}], "[tool Gone]"),
    ],
)
def test_result_of_any_shape_is_a_turn_of_its_tool(content: Any, text: str) -> None:
    assert _result(content) == Message(role="tool", content=text, tool_call_id="toolu_1")


def test_failed_result_reports_its_failure_once() -> None:
    assert _result("no such file", is_error=True).content == "Error: no such file"
    assert _result("Error: gone", is_error=True).content == "Error: gone"
    assert _result("<tool_use_error>x", is_error=True).content == "<tool_use_error>x"
    assert _result("fine", is_error=False).content == "fine"


def test_image_without_its_data_is_refused_in_the_newest_question_where_it_stands() -> None:
    question = {"role": "user", "content": [{"type": "text", "text": "what is it?"}, _IMAGE]}
    with pytest.raises(InvalidRequest, match="an image is a PNG") as refused:
        _chat(question)
    assert refused.value.field == "messages.0.content.1"
    later = _chat(question, {"role": "assistant", "content": "?"}, {"role": "user", "content": "x"})
    assert later.messages[0].content == f"what is it?\n{IMAGE_UNSENT}"


def test_deferred_tool_stands_in_the_prompt_only_where_it_is_referred_to() -> None:
    tools = [_BASH, _FIND | {"defer_loading": True}]
    before = _chat(tools=tools)
    assert [tool["function"]["name"] for tool in before.tools] == ["Bash"]
    assert [tool["function"]["name"] for tool in before.callable_tools] == ["Bash"]
    found = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "tool_reference", "tool_name": "Find"}],
    }
    after = _chat({"role": "user", "content": [found]}, tools=tools)
    assert after.tools == before.tools
    assert [tool["function"]["name"] for tool in after.callable_tools] == ["Bash", "Find"]


@pytest.mark.parametrize(
    ("spec", "choice"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "any"}, ToolChoice(mode="any")),
        ({"type": "tool", "name": "Bash"}, ToolChoice(mode="tool", name="Bash")),
    ],
)
def test_tool_choice_is_understood(spec: dict[str, Any], choice: ToolChoice) -> None:
    chat = _chat(tools=[_BASH], tool_choice=spec)
    assert chat.tool_choice == choice
    # The tools stand in the prompt whatever the choice, so that its beginning stays as it was.
    assert len(chat.tools) == 1
    assert bool(chat.callable_tools) == (choice.mode != "none")


@pytest.mark.parametrize(
    ("tools", "spec", "field"),
    [
        ([_BASH], {"type": "tool", "name": "Bsh"}, "tool_choice.name"),
        ([], {"type": "any"}, "tool_choice"),
    ],
)
def test_call_that_nothing_can_answer_is_refused(
    tools: list[Any], spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _chat(tools=tools, tool_choice=spec)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("spec", "thinks", "shown"),
    [
        (None, False, "none"),
        ({"type": "disabled"}, False, "none"),
        ({"type": "enabled", "budget_tokens": 31999}, True, "whole"),
        ({"type": "adaptive"}, True, "whole"),
        ({"type": "adaptive", "display": "updates"}, True, "whole"),
        ({"type": "adaptive", "display": "summarized"}, True, "whole"),
        ({"type": "adaptive", "display": "omitted"}, True, "omitted"),
    ],
)
def test_thinking_is_asked_for_and_shown_as_wanted(
    spec: dict[str, Any] | None, shown: str, *, thinks: bool
) -> None:
    parsed = _parse(thinking=spec)
    assert isinstance(parsed, MessagesRequest)
    assert (parsed.chat.thinking, parsed.form.thinking) == (thinks, shown)


def test_reasoning_comes_back_whether_it_was_shown_or_not() -> None:
    hidden = sign_reasoning(_JOB, 0, "hidden thought", carried=True)
    for block in (
        {"type": "thinking", "thinking": "hidden thought", "signature": "of another vendor"},
        {"type": "thinking", "thinking": "", "signature": hidden},
        {"type": "redacted_thinking", "data": hidden},
    ):
        content = [block, {"type": "text", "text": "so"}]
        chat = _chat({"role": "assistant", "content": content}, {"role": "user", "content": "?"})
        (turn,) = unattributed(chat.messages[:1])
        assert turn == Message(role="assistant", content="so", reasoning="hidden thought")


@pytest.mark.parametrize("signature", ["", "x", "s1.a.b", "s1.a.b.c", "s1.a.b.!!", "s1...", "é.é"])
def test_foreign_signature_carries_nothing_and_is_no_error(signature: str) -> None:
    assert signed_reasoning(signature) == ""
    content = [{"type": "thinking", "thinking": "", "signature": signature}]
    chat = _chat({"role": "assistant", "content": content}, {"role": "user", "content": "?"})
    assert chat.messages[0].reasoning == ""


def test_forged_text_in_a_signature_is_not_believed() -> None:
    ours, other = (sign_reasoning(_JOB, 0, text, carried=True).split(".") for text in ("a", "b"))
    assert signed_reasoning(".".join([*ours[:3], other[3]])) == ""


def test_form_of_the_answer_is_taken_from_either_place() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert _chat(output_config={"effort": "low", "format": form}).answer_schema == form["schema"]
    assert _chat(output_format=form).answer_schema == form["schema"]
    assert _chat(output_config={"effort": "high"}).answer_schema is None
    assert _chat(output_config={"effort": "high"}).effort == "high"
    assert _chat(output_config={"effort": "boundless"}).effort is None


def test_count_asks_the_same_prompt_as_the_call() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "system": "Be brief.",
        "tools": [_BASH],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
    }
    counted = counted_request_of(
        CountBody.model_validate(body), {}, RequestDefaults(ids=SequentialIds(), max_tokens=1)
    ).chat
    called = parse(
        json.dumps(body | {"max_tokens": 1}).encode(),
        {},
        RequestDefaults(ids=SequentialIds(), max_tokens=1),
    ).chat
    assert counted == called
