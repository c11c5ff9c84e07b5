"""Which schemas are refused before they are compiled, by figures that the schema alone gives."""

from __future__ import annotations

from typing import Any

import pytest

from domain.chat.request import ChatRequest, Message
from domain.chat.schema_bounds import (
    CHAIN_MAX,
    PATTERNS_MAX,
    excess_of,
    require_bounded_schemas,
)
from domain.errors import InvalidRequest
from domain.values import SamplingWish

_MANY = {"allOf": [{"pattern": f"a.{{{k}}}b"} for k in range(1, 23)]}
_COSTLY = {"type": "integer", "multipleOf": 999_983}


def _of(*multiples: float) -> dict[str, Any]:
    return {"type": "number", "allOf": [{"multipleOf": one} for one in multiples]}


def _chain(length: int) -> dict[str, Any]:
    places = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}]} for n in range(length)}
    return {"$ref": "#/$defs/0", "$defs": {**places, str(length): {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (_COSTLY, "multipleOf"),
        ({"multipleOf": 99_999_989}, "multipleOf"),
        ({"multipleOf": 0.999_983}, "multipleOf"),
        ({"multipleOf": 999_983.0}, "multipleOf"),
        ({"multipleOf": 2**20}, "multipleOf"),
        ({"multipleOf": 9.5367431640625e-07}, "multipleOf"),
        ({"multipleOf": 5e-324 * 3}, None),
        ({"multipleOf": 10**500 + 1}, "multipleOf"),
        (_of(997, 991), "multipleOf"),
        (_of(*range(2, 400)), "multipleOf"),
        ({"multipleOf": 997, "$ref": "#/a", "a": {"multipleOf": 991}}, "multipleOf"),
        ({"multipleOf": 997, "anyOf": [{}, {"allOf": [{"multipleOf": 991}]}]}, "multipleOf"),
        ({"properties": {"default": {"items": [_COSTLY]}}}, "multipleOf"),
        ({"additionalProperties": {"contains": _COSTLY}}, "multipleOf"),
        (_MANY, "allOf"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, _MANY]}}}, "allOf"),
        ({"pattern": "((a{1,50}){50}b){50}"}, "pattern"),
        ({"patternProperties": {"(a{1000}){1000}": {}}}, "pattern"),
        (_chain(CHAIN_MAX + 1), "allOf"),
        ({"allOf": [{"$ref": "#"}], "multipleOf": 7}, None),
        (_of(0.01, 0.05, 25), None),
        ({"multipleOf": 1_000_000}, None),
        ({"multipleOf": 10_000}, None),
        ({"anyOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, None),
        ({"properties": {"multipleOf": {"type": "integer"}}, "multipleOf": "x"}, None),
        ({"const": _COSTLY, "default": _COSTLY}, None),
        ({"multipleOf": 0}, None),
        ({"multipleOf": float("inf")}, None),
        ({"allOf": [{"pattern": "a"}] * PATTERNS_MAX}, None),
        ({"pattern": r"[{(]{3}\({2,5}(ab?){0,300}x{,9}"}, None),
        ({"maxLength": 10**9, "minItems": 10**9}, None),
        (True, None),
    ],
)  # fmt: skip
def test_the_figures_of_a_schema_are_bounded(schema: Any, keyword: str | None) -> None:
    found = excess_of(schema)
    assert found is None if keyword is None else found is not None and keyword in found


def test_a_strict_schema_is_refused_and_another_is_named() -> None:
    tool = {"type": "function", "function": {"name": "t", "parameters": _COSTLY}}
    asked = {"answer_schema": _COSTLY, "tools": (tool,)}
    answer, named = require_bounded_schemas(_request(**asked))
    assert answer.startswith("schema of the answer: multipleOf")
    assert named.startswith("tool t: multipleOf")
    for strict in ({"is_strict": True}, {"strict_tools": ("t",)}):
        with pytest.raises(InvalidRequest, match="multipleOf"):
            require_bounded_schemas(_request(**asked, **strict))
    assert require_bounded_schemas(_request()) == ()


def _request(**fields: Any) -> ChatRequest:
    asked = (Message(role="user", content="hi"),)
    return ChatRequest(
        model="m", messages=asked, max_tokens=8, sampling=SamplingWish(seed=3), **fields
    )
