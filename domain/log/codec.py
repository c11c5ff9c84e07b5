"""The JSON codec of events, stream items and records.

Decoding follows the declared field types, so a new event needs no code here. A field that an event
lacks has its default.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from domain.chat import items as stream_types
from domain.chat import logprobs
from domain.chat.items import Body, StreamItem
from domain.chat.logprobs import TokenLogprob
from domain.chat.request import canonical_json
from domain.errors import LogNewer
from domain.events import event as event_types
from domain.events.event import Event
from domain.log.record import RecordedEvent
from domain.values import Digest, digest_of

#: Present schema versions; types not named here are at 1. A change of the fields of a released type
#: increments its version, and ``tests/fixtures/events`` keeps one event of each version for good.
SCHEMA_VERSIONS: Mapping[str, int] = {}

#: Fields that a client may have written, by type of event. The log has their digests in the events
#: and the texts as payloads, so that a deletion can erase them and the hash chain stays.
TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "AttemptFailed": ("message",),
    "BatchSubmitted": ("metadata",),
    "JobCompleted": ("stop_sequence",),
    "JobFailed": ("message",),
    "JobSubmitted": ("model",),
}
#: What an event has in the place of a text that was erased.
ERASED_TEXT = "[erased]"
_ERASED: Mapping[str, str | None] = {"metadata": None}

RecordT = TypeVar("RecordT")

_EVENT_CLASSES: Mapping[str, type[Event]] = {
    cls.__name__: cls for cls in typing.get_args(event_types.Event)
}
_BODY_CLASSES: Mapping[str, type[Body]] = {
    "started": stream_types.Started,
    "progress": stream_types.Progress,
    "thinking": stream_types.Thinking,
    "text": stream_types.Text,
    "tool_start": stream_types.ToolStart,
    "tool_input": stream_types.ToolInput,
    "tool_end": stream_types.ToolEnd,
    "finished": stream_types.Finished,
    "failed": stream_types.Failed,
}
_BODY_KINDS = {cls: kind for kind, cls in _BODY_CLASSES.items()}


def encode_event(event: Event) -> tuple[str, int, dict[str, Any]]:
    """Return the type name, schema version and JSON data of ``event``."""
    name = type(event).__name__
    data: dict[str, Any] = _to_json(event)
    return name, SCHEMA_VERSIONS.get(name, 1), data


def split_texts(
    type_name: str, data: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[Digest, bytes]]:
    """Return the data with digests in the place of its texts, and these texts."""
    stored, texts = dict(data), dict[Digest, bytes]()
    for name in TEXT_FIELDS.get(type_name, ()):
        if stored[name]:
            content = canonical_json(stored[name])
            stored[name] = digest = digest_of(content)
            texts[digest] = content
    return stored, texts


def text_digests(type_name: str, data: Mapping[str, Any]) -> dict[str, Digest]:
    """Return the digests of the texts of stored data, by field."""
    names = TEXT_FIELDS.get(type_name, ())
    return {name: Digest(data[name]) for name in names if data.get(name)}


def texts_of(recorded: RecordedEvent) -> dict[str, Any]:
    """Return the texts of an event that are there, by field."""
    digests = text_digests(recorded.type, recorded.data)
    return {
        name: json.loads(recorded.texts[digest])
        for name, digest in digests.items()
        if digest in recorded.texts
    }


def decode_recorded(recorded: RecordedEvent) -> Event:
    """Return the event of an envelope; ``ERASED_TEXT`` stands for a text that is not there.

    Raises:
        LogNewer: A newer program wrote the event.
        ValueError: The data does not fit the type.
    """
    data = recorded.data
    if recorded.type in TEXT_FIELDS:
        digests = text_digests(recorded.type, data)
        erased = {name: _ERASED.get(name, ERASED_TEXT) for name in digests}
        data = {**data, **erased, **texts_of(recorded)}
    return decode_event(recorded.type, recorded.schema_version, data)


def decode_event(type_name: str, schema_version: int, data: Mapping[str, Any]) -> Event:
    """Return the event that ``encode_event`` described.

    Raises:
        LogNewer: A newer program wrote the event.
        ValueError: The data does not fit the type.
    """
    cls = _EVENT_CLASSES.get(type_name)
    if cls is None:
        raise LogNewer(f"unknown event type {type_name!r}, written by a newer program")
    if schema_version > SCHEMA_VERSIONS.get(type_name, 1):
        raise LogNewer(f"{type_name} is of version {schema_version}, written by a newer program")
    return typing.cast("Event", _from_json(cls, data))


def record_to_json(record: object) -> dict[str, Any]:
    """Return the fields of a record that differ from their defaults; bytes are UTF-8 text."""
    cls: type = type(record)
    return {
        name: value if encode is None or value is None else encode(value)
        for name, default, encode in _record_fields(cls)
        if (value := getattr(record, name)) is not default and value != default
    }


def record_from_json(cls: type[RecordT], data: Mapping[str, Any]) -> RecordT:
    """Return the record of a dataclass that ``record_to_json`` described.

    Raises:
        ValueError: A field without a default is missing.
    """
    return typing.cast("RecordT", _from_json(cls, data))


def item_to_dict(item: StreamItem) -> dict[str, Any]:
    """Return ``{"n", "a", "kind", …}``; the keys of the body stand beside those of the item.

    ``e`` is there in items of later epochs only.
    """
    body: dict[str, Any] = _to_json(item.body)
    head: dict[str, Any] = {"n": item.n, "a": item.attempt, "kind": _BODY_KINDS[type(item.body)]}
    if item.epoch > 1:
        head["e"] = item.epoch
    return head | body


def item_from_dict(data: Mapping[str, Any]) -> StreamItem:
    """Return the item that ``item_to_dict`` described.

    Raises:
        ValueError: If the kind is unknown or a key is missing.
    """
    cls = _BODY_CLASSES.get(data.get("kind", ""))
    if cls is None:
        raise ValueError(f"unknown item kind {data.get('kind')!r}")
    body = _from_json(cls, data)
    return StreamItem(n=data["n"], attempt=data["a"], body=body, epoch=data.get("e", 1))


def encode_item(item: StreamItem) -> bytes:
    """Return the item as compact JSON."""
    return json.dumps(item_to_dict(item), separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def decode_item(payload: bytes) -> StreamItem:
    """Return the item that ``encode_item`` wrote.

    Raises:
        ValueError: If the payload is not such an item.
    """
    return item_from_dict(json.loads(payload))


def _to_json(value: Any) -> Any:  # noqa: ANN401 - walks any field type
    cls: type = type(value)
    names = _field_names(cls)
    if names is not None:
        encoded = {name: _to_json(getattr(value, name)) for name in names[0]}
        for name in names[1]:
            if present := getattr(value, name):
                is_text = isinstance(present, str)
                encoded[name] = present if is_text else logprobs.to_json(present)
        return encoded
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_to_json(element) for element in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _from_json(cls: type, data: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any dataclass
    return _dataclass_decoder(cls)(data)


@functools.cache  # the look-up costs more than all the rest, and every token is encoded
def _field_names(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the fields that are always encoded, and those that are encoded unless empty."""
    if not dataclasses.is_dataclass(cls):
        return None
    fields = dataclasses.fields(cls)
    optional = {field.name for field in fields if stream_types.OPTIONAL in field.metadata}
    names = [field.name for field in fields]
    return (
        tuple(name for name in names if name not in optional),
        tuple(name for name in names if name in optional),
    )


@functools.cache  # reading type hints costs more than all the rest, and every token is decoded
def _dataclass_decoder(cls: type) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function from JSON to a dataclass; it leaves out keys that are no fields."""
    hints = typing.get_type_hints(cls)
    names = frozenset(field.name for field in dataclasses.fields(cls))
    found = ((name, _decoder(hints[name])) for name in sorted(names))
    decoders = tuple((name, decode) for name, decode in found if decode is not None)

    def decode_all(data: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an instance of the class
        values = {**data} if names.issuperset(data) else {n: data[n] for n in data if n in names}
        for name, decode in decoders:
            value = values.get(name)
            if value is not None:
                values[name] = decode(value)
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(str(error)) from error

    return decode_all


class _Members(dict[Any, Enum]):
    """The members of an enumeration by value; several times as fast as the call of the class."""

    def __init__(self, cls: type[Enum]) -> None:
        super().__init__({member.value: member for member in cls})
        self._cls = cls

    def __missing__(self, value: object) -> Enum:
        return self._cls(value)  # raises ValueError


@functools.cache
def _record_fields(cls: type) -> tuple[tuple[str, Any, Callable[[Any], Any] | None], ...]:
    """Return the name, the default and the encoder of each field of a record."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (field.name, field.default, _record_encoder(hints[field.name]))
        for field in dataclasses.fields(cls)
    )


def _record_encoder(hint: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a type hint
    """Return the function from a field's value to JSON; ``None`` if they are equal."""
    hint = _present(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return record_to_json
    if hint is bytes:
        return bytes.decode
    return _to_json if _decoder(hint) is not None else None


def _present(hint: Any) -> Any:  # noqa: ANN401 - a type hint
    """Return the type of a value that is not ``None``."""
    if isinstance(hint, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def _decoder(hint: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a type hint
    """Return the function from a JSON value to the field's value; ``None`` if they are equal."""
    hint = _present(hint)
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        if element is TokenLogprob:
            return logprobs.from_json
        decode = _decoder(element)
        return tuple if decode is None else lambda values: tuple(map(decode, values))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Members(hint).__getitem__
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    return str.encode if hint is bytes else None
