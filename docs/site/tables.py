"""Markdown of generated pages: tables, docstrings and JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

#: A type of values: a schema as in JSON Schema.
Schema = Mapping[str, Any]

#: First line of each generated page.
GENERATED: Final = "<!-- generated from the code by docs/site -->"
_FORMATS: Final = {"path": "path", "password": "secret", "date-time": "RFC 3339 instant"}
_LIMITS: Final = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "length ≥ {}"),
    ("maxLength", "length ≤ {}"),
    ("minItems", "≥ {} items"),
    ("maxItems", "≤ {} items"),
    ("pattern", "`{}`"),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, and an empty line after it; nothing without rows."""
    lines = [_row(row) for row in rows]
    return [_row(head), "|" + "---|" * len(head), *lines, ""] if lines else []


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(value: object) -> str:
    """Return a JSON value as code."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def prose(text: str) -> str:
    """Return a docstring or a help text as Markdown."""
    return re.sub(r"(?<!`)<(?=[a-zA-Z])", "&lt;", text.replace("``", "`").strip())


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and the description of each attribute."""
    body, _, listed = text.partition("\nAttributes:\n")
    entries = re.findall(r"^ +(\w+): (.*?)(?=^ +\w+: |\Z)", listed, flags=re.DOTALL | re.MULTILINE)
    return prose(body), {name: prose(" ".join(entry.split())) for name, entry in entries}


def shape(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Return what a schema allows, in words; objects with a name link to their heading."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        named = definitions.get(name, {})
        return shape(named, definitions) if "enum" in named else f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            kinds = [shape(one, definitions) for one in schema[key]]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return ", ".join(code(value) for value in schema.get("enum", [schema.get("const")]))
    return _plain(schema, definitions)


def _plain(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items") or schema.get("prefixItems", [{}])[0]
        return f"list of {shape(items, definitions)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {shape(schema['additionalProperties'], definitions)}"
    return _FORMATS.get(schema.get("format", ""), str(kind))


def limits(schema: Schema) -> str:
    """Return the bounds of a value, those of its alternatives included."""
    found = [text.format(schema[key]) for key, text in _LIMITS if key in schema]
    found += [limits(one) for one in schema.get("anyOf", ())]
    return ", ".join(filter(None, found))


def fields_table(schema: Schema, definitions: Mapping[str, Schema]) -> list[str]:
    """Return the table of the fields of an object."""
    required = schema.get("required", ())
    return table(
        ("field", "type", "", "meaning"),
        (
            (
                f"`{name}`",
                shape(one, definitions),
                "required" if name in required else _default(one),
                ". ".join(filter(None, [prose(one.get("description", "")), limits(one)])),
            )
            for name, one in schema.get("properties", {}).items()
        ),
    )


def _default(schema: Schema) -> str:
    return code(schema["default"]) if schema.get("default") is not None else ""
