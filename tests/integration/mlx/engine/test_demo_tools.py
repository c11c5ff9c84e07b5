"""The demo model as a coding agent's: tools behind a prompt of 5,000 tokens of unknown text."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from bench.demo_model.dialogue import known_tools
from bench.demo_model.noise import held_out_texts
from bench.demo_model.render import MODEL_DIR, Message
from tests.support.models.blas import as_served

TOKENS, CHARS_PER_TOKEN = 5000, 2.9
PIECE_TOKENS, ANSWER_TOKENS = 512, 120


@dataclass(frozen=True)
class Errand:
    """A task for a tool, its call, and what the tool returns."""

    asked: str
    name: str
    arguments: dict[str, str]
    result: str


ERRANDS = (
    Errand(
        "Create a file hello.py with the content 'hello world'",
        "Write",
        {"file_path": "hello.py", "content": "hello world"},
        "File created successfully at: hello.py",
    ),
    Errand(
        "Run the command echo hello world", "Bash", {"command": "echo hello world"}, "hello world"
    ),
    Errand("Run `ls`", "Bash", {"command": "ls"}, "README.md\nhello.py"),
    Errand("Read README.md", "Read", {"file_path": "README.md"}, "1\tfirst line\n2\tlast line"),
)


class AgentPrompt:
    """A coding agent's prompt before the user's words, half of it definitions of tools."""

    def __init__(self, seed: int) -> None:
        random_ = random.Random(seed)
        self._prose = "\n".join(random_.sample(held_out_texts(), 12))
        self._random = random_
        names = ("Agent", "Bash", "Edit", "Read", "Write")
        self.tools = [copy.deepcopy(known_tools()[name]) for name in names]
        for tool in self.tools:
            tool["function"]["description"] = self._excerpt(0.5 / len(names))
            properties = tool["function"]["parameters"]["properties"]
            properties["timeout"] = {"type": "number", "description": self._excerpt(0.01)}
        self._reminder = f"<system-reminder>\n{self._excerpt(0.1)}\n</system-reminder>\n\n"
        self._system = self._excerpt(0.4)

    def _excerpt(self, share: float) -> str:
        size = int(share * TOKENS * CHARS_PER_TOKEN)
        start = self._random.randrange(max(1, len(self._prose) - size))
        return self._prose[start : start + size]

    def messages(self, question: str) -> list[Message]:
        return [
            {"role": "system", "content": self._system},
            {"role": "user", "content": self._reminder + question},
        ]


PROMPT = AgentPrompt(seed=11)


def is_call(reply: str, errand: Errand) -> bool:
    """Whether the model called the right tool with the right arguments, and nothing else."""
    _, opened, call = reply.partition("<tool_call>")
    call, closed, rest = call.partition("</tool_call>")
    if not (opened and closed) or rest.strip():
        return False
    try:
        written = json.loads(call)
    except ValueError:
        return False
    return bool(written == {"name": errand.name, "arguments": errand.arguments})


class LongPrompt:
    """Reads the long prompt once for all questions."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        one, other = self._ids(PROMPT.messages("1")), self._ids(PROMPT.messages("2"))
        shared = next(
            n for n, (left, right) in enumerate(zip(one, other, strict=True)) if left != right
        )
        self.prefix = one[:shared]
        self.cache = self._cache_of(self.prefix)

    def _ids(self, messages: list[Message], *, thinking: bool = False) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, tools=PROMPT.tools, add_generation_prompt=True, enable_thinking=thinking
        )
        return list(ids)

    def _cache_of(self, prefix: Sequence[int]) -> list[Any]:
        import mlx.core as mx  # noqa: PLC0415 - the test is skipped without it
        from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415 - the test is skipped without it

        cache = make_prompt_cache(self.model)
        for start in range(0, len(prefix), PIECE_TOKENS):
            piece = mx.array(list(prefix[start : start + PIECE_TOKENS]))
            self.model(piece[None], cache=cache)
            mx.eval([layer.state for layer in cache])
        return list(cache)

    def say(self, messages: list[Message], *, thinking: bool) -> tuple[str, Any]:
        from mlx_lm.generate import stream_generate  # noqa: PLC0415 - skipped without it

        ids = self._ids(messages, thinking=thinking)
        assert ids[: len(self.prefix)] == self.prefix
        rest, cache = ids[len(self.prefix) :], copy.deepcopy(self.cache)
        pieces = list(
            stream_generate(
                self.model, self.tokenizer, rest, max_tokens=ANSWER_TOKENS, prompt_cache=cache
            )
        )
        return "".join(piece.text for piece in pieces), pieces[-1].finish_reason


@pytest.fixture(scope="module")
def behind() -> Iterator[LongPrompt]:
    mlx_lm = pytest.importorskip("mlx_lm")
    model, tokenizer = mlx_lm.load(str(MODEL_DIR))
    with as_served(model):
        yield LongPrompt(model, tokenizer)


def test_the_prompt_is_as_long_as_a_coding_agent_s(behind: LongPrompt) -> None:
    assert 4000 < len(behind.prefix) < 7000


@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("errand", ERRANDS, ids=lambda errand: errand.asked)
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
