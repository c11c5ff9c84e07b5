from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.json_body import NESTING_MAX, load_json
from domain.errors import InvalidRequest


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e400]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "twice"),
        (b'["\\ud83d"]', "surrogate"),
        (b'{"\\uDE00": 1}', "surrogate"),
        (b"[" * (NESTING_MAX + 1) + b"]" * (NESTING_MAX + 1), "nested"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
    ],
)
def test_unreadable_body_is_an_invalid_request_that_says_why(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_json(body)
    assert says in caught.value.message
    caught.value.message.encode()


def test_escaped_pair_and_deepest_nesting_pass() -> None:
    assert load_json(b'["\\ud83d\\ude00"]') == ["😀"]
    assert load_json(b"[" * NESTING_MAX + b"]" * NESTING_MAX)


@given(st.binary())
def test_any_bytes_give_a_value_or_an_invalid_request(body: bytes) -> None:
    try:
        value = load_json(body)
    except InvalidRequest:
        return
    assert json.loads(body) == value
