"""Every number that a body may hold has a smallest and a largest value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from api.http.bodies import MAX_TOKENS_CEILING, TOP_K_CEILING
from api.operations import OPERATIONS

#: Too large is lowered, not refused: clients ask for whatever they can get.
LOWERED = {
    "max_tokens": MAX_TOKENS_CEILING,
    "max_completion_tokens": MAX_TOKENS_CEILING,
    "max_output_tokens": MAX_TOKENS_CEILING,
    "top_k": TOP_K_CEILING,
    "budget_tokens": MAX_TOKENS_CEILING,
}


def numbers(schema: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number"):
            yield name, schema
        for key, inner in schema.items():
            inside = key in {"anyOf", "oneOf", "allOf", "items", "prefixItems"}
            yield from numbers(inner, name if inside else key)
    elif isinstance(schema, list):
        for inner in schema:
            yield from numbers(inner, name)


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if one.body is not None],
    ids=lambda operation: operation.id,
)
def test_every_number_is_bounded(operation: Any) -> None:
    schema = TypeAdapter(operation.body).json_schema()
    for name, number in numbers(schema):
        assert {"minimum", "exclusiveMinimum"} & number.keys(), name
        assert name in LOWERED or {"maximum", "exclusiveMaximum"} & number.keys(), name


def test_every_nucleus_mass_may_be_zero() -> None:
    schemas = [TypeAdapter(one.body).json_schema() for one in OPERATIONS if one.body is not None]
    least = [
        number.get("minimum")
        for schema in schemas
        for name, number in numbers(schema)
        if name == "top_p"
    ]
    assert len(least) >= 5
    assert set(least) == {0}


def test_a_number_without_limits_would_be_found() -> None:
    found = dict(numbers(TypeAdapter(dict[str, float]).json_schema(), "x"))
    assert [one.keys() for one in found.values()] == [{"type"}]
