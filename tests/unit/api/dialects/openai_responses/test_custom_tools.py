"""Free text in a call's JSON: the same however the JSON was cut, and half of it is never a call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.dialects.openai_responses.tools import (
    CustomInput,
    checked_grammar,
    custom_function,
    custom_input,
    grammar_arguments,
    is_complete_call,
)


def _fed(arguments: str, cuts: list[int]) -> list[str]:
    text, pieces, at = CustomInput(), [], 0
    for cut in [*sorted(cuts), len(arguments)]:
        pieces.append(text.feed(arguments[at:cut]))
        at = max(at, cut)
    if is_complete_call(arguments):
        pieces.append(text.close())
    assert "".join(pieces) == text.text
    return pieces


_cuts = st.lists(st.integers(0, 60), max_size=6)


@given(text=st.text(max_size=20), ascii_only=st.booleans(), cuts=_cuts)
def test_the_text_does_not_depend_on_the_chunks(
    text: str, cuts: list[int], *, ascii_only: bool
) -> None:
    whole = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert "".join(_fed(whole, cuts)) == text
    assert custom_input(whole) == text


@given(body=st.text('ab"\\u0d8cn{}:,', max_size=30), cuts=_cuts)
def test_garbage_reads_the_same_however_it_was_cut(body: str, cuts: list[int]) -> None:
    for garbled in ('{"input": "' + body, body):
        assert "".join(_fed(garbled, cuts)) == custom_input(garbled)
        custom_input(garbled).encode()


@given(text=st.text(max_size=12), kept=st.integers(0, 40))
def test_half_a_call_has_a_beginning_and_is_not_complete(text: str, kept: int) -> None:
    whole = json.dumps({"input": text})
    half = whole[: min(kept, len(whole) - 1)]
    assert text.startswith(custom_input(half))
    assert not is_complete_call(half)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"a": 1, "input": "x"}', "x"),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
        ('{"text": "x"}', '{"text": "x"}'),
        ('{"input": "\\ud800"}', "\ufffd"),
        ('{"input": "\\ud800x"}', "\ufffdx"),
        ("", ""),
        ("{}", "{}"),
    ],
)
def test_other_json_than_was_asked_for_is_text_as_well(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


def test_a_grammar_is_described_and_a_regular_expression_enforced() -> None:
    grammar = checked_grammar("lark", 'start: "a"+', "f")
    function = custom_function("t", "Does it.", grammar)["function"]
    assert function["description"] == (
        'Does it.\nIts input is text that matches this Lark grammar:\nstart: "a"+'
    )
    anchored = grammar_arguments(("regex", r"^\d+\$$"))
    assert anchored is not None
    assert anchored["properties"]["input"]["pattern"] == r"^(?:\d+\$)$"
    assert grammar_arguments(grammar) is None
    assert grammar_arguments(("lark", "start.")) is None
