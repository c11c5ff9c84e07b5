"""Chains drafts to events, and converts events to rows and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, select

from domain.chat.request import canonical_json
from domain.errors import CorruptLog
from domain.log.codec import (
    TEXT_FIELDS,
    RecordT,
    encode_event,
    record_from_json,
    record_to_json,
    split_texts,
    text_digests,
)
from domain.log.record import GENESIS_HASH, Draft, LogHead, RecordedEvent, chain_hash
from domain.values import Digest, StreamName
from ops.log.hot_statements import HotStatement
from ops.log.tables import EVENTS, PAYLOADS

#: Made once: it is the larger part of the cost of ``json.dumps``.
_RECORD_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_COLUMNS = tuple(column.name for column in EVENTS.columns)
PAYLOAD = HotStatement(select(PAYLOADS.c.content).where(PAYLOADS.c.digest == bindparam("digest")))
_HEAD = HotStatement(
    select(EVENTS.c.position, EVENTS.c.hash, EVENTS.c.recorded_at)
    .order_by(EVENTS.c.position.desc())
    .limit(1)
)


def link(
    draft: Draft, *, stream: StreamName, version: int, before: LogHead, recorded_at: str
) -> RecordedEvent:
    """Return ``draft`` as the event that follows ``before``.

    Raises:
        ValueError: If the event holds NaN or an infinity.
    """
    type_name, schema_version, full = encode_event(draft.event)
    data, texts = split_texts(type_name, full)
    fields: dict[str, Any] = {
        "position": before.position + 1,
        "stream": stream,
        "version": version,
        "type": type_name,
        "schema_version": schema_version,
        "data": data,
        "event_id": draft.event_id,
        "correlation_id": draft.correlation_id,
        "causation_id": draft.causation_id,
        "recorded_at": recorded_at,
        "prev_hash": before.hash,
    }
    return RecordedEvent(**fields, hash=chain_hash(fields), texts=texts)


def event_values(event: RecordedEvent) -> dict[str, Any]:
    """Return an event as values by column."""
    return event.envelope() | {"data": data_text(event)}


def data_text(event: RecordedEvent) -> str:
    """Return the data of an event as its column stores it: canonical JSON."""
    return storable(canonical_json(event.data).decode("utf-8", "surrogatepass"))


def event_of(row: Sequence[Any]) -> RecordedEvent:
    """Return the event of a row that has the columns of ``EVENTS``."""
    columns = dict(zip(_COLUMNS, row, strict=True))
    try:
        columns["data"] = json.loads(columns["data"])
    except (TypeError, ValueError) as error:
        raise CorruptLog(columns["position"], "the data is not JSON") from error
    return RecordedEvent(**columns)


def with_texts(
    connection: Connection, events: Sequence[RecordedEvent]
) -> tuple[RecordedEvent, ...]:
    """Return ``events`` with their texts, as far as these are not erased."""
    texts: dict[Digest, bytes] = {}
    for event in events:
        for digest in text_digests(event.type, event.data).values():
            if digest not in texts and (row := PAYLOAD.row(connection, {"digest": digest})):
                texts[digest] = bytes(row[0])
    return tuple(
        replace(event, texts=texts) if texts and event.type in TEXT_FIELDS else event
        for event in events
    )


def record_text(record: object) -> str:
    """Return a record as its column stores it: JSON in ASCII, its texts ``storable``.

    Raises:
        ValueError: The record holds NaN or an infinity.
    """
    data = record_to_json(record)
    text = _RECORD_JSON.encode(data)
    # Also begins the escape of a character outside of the Basic Multilingual Plane.
    return _RECORD_JSON.encode(_storable_texts(data)) if "\\ud" in text else text


def _storable_texts(value: Any) -> Any:  # noqa: ANN401 - walks any JSON
    if isinstance(value, Mapping):
        return {name: _storable_texts(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_storable_texts(part) for part in value]
    return storable(value) if isinstance(value, str) else value


def record_of(cls: type[RecordT], text: str) -> RecordT:
    """Return the record of a text that ``record_text`` wrote."""
    return record_from_json(cls, json.loads(text))


def read_head(connection: Connection) -> LogHead:
    """Return the last position and its hash."""
    return read_stamped_head(connection)[0]


def read_stamped_head(connection: Connection) -> tuple[LogHead, str]:
    """Return the head, and the instant of the last event; "" for an empty log."""
    row = _HEAD.row(connection, {})
    if row is None:
        return LogHead(position=0, hash=GENESIS_HASH), ""
    position, hash_, recorded_at = row
    return LogHead(position=position, hash=hash_), recorded_at


def hash_at(connection: Connection, position: int) -> str | None:
    """Return the hash of the event at a position; ``None`` if there is none."""
    query = select(EVENTS.c.hash).where(EVENTS.c.position == position)
    return connection.execute(query).scalar_one_or_none()


def row_digest(row: Mapping[str, Any]) -> str:
    """Return the digest of a row over its columns that have a value, without ``digest`` itself."""
    values = {
        # PostgreSQL stores no NUL in a text; both databases have one digest.
        name: value.hex()
        if isinstance(value, bytes | memoryview)
        else value.replace("\0", "\\x00")
        if isinstance(value, str)
        else value
        for name, value in row.items()
        if value is not None and name != "digest"
    }
    return hashlib.sha256(canonical_json(values)).hexdigest()


def storable(text: str) -> str:
    r"""Return ``text`` with each lone surrogate, which UTF-8 cannot carry, as ``\udXXX``.

    Inside JSON that is the escape of the same character, so nothing is lost.
    """
    if text.isascii():
        return str(text)  # a driver does not take the member of an enumeration
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
