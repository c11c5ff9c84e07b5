"""What counts as an echo of an answer, and what is something new."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.divergence import is_echo
from domain.chat.generation import EmittedCall
from domain.chat.request import Message, ToolCall
from domain.chat.stored_answer import StoredAnswer

_CALL = "toolu_00_0"


def _answer(text: str = "", thinking: str = "", arguments: str | None = None) -> StoredAnswer:
    calls = (
        ()
        if arguments is None
        else (EmittedCall(id=_CALL, name="Edit", arguments=arguments, is_complete=True),)
    )
    return StoredAnswer(text=text, thinking=thinking, calls=calls, token_ids=(1, 2))


def _turn(arguments: Any = None, **fields: Any) -> Message:
    calls = () if arguments is None else (ToolCall(id=_CALL, name="Edit", arguments=arguments),)
    return Message(**{"role": "assistant", "content": "", "tool_calls": calls} | fields)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def _reordered(value: Any) -> Any:
    """What a client makes of it: keys in another order, whole numbers of another kind."""
    if isinstance(value, dict):
        return {key: _reordered(value[key]) for key in sorted(value, reverse=True)}
    if isinstance(value, list):
        return [_reordered(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(arguments=st.dictionaries(st.text(max_size=4), _JSON, max_size=4))
def test_arguments_in_another_order_and_notation_are_an_echo(arguments: dict[str, Any]) -> None:
    answer = _answer(arguments=json.dumps(arguments))
    assert is_echo(_turn(_reordered(arguments)), answer)
    defaults: dict[str, Any] = {"replace_all": False, "limit": None, "flags": []}
    assert is_echo(_turn(defaults | _reordered(arguments)), answer)


@pytest.mark.parametrize(
    "echoed",
    [
        {"path": "b", "times": 1},
        {"path": "a"},
        {"path": "a", "times": 2},
        {"path": "a", "times": True},
        {"path": "a", "times": 1, "replace_all": True},
        {"path": "a", "times": 1, "limit": 0},
        {"path": ["a"], "times": 1},
    ],
)
def test_arguments_with_another_meaning_are_new(echoed: dict[str, Any]) -> None:
    assert not is_echo(_turn(echoed), _answer(arguments='{"times": 1, "path": "a"}'))


def test_arguments_that_were_no_json_come_back_as_they_were() -> None:
    answer = _answer(arguments='{"path": "a')
    raw = {"raw": '{"path": "a', "len": 11}
    assert is_echo(_turn({"__unparsedToolInput": raw}), answer)
    assert is_echo(_turn({"unparsed": '{"path": "a'}), answer)
    assert not is_echo(_turn({"unparsed": '{"path": "b'}), answer)
    assert not is_echo(_turn({}), answer)


def test_another_call_is_new() -> None:
    answer = _answer(arguments="{}")
    other = ToolCall(id=_CALL, name="Read", arguments={})
    renamed = ToolCall(id="toolu_00_1", name="Edit", arguments={})
    assert not is_echo(_turn(tool_calls=(other,)), answer)
    assert not is_echo(_turn(tool_calls=(renamed,)), answer)
    assert not is_echo(_turn(), answer)


def test_white_space_is_the_client_s_affair_and_words_are_not() -> None:
    answer = _answer(text="One.\n\nTwo. ", thinking=" Hm.\n")
    assert is_echo(_turn(content="One.\nTwo.", reasoning="Hm."), answer)
    assert is_echo(_turn(content="One. Two."), answer), "the reasoning may have been left out"
    assert not is_echo(_turn(content="One."), answer)
    assert not is_echo(_turn(content="One. Two.", reasoning="Aha."), answer)


def test_call_without_arguments_is_echoed_with_an_empty_object() -> None:
    assert is_echo(_turn({}), _answer(arguments=""))
    assert is_echo(_turn({"limit": ""}), _answer(arguments=""))


def test_lists_of_another_length_or_with_another_element_are_new() -> None:
    answer = _answer(arguments='{"paths": ["a", "b"]}')
    assert is_echo(_turn({"paths": ["a", "b"]}), answer)
    assert not is_echo(_turn({"paths": ["a"]}), answer)
    assert not is_echo(_turn({"paths": ["a", "c"]}), answer)
    assert not is_echo(_turn({"paths": {"a": "b"}}), answer)


def test_white_space_within_words_joins_nothing_else() -> None:
    assert is_echo(_turn(content="a b"), _answer(text="ab"))
    assert not is_echo(_turn(content="a b"), _answer(text="axb"))
