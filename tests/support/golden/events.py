"""One stored event of every type and schema version, as files that never change.

``python -m tests.support.golden.events`` writes the files that are missing for what the code
writes today. Existing files never change: logs of users contain such events.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import sys
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from domain.events import event as event_types
from domain.events.event import Event
from domain.log.codec import encode_event

FIXTURES = Path(__file__).parents[2] / "fixtures" / "events"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One file."""

    type: str
    schema_version: int
    data: dict[str, Any]


def path_of(type_name: str, schema_version: int) -> Path:
    """Return where the file of a type and version lies."""
    return FIXTURES / f"v{schema_version}" / f"{type_name}.json"


def read_all() -> Iterator[Golden]:
    """Yield every file."""
    for path in sorted(FIXTURES.glob("v*/*.json")):
        yield Golden(**json.loads(path.read_text("utf-8")))


def current() -> Iterator[Golden]:
    """Yield what the code writes today, every field of every type filled."""
    for cls in typing.get_args(event_types.Event):
        event: Event = _sample(cls, cls.__name__)
        type_name, schema_version, data = encode_event(event)
        yield Golden(type=type_name, schema_version=schema_version, data=data)


def shape(value: Any) -> Any:
    """Return the names and the kinds of values, which is what a reader depends on."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def _sample(hint: Any, name: str) -> Any:
    if isinstance(hint, typing.NewType):
        return _sample(hint.__supertype__, name)
    if typing.get_args(hint):
        return _sample_generic(hint, name)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {one.name: _sample(hints[one.name], one.name) for one in dataclasses.fields(hint)}
        return typing.cast("type", hint)(**fields)
    if issubclass(hint, Enum):
        return next(iter(hint))
    samples: dict[type, Any] = {str: f"a {name}", int: 7, float: 1.5, bool: True}
    return samples[hint]


def _sample_generic(hint: Any, name: str) -> Any:
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return (_sample(arguments[0], name),)
    if origin is collections.abc.Mapping:
        return {"a key": _sample(arguments[1], name)}
    # ``X | None``: what stands there when something does.
    return _sample(next(one for one in arguments if one is not type(None)), name)


def main() -> None:
    for golden in current():
        path = path_of(golden.type, golden.schema_version)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(dataclasses.asdict(golden), indent=2, sort_keys=True)
            path.write_text(text + "\n", "utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
