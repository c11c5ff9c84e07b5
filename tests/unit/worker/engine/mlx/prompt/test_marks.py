"""Breaking the marks of added tokens in a caller's text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.chat.request import Message
from worker.engine.mlx.prompt.segment_tokenizer import MarkBreaker, with_reasoning_apart

MARKS = ("<|im_start|>", "<|im_end|>", "<s>", "<<s>", "[INST]", "</think>", "|>", "[[", "\n\n", "#")
BROKEN = [mark for mark in MARKS if mark.strip() and len(mark) > 1]
TEXTS = st.lists(st.sampled_from([*MARKS, "<", "|", "im_", "end", ">", "[", "a ", "é"])).map(
    "".join
)


def _pieces(breaker: MarkBreaker, text: str) -> list[str]:
    pieces: list[str] = []

    def encode(piece: str) -> tuple[int, ...]:
        pieces.append(piece)
        return (len(pieces),)

    ids = breaker.encode(text, encode)
    assert ids == tuple(range(1, len(pieces) + 1))
    return pieces


@given(text=TEXTS)
def test_no_piece_has_a_mark_and_no_character_is_lost(text: str) -> None:
    breaker = MarkBreaker(MARKS)
    pieces = _pieces(breaker, breaker.broken(text))
    assert "".join(pieces) == text
    assert not [mark for mark in BROKEN for piece in pieces if mark in piece]


@given(text=TEXTS)
def test_text_without_marks_is_one_piece(text: str) -> None:
    breaker = MarkBreaker(MARKS)
    is_plain = not any(mark in text for mark in BROKEN)
    assert (breaker.broken(text) == text) is is_plain
    assert (_pieces(breaker, breaker.broken(text)) == [text]) is is_plain


def test_white_space_and_single_characters_stay_whole() -> None:
    assert MarkBreaker(MARKS).broken("a\n\n# b") == "a\n\n# b"


def test_a_tokenizer_without_marks_breaks_nothing() -> None:
    assert MarkBreaker(()).broken("<|im_start|>") == "<|im_start|>"


def test_a_very_long_mark_is_broken() -> None:
    mark = "<" + "x" * 3000 + ">"
    breaker = MarkBreaker([mark])
    assert _pieces(breaker, breaker.broken(f"a{mark}")) == ["a<", mark[1:]]


@given(text=TEXTS)
def test_keys_and_values_of_json_are_broken(text: str) -> None:
    breaker = MarkBreaker(MARKS)
    value = {text: [text, {"deep": (text,)}, 1, None]}
    broken = breaker.broken(text)
    expected = {broken: [broken, {"deep": [broken]}, 1, None]}
    assert breaker.broken_deeply(value) == expected


def test_reasoning_in_the_text_of_an_answer_is_taken_out_of_it() -> None:
    turn = Message(role="assistant", content="<think>\nFirst.\n</think>\n\nThen.")
    apart = with_reasoning_apart(turn, "<think>", "</think>")
    assert (apart.reasoning, apart.content) == ("First.", "Then.")


def test_reasoning_beside_the_text_is_kept() -> None:
    turn = Message(role="assistant", content="twice</think>Then.", reasoning="First.")
    apart = with_reasoning_apart(turn, "<think>", "</think>")
    assert (apart.reasoning, apart.content) == ("First.", "Then.")


def test_another_role_has_no_reasoning() -> None:
    turn = Message(role="user", content="<think>a</think>b")
    assert with_reasoning_apart(turn, "<think>", "</think>") is turn
