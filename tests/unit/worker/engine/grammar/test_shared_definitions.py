"""Definitions that many arguments share: the grammar of a call stays within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.models.counted_schema import CountedSchema
from tests.support.models.tagged_families import FAMILIES
from worker.engine.grammar.tagged_grammar import TaggedGrammar
from worker.engine.grammar.text_grammar import SchemaRules, quoted


def _written(schema: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the grammar of a tool's calls, and why it allows more than the schema."""
    syntax = FAMILIES["qwen"].syntax
    assert syntax is not None
    grammar = TaggedGrammar(syntax, SchemaRules(lambda _: None), quoted)
    tool = {"type": "function", "function": {"name": "Try", "parameters": schema}}
    return "\n".join(grammar.rules([tool], "</tool_call>")), grammar.wider


def _schema(arguments: int, shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    properties = {f"a{number}": own for number in range(arguments)}
    return {"type": "object", "properties": properties, "$defs": {"shared": shared}}


@pytest.mark.parametrize("kind", ["string", "object"])
def test_definitions_that_many_arguments_share_are_not_written_out_for_each(kind: str) -> None:
    choices = [{"type": kind, "title": f"choice {number}"} for number in range(2000)]
    shared = CountedSchema(anyOf=choices, visits_max=100)
    text, wider = _written(_schema(500, shared, {"$ref": "#/$defs/shared"}))
    assert len(text) < 1 << 20
    assert wider == {"Try": "its references lead to too much"}


def test_definitions_of_a_usual_size_are_followed() -> None:
    text, wider = _written(_schema(40, {"const": 7}, {"$ref": "#/$defs/shared"}))
    assert text.count('"const": 7') == 40
    assert not wider


def test_arguments_without_references_are_written_without_the_definitions() -> None:
    text, wider = _written(_schema(40, {"const": "unused" * 1000}, {"type": "object"}))
    assert "unused" not in text
    assert not wider
