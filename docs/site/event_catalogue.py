"""The page of all events, with their fields, from the types of ``domain.events``."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator, Mapping

from pydantic import TypeAdapter

from docs.site.tables import GENERATED, Schema, code, prose, shape, split_docstring, table
from domain.events.event import Event
from domain.log.codec import SCHEMA_VERSIONS

_HEAD = """
# Events

For operators who read the log, and for engineers who add an event. Every event that the log may
hold, with the fields of its `data`. The [event log](../event-log.md) describes the envelope, the
chain of hashes and the commands.

- `semantic log ls --type JobSubmitted` lists the events of a type.
- A field without a default is in every event of its type.
- No event holds the text of a prompt or of an answer. Digests name texts, which are stored apart.
"""


def render() -> str:
    """Return the page."""
    parts = [GENERATED, _HEAD]
    definitions: dict[str, Schema] = {}
    for module, events in by_module().items():
        name = module.rpartition(".")[2]
        parts += [f"## {name.capitalize()}", "", _module_text(module), ""]
        for event in events:
            parts += _described(event, definitions)
    parts += ["## Values", "", "Objects in the fields above.", ""]
    for name, schema in sorted(definitions.items()):
        if "properties" in schema:
            parts += [f"### {name}", "", *_fields(schema, definitions)]
    return "\n".join(parts)


def by_module() -> dict[str, list[type]]:
    """Return the types of all events by their module."""
    found: dict[str, list[type]] = {}
    for event in typing.get_args(Event):
        found.setdefault(event.__module__, []).append(event)
    return found


def _module_text(module: str) -> str:
    return prose(inspect.getdoc(importlib.import_module(module)) or "")


def _described(event: type, definitions: dict[str, Schema]) -> Iterator[str]:
    schema = TypeAdapter(event).json_schema()
    definitions.update(schema.get("$defs", {}))
    text, _ = split_docstring(inspect.getdoc(event) or "")
    yield from (f"### {event.__name__}", "", text, "")
    yield from (f"Version {SCHEMA_VERSIONS.get(event.__name__, 1)}.", "")
    yield from _fields(schema, definitions)


def _fields(schema: Schema, definitions: Mapping[str, Schema]) -> list[str]:
    _, meanings = split_docstring(schema.get("description", ""))
    return table(
        ("field", "type", "default", "meaning"),
        (
            (
                f"`{name}`",
                shape(one, definitions),
                code(one["default"]) if "default" in one else "",
                meanings.get(name, ""),
            )
            for name, one in schema.get("properties", {}).items()
        ),
    )
