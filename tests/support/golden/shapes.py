"""The shape of a stream: its kinds of events in order, and the fields of each with their types.

``python -m tests.support.golden.shapes FILE`` prints the shape of a recorded stream as JSON. A
shape has no text of the recording: a client depends on names, types and their order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.clients.sse import events_in

_TYPES: Final[Mapping[type, str]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    type(None): "null",
}
#: Events that may come at any time.
_ANYWHERE: Final = frozenset({"ping"})


@dataclass(slots=True)
class Step:
    """Events of one kind that follow each other.

    Attributes:
        kind: The name of the event, and what its payload is about.
        fields: The types of each field, by its path, with ``|`` between several.
    """

    kind: str
    fields: dict[str, str]


def shape_of_stream(stream: bytes) -> list[Step]:
    """Return the shape of a stream of server-sent events."""
    steps: list[Step] = []
    for event in events_in(stream):
        if event.data == "[DONE]":
            steps.append(Step("[DONE]", {}))
            continue
        if event.event in _ANYWHERE:
            continue
        kind = _kind(event.event, event.json)
        if not steps or steps[-1].kind != kind:
            steps.append(Step(kind, {}))
        _merge(steps[-1].fields, fields_of(event.json))
    return steps


def fields_of(value: object) -> dict[str, str]:
    """Return the types of each field of a JSON value."""
    found: dict[str, str] = {}
    for path, kind in _walk("", value):
        _merge(found, {path: kind})
    return found


def missing(
    recorded: Mapping[str, str], ours: Mapping[str, str], absent: Iterable[str]
) -> list[str]:
    """Return the fields of a recording that are missing or of another type here.

    Args:
        recorded: The fields of the recording.
        ours: The fields of the service.
        absent: Paths, each with all below it, that the service has not.
    """
    faults = []
    for path, kinds in recorded.items():
        if any(path == one or path.startswith((f"{one}.", f"{one}[")) for one in absent):
            continue
        if path not in ours:
            faults.append(f"{path} is missing")
            continue
        wanted, given = (set(one.split("|")) - {"null"} for one in (kinds, ours[path]))
        if wanted and given and not given <= wanted:
            faults.append(f"{path} is {sorted(given)} and not {sorted(wanted)}")
    return faults


def _kind(name: str | None, data: Any) -> str:
    """Return what distinguishes an event: its type, and that of its block or delta."""
    if name is not None:
        inner = data.get("content_block") or data.get("delta") or {}
        return f"{name} {inner.get('type', '')}".strip()
    if not data["choices"]:
        return "usage"
    choice = data["choices"][0]
    if choice["finish_reason"] is not None:
        return "finish"
    given = [key for key, value in choice["delta"].items() if value]
    return "begin" if "role" in given else " ".join(given) or "nothing"


def _walk(path: str, value: object) -> Iterator[tuple[str, str]]:
    if path:
        yield path, _TYPES[type(value)]
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _walk(f"{path}.{name}".lstrip("."), one)
    if isinstance(value, list):
        for one in value:
            yield from _walk(f"{path}[]", one)


def _merge(into: dict[str, str], more: Mapping[str, str]) -> None:
    for path, kinds in more.items():
        into[path] = "|".join(sorted({*into.get(path, kinds).split("|"), *kinds.split("|")}))


if __name__ == "__main__":
    content = Path(sys.argv[1]).read_bytes()
    shape = [asdict(step) for step in shape_of_stream(content + b"\n\n")]
    sys.stdout.write(json.dumps({"steps": shape}, indent=1) + "\n")
