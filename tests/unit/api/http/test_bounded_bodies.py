"""Validation of a body never holds the interpreter for long, whatever the body repeats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from api.dialects.anthropic.bodies import MessagesBody
from api.http.bodies import RequestBody
from api.operations import OPERATIONS

#: Longest list of which all errors may be collected.
SHORT = 64


def bodies() -> Iterator[type[RequestBody]]:
    assert OPERATIONS, "importing the routes defines the bodies"
    waiting = [RequestBody]
    while waiting:
        body = waiting.pop()
        waiting += body.__subclasses__()
        yield body


def lists_of(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for inner in schema.values():
            yield from lists_of(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from lists_of(inner)


@pytest.mark.parametrize("body", list(bodies()), ids=lambda body: str(body.__name__))
def test_lists_of_bodies_stop_at_their_first_error(body: type[RequestBody]) -> None:
    body.model_rebuild()
    for one in lists_of(body.__pydantic_core_schema__):
        assert one.get("fail_fast") or one.get("max_length", SHORT + 1) <= SHORT, one


def test_invalid_items_behind_the_first_are_not_reported() -> None:
    with pytest.raises(ValidationError) as caught:
        MessagesBody.model_validate({"model": "m", "max_tokens": 1, "messages": [0] * 1000})
    assert caught.value.error_count() == 1


def test_python_runs_for_each_object_so_that_other_threads_may_run() -> None:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        del frame, argument
        calls += event == "call"

    turn = {"role": "user", "content": "x"}
    sys.setprofile(count)
    try:
        MessagesBody.model_validate({"model": "m", "max_tokens": 1, "messages": [turn] * 1000})
    finally:
        sys.setprofile(None)
    assert calls >= 1000
