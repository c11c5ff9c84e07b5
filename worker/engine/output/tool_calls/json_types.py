"""The JSON types that a schema allows, and the JSON value of a text between tags.

Models write a string between tags without quotes and any other value as JSON. Therefore the schema
decides whether ``5`` is a number or a string.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from domain.chat.schema_bounds import resolve_reference
from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson

ALL_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING_ONLY: Final = frozenset({"string"})
#: Most references followed in a row.
_REFERENCES_MAX: Final = 16
#: Python's names of types, which some schemas contain.
_TYPE_ALIASES: Final[Mapping[str, str]] = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}
#: First characters of values that are no strings.
_JSON_BEGINS: Final = frozenset("{[-0123456789tfn")
_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}
_LITERALS: Final[Mapping[str, tuple[str, str]]] = {
    "true": ("boolean", "true"),
    "false": ("boolean", "false"),
    "null": ("null", "null"),
    "none": ("null", "null"),
}


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema allows; ``number`` includes ``integer``.

    Args:
        schema: Any value; one that is no schema allows all types.
        root: The schema that references point into.
    """
    return SchemaTypes(root).of(schema)


class SchemaTypes:
    """Finds the types that the parts of one schema allow.

    Each part is read once at each depth, because references may point to the same part, or to
    each other, exponentially often.

    Args:
        root: The schema that references point into; neither it nor its parts change.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        #: By the identity of the part, and the references followed before it.
        self._found: dict[tuple[int, int], frozenset[str]] = {}

    def of(self, schema: object, depth: int = 0) -> frozenset[str]:
        """Return the types that a part allows, all if it is no schema; see ``types_of``."""
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth > _REFERENCES_MAX:
            return ALL_TYPES
        place = id(schema), depth
        if place not in self._found:
            types = _declared_types(schema.get("type")) & _value_types(schema)
            for choices in _parts(schema, self._root):
                types &= frozenset().union(*(self.of(one, depth + 1) for one in choices))
            self._found[place] = types
        return self._found[place]


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[list[object]]:
    """Return the subschemas that a value must match as well, each as a list of alternatives."""
    parts: list[list[object]] = [
        schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)
    ]
    all_of = schema.get("allOf")
    parts += [[part] for part in all_of] if isinstance(all_of, list) else []
    if isinstance(schema.get("$ref"), str):
        parts.append([resolve_reference(schema["$ref"], root)])
    return parts


def _value_types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = ALL_TYPES if "const" not in schema else frozenset({type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        types &= {type_of(value) for value in schema["enum"]}
    return types


def argument_schema(schema: Mapping[str, Any], name: str) -> object:
    """Return the schema of one argument, given the schema of all arguments."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties", True)


def type_of(value: object) -> str:
    """Return the narrowest JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "object"
    return _TYPE_NAMES.get(type(value), "array")


def value_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a text between tags.

    If the schema allows strings, the text is a string, unless it is exactly the JSON of another
    allowed type. Otherwise the text is read as JSON, else as a Python literal, else as a string.

    Args:
        text: The text between the tags.
        types: The types that the schema allows.
    """
    if "string" in types or not types:
        found = None if types <= STRING_ONLY or text != text.strip() else _json_in(text)
        is_other = found is not None and type_of(json.loads(found)) in types - STRING_ONLY
        return found if found is not None and is_other else json_string(text)
    stripped = text.strip()
    type_name, literal = _LITERALS.get(stripped.lower(), ("", ""))
    if type_name in types:
        return literal
    found = _json_in(stripped)
    return found if found is not None else _python_in(stripped)


def json_string(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _declared_types(declared: object) -> frozenset[str]:
    named = [declared] if isinstance(declared, str) else declared
    if not isinstance(named, list):
        return ALL_TYPES
    types = {_TYPE_ALIASES.get(name, name) for name in named if isinstance(name, str)} & ALL_TYPES
    # An unknown type restricts nothing.
    return frozenset(types | {"integer"} if "number" in types else types) or ALL_TYPES


def _json_in(text: str) -> str | None:
    """Return a text as valid JSON, ``None`` if it is a string or not exactly one value."""
    if text[:1] not in _JSON_BEGINS:
        return None
    value, valid = JsonValue(), ""
    try:
        for char in text:
            if value.is_complete:
                return None
            piece = value.feed(char)
            if piece is None:
                return None
            valid += piece
        json.loads(valid)
    except (MalformedJson, ValueError):
        return None
    return valid


def _python_in(text: str) -> str:
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json_string(text)
