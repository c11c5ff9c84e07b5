"""Recorded events, filters, heads, and the readers that a log needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, Final

from domain.chat.request import canonical_json
from domain.errors import CorruptLog, LogNewer
from domain.events.event import Event, begins_work
from domain.values import Digest, EventId, Owner, StreamName, digest_of

#: ``prev_hash`` of the first event.
GENESIS_HASH = "0" * 64
#: What the name of an agent's stream begins with.
AGENT_STREAM = "agent-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An event that wants to be appended.

    Attributes:
        event_id: UUIDv7; appending it twice is a no-op.
        correlation_id: The request that all of this belongs to.
        causation_id: The event that led to this one, if one did.
    """

    event_id: EventId
    event: Event
    correlation_id: str
    causation_id: EventId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """The events of one stream that are appended together; see ``EventLog.append``.

    Attributes:
        also: An append to another stream, made with this one: both or neither.
    """

    stream: StreamName
    drafts: tuple[Draft, ...]
    expected_version: int
    payloads: Mapping[Digest, bytes] = field(default_factory=dict)
    also: Append | None = None

    @property
    def parts(self) -> tuple[Append, ...]:
        """It and the appends that are made with it; at least one, of different streams."""
        return (self,) if self.also is None else (self, *self.also.parts)

    @property
    def begins_work(self) -> bool:
        """Whether an event of it begins work, which a full disk refuses."""
        return any(begins_work(draft.event) for part in self.parts for draft in part.drafts)

    @property
    def payload_bytes(self) -> int:
        """Size of all payloads in bytes."""
        return sum(len(content) for part in self.parts for content in part.payloads.values())

    def check(self) -> None:
        """Check what a caller may get wrong.

        Raises:
            ValueError: A part has no drafts or the stream of another part, two drafts share an id,
                or a payload has another digest.
        """
        drafts = [draft for part in self.parts for draft in part.drafts]
        if not all(part.drafts for part in self.parts) or _have_twins(
            draft.event_id for draft in drafts
        ):
            raise ValueError("an append needs drafts, each with an event id of its own")
        if _have_twins(part.stream for part in self.parts):
            raise ValueError(f"two parts of an append to {self.stream} share a stream")
        for part in self.parts:
            for digest, content in part.payloads.items():
                if digest_of(content) != digest:
                    raise ValueError(f"the payload has another digest than {digest}")


def _have_twins(names: Iterable[str]) -> bool:
    every = list(names)
    return len(set(every)) != len(every)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An event as it stands in the log.

    Attributes:
        position: Global, gapless, from 1.
        version: Place in that stream, from 1.
        type: Class name of the event.
        schema_version: Version of the shape of ``data``.
        data: The event as JSON values; a text that a client wrote stands there as its digest
            (``domain.log.codec.TEXT_FIELDS``).
        recorded_at: RFC 3339 instant in UTC with microseconds.
        prev_hash: ``hash`` of the event at ``position - 1``.
        hash: SHA-256 in hex over the canonical JSON of all fields above.
        texts: The texts that ``data`` has digests of, as canonical JSON; those that were erased, or
            not read, are missing. No part of the envelope.
    """

    position: int
    stream: StreamName
    version: int
    type: str
    schema_version: int
    data: Mapping[str, Any]
    event_id: EventId
    correlation_id: str
    causation_id: EventId | None
    recorded_at: str
    prev_hash: str
    hash: str
    texts: Mapping[Digest, bytes] = field(default_factory=dict, compare=False, repr=False)

    def envelope(self) -> dict[str, Any]:
        """Return the fields of the envelope, ``hash`` last."""
        return {
            "position": self.position,
            "stream": self.stream,
            "version": self.version,
            "type": self.type,
            "schema_version": self.schema_version,
            "data": dict(self.data),
            "event_id": self.event_id,
            "correlation_id": self.correlation_id,
            "causation_id": self.causation_id,
            "recorded_at": self.recorded_at,
            "prev_hash": self.prev_hash,
            "hash": self.hash,
        }

    def computed_hash(self) -> str:
        """Return the hash that the other fields call for."""
        fields = self.envelope()
        del fields["hash"]
        return chain_hash(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHead:
    """The last position of the log and its hash; position 0 and the genesis hash when empty."""

    position: int
    hash: str


def chain_hash(fields: Mapping[str, Any]) -> str:
    """Return SHA-256 in hex over the canonical JSON of an envelope without its ``hash``."""
    return hashlib.sha256(canonical_json(fields)).hexdigest()


def chain_hash_of_text(fields: Sequence[Any]) -> str:
    """Return ``chain_hash`` of an envelope whose data is canonical JSON text already.

    Nothing is parsed: the text is set into the envelope as it stands. Names and values around it
    are quoted, so no two envelopes share a text, and a hash that fits proves that not one
    character of the data is another.

    Args:
        fields: Those of ``RecordedEvent`` in its order, without ``hash``.

    Raises:
        TypeError: If a field is not of its type.
        ValueError: The same, or a text cannot be encoded.
    """
    (
        position,
        stream,
        version,
        type_name,
        schema_version,
        data,
        event_id,
        correlation_id,
        causation_id,
        recorded_at,
        prev_hash,
    ) = fields
    quote = encode_basestring
    cause = "null" if causation_id is None else quote(causation_id)
    text = (
        f'{{"causation_id":{cause},"correlation_id":{quote(correlation_id)},"data":{data},'
        f'"event_id":{quote(event_id)},"position":{position:d},"prev_hash":{quote(prev_hash)},'
        f'"recorded_at":{quote(recorded_at)},"schema_version":{schema_version:d},'
        f'"stream":{quote(stream)},"type":{quote(type_name)},"version":{version:d}}}'
    )
    return hashlib.sha256(text.encode()).hexdigest()


def verify_link(event: RecordedEvent, before: LogHead) -> LogHead:
    """Check that ``event`` follows ``before`` and is unchanged, and return the new head.

    Raises:
        CorruptLog: Naming the position and what is wrong with it.
    """
    if event.position != before.position + 1:
        raise CorruptLog(event.position, f"expected position {before.position + 1}")
    if event.prev_hash != before.hash:
        raise CorruptLog(event.position, "prev_hash is not the hash of the event before")
    if event.computed_hash() != event.hash:
        raise CorruptLog(event.position, "the content does not match its hash")
    return LogHead(position=event.position, hash=event.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who made a job, agent, file or batch; ``None``: a request without a key."""

    owner: Owner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """A filter of events; a field that is not set matches all.

    Attributes:
        agent: Of the jobs of this agent, or of the agent itself.
        since: Recorded at this RFC 3339 instant with microseconds or later.
        until: Recorded before this one.
        owner: Of the jobs, agents, files, batches and webhooks of this API key.
    """

    stream: str | None = None
    types: Sequence[str] = ()
    agent: str | None = None
    since: str | None = None
    until: str | None = None
    owner: Owner | None = None


#: What this program can read. A release that adds a type of event or a schema version increments
#: the number once and names what it adds in ``READABLE_SINCE``.
READER_VERSION: Final = 1
#: ``(type, schema version)`` to the first reader version that can read it. What is not named here
#: can be read by every program that checks the version.
READABLE_SINCE: Mapping[tuple[str, int], int] = {}


def reader_needed(type_name: str, schema_version: int) -> int:
    """Return the least reader version that can read an event of this type and version."""
    return READABLE_SINCE.get((type_name, schema_version), 1)


def refuse_newer(reader_min: int) -> None:
    """Refuse a log that needs a newer reader.

    Args:
        reader_min: The least reader version that the log needs.

    Raises:
        LogNewer: This program is older.
    """
    if reader_min > READER_VERSION:
        msg = (
            "a newer version of semantic wrote to the event log "
            f"(it needs reader {reader_min}, this is reader {READER_VERSION}): update semantic"
        )
        raise LogNewer(msg)
