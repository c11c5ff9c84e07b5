"""Terminals of schemas: their cost and size stay within bounds, whatever refers to what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.models.counted_schema import CountedSchema
from worker.engine.grammar.text_grammar import UnsupportedKeyword, text_terminal


def _chain(levels: int, width: int, last: dict[str, Any]) -> dict[str, Any]:
    """Return definitions of which each refers ``width`` times to the next one."""
    chain: dict[str, Any] = {f"d{levels}": last}
    for level in range(levels):
        following = {"$ref": f"#/$defs/d{level + 1}"}
        chain[f"d{level}"] = CountedSchema(
            anyOf=[{"allOf": [following], "pattern": f"{level}{n}"} for n in range(width)],
            visits_max=500,
        )
    return {"$defs": chain}


def test_a_schema_that_refers_to_itself_twenty_times_is_refused_in_a_few_hundred_steps() -> None:
    node = CountedSchema(anyOf=[{"$ref": "#/$defs/node"} for _ in range(20)], visits_max=500)
    with pytest.raises(UnsupportedKeyword, match="ref"):
        text_terminal(node, {"$defs": {"node": node}})


def test_definitions_that_are_shared_often_are_read_once() -> None:
    root: dict[str, Any] = {"$defs": {"d7": {"type": "string", "pattern": "x"}}}
    for level in range(7):
        choices = [{"$ref": f"#/$defs/d{level + 1}"} for _ in range(20)]
        root["$defs"][f"d{level}"] = CountedSchema(anyOf=choices, visits_max=500)
    assert text_terminal(root["$defs"]["d0"], root) == "/(?s:.*)(?:x)(?s:.*)/"


def test_a_terminal_that_would_be_too_long_is_refused_before_it_is_written() -> None:
    root = _chain(5, 30, {"type": "string"})
    with pytest.raises(UnsupportedKeyword, match="too many choices"):
        text_terminal(root["$defs"]["d0"], root)


def test_a_type_behind_too_many_references_is_refused() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(17):
        schema = {"allOf": [schema]}
    with pytest.raises(UnsupportedKeyword, match="ref"):
        text_terminal(schema, {})


def test_a_choice_whose_types_are_behind_too_many_references_is_refused() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(17):
        schema = {"anyOf": [schema]}
    with pytest.raises(UnsupportedKeyword, match="ref"):
        text_terminal(schema, {})
