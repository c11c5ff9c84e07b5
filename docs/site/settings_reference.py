"""The page of all settings, from ``ops.settings.settings``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Final

from docs.site.tables import GENERATED, Schema, code, limits, prose, shape, table
from ops.settings import models, service, settings
from ops.settings.settings import Settings

_HEAD = """
# Settings

For operators. Every setting, its type, default and limits. [Operations](../operations.md) describes
the files and their order; `semantic config show --origin` prints the values in force and their
sources.

A setting `group.name` is `name` in the table `[group]` of a configuration file, and the variable
`SEMANTIC_GROUP__NAME` in the environment. Variables of lists and tables hold JSON.
"""
#: Defaults that depend on the machine.
COMPUTED: Final[Mapping[str, str]] = {
    "data_dir": "`~/.local/share/semantic`, on a Mac `~/Library/Application Support/semantic`",
}


def render() -> str:
    """Return the page."""
    definitions = settings_schema()["$defs"]
    single, grouped = groups()
    parts = [GENERATED, _HEAD, "## Top level", "", *_table("", single, definitions)]
    for name, group in grouped.items():
        parts += [f"## {name}", "", prose(group.get("description", "")), ""]
        parts += _table(f"{name}.", group["properties"], definitions)
        parts += _tables_inside(group, definitions)
    return "\n".join(parts)


@cache
def settings_schema() -> Schema:
    """Return the schema of all settings; their descriptions stand below the fields in the code.

    They are read from the source here, since a process that starts needs none.
    """
    schema = Settings.model_json_schema()
    described = {**schema["$defs"], Settings.__name__: schema}
    for module in (models, service, settings):
        for group in ast.parse(inspect.getsource(module)).body:
            if not isinstance(group, ast.ClassDef):
                continue
            properties = described.get(group.name, {}).get("properties", {})
            for field, text in pairwise(group.body):
                match field, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(about))),
                    ) if name in properties:
                        properties[name]["description"] = " ".join(about.split())
    return schema


def groups() -> tuple[dict[str, Schema], dict[str, Schema]]:
    """Return the schemas of the settings of the top level, and those of the groups, by name."""
    schema = settings_schema()
    definitions = schema["$defs"]
    single: dict[str, Schema] = {}
    grouped: dict[str, Schema] = {}
    for name, one in schema["properties"].items():
        group = _group(one, definitions)
        if group:
            grouped[name] = group
        else:
            single[name] = one
    return single, grouped


def _group(schema: Schema, definitions: Mapping[str, Schema]) -> Schema | None:
    """Return the schema of a group of settings, ``None`` for a single one."""
    named = definitions.get(schema.get("$ref", "").rpartition("/")[2])
    return named if named and "properties" in named else None


def _tables_inside(group: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    """Yield the fields of tables with a free name, such as ``[models.coder]``."""
    inside = group.get("additionalProperties")
    if isinstance(inside, dict) and "$ref" in inside:
        named = definitions[inside["$ref"].rpartition("/")[2]]
        yield from ("### models.NAME", "", prose(named.get("description", "")), "")
        yield from _table("models.NAME.", named["properties"], definitions)


def _table(
    prefix: str, properties: Mapping[str, Schema], definitions: Mapping[str, Schema]
) -> list[str]:
    return table(
        ("setting", "type", "default", "limits", "meaning"),
        (
            (
                f"`{name}`",
                shape(one, definitions),
                _default(name, one),
                limits(one),
                prose(one.get("description", "")),
            )
            for name, one in leaves(prefix, properties, definitions)
        ),
    )


def leaves(
    prefix: str, properties: Mapping[str, Schema], definitions: Mapping[str, Schema]
) -> Iterator[tuple[str, Schema]]:
    """Yield each setting by its full name, those of groups inside a group too."""
    for name, one in properties.items():
        group = _group(one, definitions)
        if group:
            yield from leaves(f"{prefix}{name}.", group["properties"], definitions)
        else:
            yield prefix + name, one


def _default(name: str, schema: Schema) -> str:
    if name in COMPUTED:
        return COMPUTED[name]
    return code(schema["default"]) if schema.get("default") is not None else "none"
