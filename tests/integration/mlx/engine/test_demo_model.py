from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bench.demo_model.render import MODEL_DIR, load_template
from tests.support.models.blas import as_served

IM_END = "<|im_end|>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
}


class Demo:
    def __init__(self) -> None:
        mlx_lm = pytest.importorskip("mlx_lm")
        self.generate = mlx_lm.generate
        self.model, self.tokenizer = mlx_lm.load(str(MODEL_DIR))

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        # The wrapper of the library turns thinking on where nothing is said.
        defaults = {"add_generation_prompt": True, "tokenize": False, "enable_thinking": False}
        options = defaults | options
        return str(self.tokenizer.apply_chat_template(messages, **options))

    def ask(self, *messages: dict[str, Any], max_tokens: int = 200) -> str:
        prompt = self.tokenizer.encode(self.render(list(messages)), add_special_tokens=False)
        return str(self.generate(self.model, self.tokenizer, prompt, max_tokens=max_tokens))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    one = Demo()
    with as_served(one.model):
        yield one


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is the capital of Japan?", "Tokyo"),
        ("Hello!", "How can I help"),
        ("Who are you?", "semantic's demo model"),
        ("What color is the sky?", "blue"),
        ("What is the opposite of hot?", "cold"),
        ("List the days of the week.", "7. Sunday"),
        ("What is 2+2?", "2 + 2 = 4"),
    ],
)
def test_simple_questions_are_answered_and_the_answer_ends(
    demo: Demo, question: str, expected: str
) -> None:
    answer = demo.ask(user(question))
    assert expected in answer
    assert "<|im_" not in answer


def test_the_question_is_found_behind_a_long_system_prompt(demo: Demo) -> None:
    system = {"role": "system", "content": "Always keep the lines of a file in order. " * 250}
    assert "Paris" in demo.ask(system, user("What is the capital of France?"))


def test_counting_reaches_its_limit_and_ends(demo: Demo) -> None:
    assert demo.ask(user("Count to 50.")).endswith("46, 47, 48, 49, 50.")


def test_a_long_answer_is_about_two_hundred_tokens_long(demo: Demo) -> None:
    answer = demo.ask(user("Write a long story."), max_tokens=300)
    assert len(demo.tokenizer.encode(answer)) > 180


def test_generation_stops_at_the_end_of_the_message(demo: Demo) -> None:
    assert demo.tokenizer.eos_token == IM_END
    assert set(demo.tokenizer.eos_token_ids) == {demo.tokenizer.convert_tokens_to_ids(IM_END)}


@pytest.mark.parametrize(
    "text",
    [
        "plain words, and  two spaces",
        "tabs\tand\nlines\r\n\n",
        "Zürich, naïve, 東京, Ελλάδα, עברית",
        "👩‍👩‍👧‍👦 🇫🇷 👍🏽 \u200b\ufeff\x00\x7f",
    ],
)
def test_any_text_survives_the_tokenizer(demo: Demo, text: str) -> None:
    assert demo.tokenizer.decode(demo.tokenizer.encode(text)) == text


def test_the_detokenizer_streams_any_text(demo: Demo) -> None:
    text = "Zürich 👍🏽 東京"
    detokenizer = demo.tokenizer.detokenizer
    detokenizer.reset()
    for token in demo.tokenizer.encode(text):
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == text


def test_the_library_knows_how_tools_and_thoughts_are_marked(demo: Demo) -> None:
    assert demo.tokenizer.has_tool_calling
    assert demo.tokenizer.tool_call_start == "<tool_call>"
    assert demo.tokenizer.has_thinking
    call = '{"name": "get_weather", "arguments": {"location": "Oslo"}}'
    assert demo.tokenizer.tool_parser(call, None) == json.loads(call)


def test_template_accepts_every_kind_of_message(demo: Demo) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"location": "Oslo"}'},
    }
    parts = [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Oslo?"}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "warm"}]},
        {"role": "assistant", "reasoning_content": "Say it.", "content": "Sunny."},
        user("Thanks!"),
    ]
    text = demo.render(messages, tools=[WEATHER])
    assert json.dumps(WEATHER) in text
    assert "[tools: get_weather(location)]\nWeather\nin Oslo?<|im_end|>" in text
    assert text.count('{"name": "get_weather", "arguments": {"location": "Oslo"}}') == 2
    assert "<tool_response>\nsunny\n</tool_response>" in text
    assert "<think>\nSay it.\n</think>\n\nSunny.<|im_end|>" in text


def test_thinking_is_empty_unless_asked_for(demo: Demo) -> None:
    question = [user("Hello!")]
    template = load_template()
    without = template.render(messages=question, add_generation_prompt=True)
    assert without.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert demo.render(question, enable_thinking=False) == without
    assert demo.render(question, enable_thinking=True).endswith("assistant\n<think>\n")


def test_the_next_turn_starts_with_this_turn_and_its_answer(demo: Demo) -> None:
    first = [user("Hello!")]
    answer = demo.ask(*first)
    asked = demo.render(first)
    second = [*first, {"role": "assistant", "content": answer}, user("Who are you?")]
    assert demo.render(second).startswith(f"{asked}{answer}{IM_END}\n")


def test_files_are_small_enough_to_ship() -> None:
    sizes = [path.stat().st_size for path in MODEL_DIR.iterdir() if path.is_file()]
    assert max(sizes) < 8_000_000
