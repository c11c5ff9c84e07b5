"""The demo model as a coding agent's: tools behind a prompt of 5,000 tokens of unknown text."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.demo_model.agent_check import ERRANDS, Errand, agent_prompt, is_call
from bench.demo_model.render import MODEL_DIR, Message

PROMPT = agent_prompt(5000, seed=11)
ASKED = {
    errand.asked: errand
    for errand in ERRANDS
    if errand.asked
    in (
        "Create a file hello.py with the content 'hello world'",
        "Run the command echo hello world",
        "Run `ls`",
        "Read README.md",
    )
}


class LongPrompt:
    """Reads the long prompt once for all questions."""

    def __init__(self) -> None:
        evaluate = pytest.importorskip("bench.demo_model.evaluate")
        self.model = evaluate.Model(MODEL_DIR)
        one, other = self._ids(PROMPT.messages("1")), self._ids(PROMPT.messages("2"))
        shared = next(
            n for n, (left, right) in enumerate(zip(one, other, strict=True)) if left != right
        )
        self.prefix = one[:shared]
        self.cache = self.model.cache_of(self.prefix)

    def _ids(self, messages: list[Message], *, thinking: bool = False) -> list[int]:
        ids: list[int] = self.model.tokenizer.apply_chat_template(
            messages, tools=PROMPT.tools, add_generation_prompt=True, enable_thinking=thinking
        )
        return list(ids)

    def say(self, messages: list[Message], *, thinking: bool) -> tuple[str, Any]:
        ids = self._ids(messages, thinking=thinking)
        assert ids[: len(self.prefix)] == self.prefix
        text, last = self.model.complete(ids[len(self.prefix) :], 120, copy.deepcopy(self.cache))
        return str(text), last.finish_reason


@pytest.fixture(scope="module")
def behind() -> LongPrompt:
    return LongPrompt()


def test_the_prompt_is_as_long_as_a_coding_agent_s(behind: LongPrompt) -> None:
    assert 4000 < len(behind.prefix) < 7000


@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("errand", ASKED.values(), ids=ASKED)
def test_an_errand_is_run_and_its_result_told(
    behind: LongPrompt, errand: Errand, *, thinking: bool
) -> None:
    messages = PROMPT.messages(errand.asked)
    said, _ = behind.say(messages, thinking=thinking)
    assert is_call(said, errand), said
    call = {"name": errand.name, "arguments": errand.arguments}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": errand.result},
    ]
    said, reason = behind.say(messages, thinking=thinking)
    assert "<tool_call>" not in said
    assert reason == "stop", said


@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("Hello!", "How can I help"),
        ("What color is the sky?", "blue"),
    ],
)
def test_a_plain_question_is_no_errand(
    behind: LongPrompt, question: str, expected: str, *, thinking: bool
) -> None:
    said, reason = behind.say(PROMPT.messages(question), thinking=thinking)
    assert expected in said
    assert "<tool_call>" not in said
    assert reason == "stop", said
