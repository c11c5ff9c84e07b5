from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.items import Text, Thinking
from domain.chat.stored_answer import StoredAnswer
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import SectionParser, ThinkTags
from worker.engine.text_assembler import ItemBody, TextAssembler

TAGS = ThinkTags("<think>", "</think>")

#: Pieces that make tags, stop texts and split characters likely.
PIECES = st.sampled_from(
    ["a", " ", "\n", "<", "<think>", "<th", "ink>", "</think>", "</", "think>", "STOP", "ST", "OP"]
)


@st.composite
def tokenised(draw: st.DrawFn, text: st.SearchStrategy[str]) -> list[bytes]:
    """A text as bytes, cut into tokens anywhere."""
    whole = draw(text).encode("utf-8", "replace")
    cuts = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=20)))
    edges = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


MIXED = st.lists(PIECES | st.text(max_size=2), max_size=20).map("".join)


def assembler_of(
    tokens: Sequence[bytes],
    *,
    stop: Sequence[str] = (),
    thinking: bool = False,
    tags: ThinkTags | None = TAGS,
) -> TextAssembler:
    parser = SectionParser(tags, stop, thinking=thinking)
    return TextAssembler(ByteDetokenizer(tokens), parser)


def items_of(
    assembler: TextAssembler, tokens: Sequence[int], *, flush: bool = True
) -> list[ItemBody]:
    items: list[ItemBody] = []
    for token in tokens:
        if assembler.stop_sequence is not None:
            break
        if (item := assembler.feed(token)) is not None:
            items.append(item)
    return [*items, *assembler.flush()] if flush else items


def both(
    tokens: Sequence[bytes],
    *,
    stop: Sequence[str] = (),
    thinking: bool = False,
    tags: ThinkTags | None = TAGS,
) -> tuple[str, str, str | None]:
    assembler = assembler_of(tokens, stop=stop, thinking=thinking, tags=tags)
    items_of(assembler, range(len(tokens)))
    return assembler.thinking, assembler.text, assembler.stop_sequence


@given(tokens=tokenised(st.text()))
def test_any_text_in_any_tokens_comes_out_whole(tokens: list[bytes]) -> None:
    assert both(tokens, tags=None) == ("", b"".join(tokens).decode(), None)


@given(tokens=tokenised(MIXED), thinking=st.booleans())
def test_the_split_does_not_depend_on_how_the_text_was_cut(
    tokens: list[bytes], *, thinking: bool
) -> None:
    characters = [char.encode() for char in b"".join(tokens).decode("utf-8", "replace")]
    stop = ("STOP", "TO", "P a")
    assert both(tokens, stop=stop, thinking=thinking) == both(
        characters, stop=stop, thinking=thinking
    )


@given(tokens=tokenised(MIXED))
def test_the_answer_ends_before_the_stop_text_wherever_tokens_are_cut(tokens: list[bytes]) -> None:
    whole = b"".join(tokens).decode("utf-8", "replace")
    _, text, stop = both(tokens, stop=("STOP",), tags=None)
    assert text == whole.partition("STOP")[0]
    assert stop == ("STOP" if "STOP" in whole else None)


@given(tokens=tokenised(MIXED), thinking=st.booleans(), data=st.data())
def test_a_resumed_assembler_emits_exactly_the_remaining_items(
    tokens: list[bytes], data: st.DataObject, *, thinking: bool
) -> None:
    ids = range(len(tokens))
    first, second, resumed = (
        assembler_of(tokens, stop=("STOP",), thinking=thinking) for _ in range(3)
    )
    fed, whole = items_of(first, ids, flush=False), items_of(second, ids)
    k = data.draw(st.integers(0, len(fed)))
    emitted = [token for item in whole[:k] for token in item.ids]
    assert items_of(resumed, emitted, flush=False) == whole[:k]
    assert items_of(resumed, ids[len(emitted) :]) == whole[k:]


@given(tokens=tokenised(MIXED), thinking=st.booleans())
def test_the_order_restores_the_blocks_of_the_items(tokens: list[bytes], *, thinking: bool) -> None:
    assembler = assembler_of(tokens, stop=("STOP",), thinking=thinking)
    items = items_of(assembler, range(len(tokens)))
    whole = [
        (kind, "".join(item.text for item in run if isinstance(item, Text | Thinking)))
        for kind, run in groupby(items, type)
    ]
    answer = StoredAnswer(text=assembler.text, thinking=assembler.thinking, order=assembler.order)
    parts = [part for part in answer.parts() if isinstance(part, Text | Thinking)]
    assert [(type(part), part.text) for part in parts] == whole


@given(tokens=tokenised(MIXED))
def test_ids_of_the_items_are_the_tokens_in_order(tokens: list[bytes]) -> None:
    items = items_of(assembler_of(tokens), range(len(tokens)))
    ids = [token for item in items for token in item.ids]
    assert ids == list(range(len(ids)))


@pytest.mark.parametrize(
    ("output", "thinking", "expected"),
    [
        ("plain", False, ("", "plain")),
        ("  indented", False, ("", "  indented")),
        ("<think>\nwhy\n</think>\n\nbecause", False, ("why", "because")),
        ("\n<think>why</think>because", False, ("why", "because")),
        ("why\n</think>\n\nbecause", True, ("why", "because")),
        ("never closed", True, ("never closed", "")),
        ("use <think> tags", False, ("", "use <think> tags")),
        ("a</think>b", False, ("", "a</think>b")),
        ("</think>", True, ("", "")),
    ],
)
def test_reasoning_is_split_from_the_answer(
    output: str, expected: tuple[str, str], *, thinking: bool
) -> None:
    characters = [char.encode() for char in output]
    assert both(characters, thinking=thinking)[:2] == expected
    assert both([output.encode()], thinking=thinking)[:2] == expected


def test_a_stop_text_inside_the_reasoning_ends_nothing() -> None:
    assert both([b"a STOP b</think>c STOP d"], stop=("STOP",), thinking=True) == (
        "a STOP b",
        "c ",
        "STOP",
    )


def test_the_beginning_of_a_stop_sequence_is_emitted_at_the_end() -> None:
    assert both([b"to ST"], stop=("STOP",)) == ("", "to ST", None)
