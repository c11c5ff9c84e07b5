"""What a model of gpt-oss's kind reads and writes, with mlx-lm's tokenizer and our template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice
from domain.values import SamplingWish
from tests.support.models.tiny_harmony import make_tiny_harmony
from worker.engine.mlx.model.tool_families import channel_format_of, end_ids_of, tool_format_of
from worker.engine.mlx.prompt.renderer import PromptRenderer
from worker.engine.output.channel_parser import HARMONY

_BASH: dict[str, Any] = {
    "type": "function",
    "function": {"name": "Bash", "parameters": {"type": "object"}},
}
_COUNT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "Count",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "integer", "enum": [3, 4], "default": 4}},
        },
    },
}
_USER = Message(role="user", content="go")
_HEAD = "<|start|>system<|message|>Reasoning: medium<|end|>"
_TOOLS = (
    "<|start|>developer<|message|>// \ntype Bash = (_: {}) => any;"
    "// \ntype Count = (_: {to: integer, default: 4;}) => any;<|end|>"
)
_GO = "<|start|>user<|message|>go<|end|>"
_NEXT = "<|start|>assistant"


def _call(number: int, name: str = "Bash", **arguments: Any) -> ToolCall:
    return ToolCall(id=f"toolu_{number}", name=name, arguments=arguments)


def _assistant(content: str, *calls: ToolCall, reasoning: str = "") -> Message:
    return Message(role="assistant", content=content, tool_calls=calls, reasoning=reasoning)


def _result(number: int, content: str) -> Message:
    return Message(role="tool", content=content, tool_call_id=f"toolu_{number}")


def _analysis(text: str) -> str:
    return f"{_NEXT}<|channel|>analysis<|message|>{text}<|end|>"


def _called(name: str, arguments: str) -> str:
    return f"{_NEXT} to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>"


def _gave(name: str, text: str) -> str:
    return f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{text}<|end|>"


def _final(text: str) -> str:
    return f"{_NEXT}<|channel|>final<|message|>{text}<|end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(make_tiny_harmony(tmp_path_factory.mktemp("models") / "harmony"))


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> PromptRenderer:
    return PromptRenderer(tokenizer, tool_format_of(tokenizer), channel_format_of(tokenizer))


def _ask(*messages: Message, **options: Any) -> ChatRequest:
    return ChatRequest(
        model="m",
        messages=messages or (_USER,),
        max_tokens=5,
        sampling=SamplingWish(),
        tools=(_BASH, _COUNT),
        **options,
    )


def _said(tokenizer: Any, tokens: tuple[int, ...]) -> str:
    text: str = tokenizer.decode(list(tokens))
    return text


def test_the_family_is_known_by_its_marks(tokenizer: Any) -> None:
    assert channel_format_of(tokenizer) is HARMONY
    ids = {tokenizer.convert_tokens_to_ids(mark) for mark in ("<|return|>", "<|call|>")}
    assert end_ids_of(tokenizer) == ids


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((_USER,), _GO),
        # Reasoning stays beside its call until an answer follows it.
        (
            (_USER, _assistant("", _call(1, command="ls"), reasoning="Hm."), _result(1, "a.txt")),
            _GO + _analysis("Hm.") + _called("Bash", '{"command": "ls"}') + _gave("Bash", "a.txt"),
        ),
        (
            (
                _USER,
                _assistant("", _call(1, command="ls"), reasoning="Hm."),
                _result(1, "a.txt"),
                _assistant("One file.", reasoning="Ah."),
                _USER,
            ),
            _GO
            + _called("Bash", '{"command": "ls"}')
            + _gave("Bash", "a.txt")
            + _final("One file.")
            + _GO,
        ),
        # Text and reasoning beside a call; calls at once, whose results came in another order.
        (
            (
                _USER,
                _assistant("I look.", _call(1), _call(2, "Count"), reasoning="Hm."),
                _result(2, "two"),
                _result(1, "one"),
                _result(7, "of nobody"),
            ),
            _GO
            + _analysis("Hm.\n\nI look.")
            + _called("Bash", "{}")
            + _gave("Bash", "one")
            + _called("Count", "{}")
            + _gave("Count", "two")
            + "<|start|>user<|message|>of nobody<|end|>",
        ),
        (
            (_USER, _result(1, "of nobody"), _USER),
            _GO + "<|start|>user<|message|>of nobody<|end|>" + _GO,
        ),
    ],
)
def test_conversations_are_rendered_as_the_template_wants_them(
    renderer: PromptRenderer, tokenizer: Any, messages: tuple[Message, ...], expected: str
) -> None:
    tokens = renderer.render(_ask(*messages)).tokens
    assert _said(tokenizer, tokens) == _HEAD + _TOOLS + expected + _NEXT


@pytest.mark.parametrize(
    ("effort", "said"),
    [(None, "medium"), ("none", "low"), ("low", "low"), ("high", "high"), ("max", "high")],
)
def test_effort_is_told_to_the_template(
    renderer: PromptRenderer, tokenizer: Any, effort: str | None, said: str
) -> None:
    tokens = renderer.render(_ask(effort=effort)).tokens
    assert f"Reasoning: {said}<|end|>" in _said(tokenizer, tokens)


def test_call_that_must_be_made_is_begun_by_the_prompt(
    renderer: PromptRenderer, tokenizer: Any
) -> None:
    for choice, opened in (
        (ToolChoice(mode="any"), "<|channel|>commentary to=functions."),
        (
            ToolChoice(mode="tool", name="Bash"),
            "<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>",
        ),
    ):
        rendered = renderer.render(_ask(tool_choice=choice))
        assert rendered.opened == opened
        assert _said(tokenizer, rendered.tokens).endswith(f"{_GO}{_NEXT}{opened}")
        assert "system-reminder" not in _said(tokenizer, rendered.tokens)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # The mark of the end that was sampled is read as the template writes it.
        ((_assistant("One."), _USER), f"<|end|>{_GO}{_NEXT}"),
        (
            (_assistant("I look.", _call(1, command="ls"), reasoning="Hm."), _result(1, "a.txt")),
            f"<|call|>{_gave('Bash', 'a.txt')}{_NEXT}",
        ),
        ((_assistant("", _call(1), _call(2)), _result(1, "a"), _result(2, "b")), None),
    ],
)
def test_what_was_sampled_can_stand_for_its_echo(
    renderer: PromptRenderer, tokenizer: Any, answer: tuple[Message, ...], expected: str | None
) -> None:
    after = renderer.render_after(_ask(_USER, *answer), 1)
    assert (None if after is None else _said(tokenizer, after.tokens)) == expected


def test_effort_alone_begins_another_prompt(renderer: PromptRenderer) -> None:
    request = _ask()
    assert renderer.shares_preamble(request, replace(request, thinking=True))
    assert renderer.shares_preamble(request, replace(request, effort="medium")) is False
    assert renderer.shares_preamble(replace(request, effort="max"), replace(request, effort="high"))
