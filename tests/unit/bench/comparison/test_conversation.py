from __future__ import annotations

from pathlib import Path

import pytest

import worker.demo_model
from bench.comparison.chat import Reply
from bench.comparison.conversation import Conversations, next_turn

TOKENS = 300
REPLY = Reply(
    first_s=0.1, total_s=0.2, text="Blue.", prompt_tokens=9, cached_tokens=0, completion_tokens=2
)


@pytest.fixture(scope="module")
def conversations() -> Conversations:
    return Conversations(Path(worker.demo_model.__file__).parent, TOKENS)


def test_same_name_gives_the_same_conversation(conversations: Conversations) -> None:
    assert conversations.begin("a") == conversations.begin("a")


def test_other_name_differs_from_the_first_line_on(conversations: Conversations) -> None:
    (one,), (other,) = conversations.begin("a"), conversations.begin("b")

    assert one["content"].splitlines()[0] != other["content"].splitlines()[0]


def test_first_turn_has_about_the_wanted_length(conversations: Conversations) -> None:
    (message,) = conversations.begin("a")

    counted = conversations._length(message["content"])

    assert TOKENS <= counted <= TOKENS + 60


def test_next_turn_goes_on_with_the_answer_and_another_question(
    conversations: Conversations,
) -> None:
    first = conversations.begin("a")

    second = next_turn(first, REPLY)
    third = next_turn(second, REPLY)

    assert second[:1] == first
    assert second[1] == {"role": "assistant", "content": "Blue."}
    assert third[:3] == second
    assert second[2]["content"] != third[4]["content"]
