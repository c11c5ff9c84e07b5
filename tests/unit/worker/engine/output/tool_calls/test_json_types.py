"""The types that a schema allows, read in a number of steps that its size bounds."""

from __future__ import annotations

from typing import Any

from tests.support.models.counted_schema import CountedSchema
from worker.engine.output.tool_calls.json_text import ALL_TYPES, types_of


def test_a_schema_that_refers_to_itself_twenty_times_is_read_in_a_few_hundred_steps() -> None:
    node = CountedSchema(anyOf=[{"$ref": "#/$defs/node"} for _ in range(20)], visits_max=500)
    root = {"$defs": {"node": node}}
    assert types_of({"$ref": "#/$defs/node"}, root) == ALL_TYPES


def test_parts_that_share_a_definition_at_different_depths_get_its_types() -> None:
    root: dict[str, Any] = {"$defs": {"text": {"type": ["string", "null"]}}}
    shared = {"$ref": "#/$defs/text"}
    schema = {"allOf": [shared, {"anyOf": [shared, {"type": "integer"}]}], "type": ["string"]}
    assert types_of(schema, root) == {"string"}
