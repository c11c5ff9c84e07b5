"""JSON replies: arrays of numbers are lists there."""

from __future__ import annotations

import json
from array import array

import pytest

from api.http.messages import json_bytes, json_reply


def test_arrays_are_lists_of_their_numbers() -> None:
    numbers = [0.5, -1.0, 3e-7]
    value = {"é": "\ud800", "vectors": [array("d", numbers), array("d")]}
    assert json.loads(json_bytes(value)) == {"é": "?", "vectors": [numbers, []]}
    assert json_reply({"a": array("f", [0.5])}).body == b'{"a":[0.5]}'


@pytest.mark.parametrize("value", [object(), b"a", float("nan"), array("f", [float("inf")])])
def test_what_json_does_not_hold_is_an_error(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        json_bytes({"a": value})
