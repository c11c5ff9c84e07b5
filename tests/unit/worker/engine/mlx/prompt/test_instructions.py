from __future__ import annotations

from typing import Any

import pytest

from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.values import SamplingWish
from worker.engine.mlx.prompt.renderer import with_instructions

_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "Bash"}}
_ASK = Message(role="user", content="hi")


def _request(*messages: Message, **more: Any) -> ChatRequest:
    return ChatRequest(
        model="m", messages=messages or (_ASK,), max_tokens=1, sampling=SamplingWish(), **more
    )


def _remark(request: ChatRequest, *, is_opened: bool = False) -> str:
    return with_instructions(request, is_opened=is_opened).messages[-1].content


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (ToolChoice(mode="none"), "Do not call any tool"),
        (ToolChoice(mode="any"), "a call of one of the tools"),
        (ToolChoice(mode="tool", name="Bash"), "the tool Bash"),
        (ToolChoice(allowed=("Bash", "Wait")), "call none but these: Bash, Wait."),
    ],
)
def test_choice_is_appended_to_the_last_turn(choice: ToolChoice, words: str) -> None:
    request = _request(tools=(_TOOL,), tool_choice=choice)
    assert _remark(request).startswith("hi\n\n<system-reminder>\n")
    assert words in _remark(request)


def test_request_without_instructions_is_unchanged() -> None:
    for request in (
        _request(tools=(_TOOL,)),
        _request(tool_choice=ToolChoice(mode="none")),
    ):
        assert with_instructions(request, is_opened=False) is request
    begun = _request(tools=(_TOOL,), tool_choice=ToolChoice(mode="any"))
    assert with_instructions(begun, is_opened=True) is begun


def test_whole_schema_is_appended() -> None:
    assert '{"type":"object"}' in _remark(_request(answer_schema={"type": "object"}))
    assert "one JSON object" in _remark(_request(answer_schema={}))


def test_earlier_turns_stay_as_they_are() -> None:
    answered = (_ASK, Message(role="assistant", content="yes"))
    request = _request(*answered, answer_schema={})
    assert with_instructions(request, is_opened=False).messages[:2] == answered
    result = Message(role="tool", content="out", tool_call_id="c")
    assert (
        with_instructions(_request(result, answer_schema={}), is_opened=False).messages[0].role
        == "tool"
    )
