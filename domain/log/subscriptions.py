"""Named readers of the log, whose positions the log itself keeps.

A reader gets the events behind its position again until it acknowledges them. Deliveries of the
first of them are counted: after ``ALONE_AFTER`` it comes alone, so that the reader can get past
those that it understands, and after ``DELIVERIES_MAX`` it is parked.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from domain.errors import InvalidRequest, SubscriptionNotFound, SubscriptionTaken
from domain.events.event import Event
from domain.events.subscription import (
    UNSUBSCRIBABLE,
    SubscriptionAcknowledged,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionDelivered,
    SubscriptionEvent,
    SubscriptionEventParked,
)
from domain.log.codec import decode_recorded
from domain.log.folded_stream import FoldedStream
from domain.log.ports import EventLog
from domain.log.record import EventFilter, RecordedEvent
from domain.ports import IdSource
from domain.values import Owner, ParkReason, StreamName

#: The stream of all readers.
SUBSCRIPTIONS_STREAM: Final = StreamName("subscriptions")
#: Deliveries after which the first unacknowledged event comes alone.
ALONE_AFTER: Final = 2
#: Deliveries after which it is parked.
DELIVERIES_MAX: Final = 5
#: Most events of a delivery, and most parked events that are remembered of a reader.
BATCH_MAX: Final = 1000
#: Most readers of a key.
READERS_MAX: Final = 100
#: Events are counted up to this number.
LAG_MAX: Final = 1000
#: The types that a reader may want.
EVENT_TYPES: Final = tuple(
    sorted(cls.__name__ for cls in typing.get_args(Event) if cls.__name__ not in UNSUBSCRIBABLE)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedEvent:
    """An event that a reader does not get any more."""

    position: int
    reason: ParkReason
    parked_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A reader; see ``SubscriptionCreated``.

    Attributes:
        created: The event that created it.
        position: All events up to here are acknowledged.
        delivered: Position of the last event that was given to it.
        deliveries: How often the first unacknowledged event was given to it.
        parked: In the order of parking.
    """

    created: SubscriptionCreated
    created_at: str
    position: int
    delivered: int
    deliveries: int = 0
    parked: tuple[ParkedEvent, ...] = ()

    @property
    def wanted(self) -> EventFilter:
        """The events that it gets."""
        types = self.created.types or EVENT_TYPES
        return EventFilter(types=types, owner=self.created.owner)

    @property
    def parked_ahead(self) -> frozenset[int]:
        """The positions behind its own that it does not get."""
        return frozenset(one.position for one in self.parked if one.position > self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The readers by owner and name, and the version of their stream."""

    readers: Mapping[tuple[Owner | None, str], Subscription] = field(default_factory=dict)
    version: int = 0


def evolve(readers: Readers, recorded: RecordedEvent) -> Readers:
    """Return the readers after an event of their stream."""
    event = decode_recorded(recorded)
    assert isinstance(event, SubscriptionEvent)
    key, known = (event.owner, event.name), dict(readers.readers)
    if isinstance(event, SubscriptionCreated):
        known[key] = Subscription(
            created=event,
            created_at=recorded.recorded_at,
            position=event.position,
            delivered=event.position,
        )
    elif isinstance(event, SubscriptionDeleted):
        known.pop(key, None)
    elif key in known:
        known[key] = _advanced(known[key], event, recorded.recorded_at)
    return Readers(readers=known, version=recorded.version)


def _advanced(reader: Subscription, event: SubscriptionEvent, at: str) -> Subscription:
    match event:
        case SubscriptionDelivered(through=through):
            delivered = max(reader.delivered, through)
            return replace(reader, delivered=delivered, deliveries=reader.deliveries + 1)
        case SubscriptionAcknowledged(position=position):
            return replace(reader, position=position, deliveries=0)
        case SubscriptionEventParked(position=position, reason=reason):
            one = ParkedEvent(position=position, reason=ParkReason(reason), parked_at=at)
            parked = (*reader.parked, one)[-BATCH_MAX:]
            # What was delivered too often is the first event that is not dealt with.
            is_first = one.reason is ParkReason.DELIVERIES
            behind = position if is_first else reader.position
            return replace(reader, position=behind, parked=parked, deliveries=0)
        case _:
            return reader


class Subscriptions:
    """The readers of a log. May be used from any thread.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written: nothing has
    changed then. They raise ``SubscriptionNotFound`` for a reader that does not exist.

    Args:
        log: The events, and the stream of the readers.
    """

    def __init__(self, log: EventLog, ids: IdSource) -> None:
        self._log = log
        self._stream = FoldedStream(
            SUBSCRIPTIONS_STREAM, log=log, ids=ids, initial=Readers(), evolve=evolve
        )

    def read_all(self) -> Sequence[Subscription]:
        """Return all readers of all keys, in the order of their creation."""
        return tuple(self._stream.read().readers.values())

    def get(self, owner: Owner | None, name: str) -> Subscription:
        """Return a reader."""
        return _find(self._stream.read(), owner, name)

    def create(self, wanted: SubscriptionCreated, *, correlation_id: str) -> bool:
        """Create a reader; return whether there was none of the same name and wishes.

        Raises:
            SubscriptionTaken: The name belongs to a reader with other wishes.
            InvalidRequest: There are too many readers, or a type is unknown.
        """
        for position, name in enumerate(wanted.types):
            if name not in EVENT_TYPES:
                msg = f"{name!a} is no type of events that can be subscribed to"
                raise InvalidRequest(msg, field=f"types.{position}")

        def decide(now: Readers) -> Sequence[Event]:
            known = now.readers.get((wanted.owner, wanted.name))
            if known is not None:
                if (known.created.types, known.created.url) != (wanted.types, wanted.url):
                    raise SubscriptionTaken(wanted.name)
                return ()
            if sum(owner == wanted.owner for owner, _ in now.readers) >= READERS_MAX:
                raise InvalidRequest(f"there are {READERS_MAX} subscriptions, which is the most")
            return (wanted,)

        return self._stream.commit(decide, correlation_id=correlation_id)

    def delete(self, owner: Owner | None, name: str, *, correlation_id: str) -> None:
        """Delete a reader."""

        def decide(now: Readers) -> Sequence[Event]:
            _find(now, owner, name)
            return (SubscriptionDeleted(name=name, owner=owner),)

        self._stream.commit(decide, correlation_id=correlation_id)

    def deliver(
        self, owner: Owner | None, name: str, *, limit: int, correlation_id: str
    ) -> Sequence[RecordedEvent]:
        """Return the events that follow the acknowledged ones, and count the delivery."""
        given: list[RecordedEvent] = []

        def decide(now: Readers) -> Sequence[Event]:
            reader, parking = _find(now, owner, name), list[Event]()
            most = limit if reader.deliveries < ALONE_AFTER else 1
            given[:] = self._next(reader, most + 1)
            if given and reader.deliveries >= DELIVERIES_MAX:
                head = given.pop(0)
                parking.append(
                    SubscriptionEventParked(
                        name=name,
                        owner=owner,
                        position=head.position,
                        reason=ParkReason.DELIVERIES,
                    )
                )
            del given[most:]
            if not given:
                return parking
            through = given[-1].position
            return (*parking, SubscriptionDelivered(name=name, owner=owner, through=through))

        self._stream.commit(decide, correlation_id=correlation_id)
        return given

    def acknowledge(
        self, owner: Owner | None, name: str, position: int, *, correlation_id: str
    ) -> Subscription:
        """Record that a reader has dealt with its events up to a position; a repeat does nothing.

        Raises:
            InvalidRequest: No event at this position or behind it was delivered.
        """

        def decide(now: Readers) -> Sequence[Event]:
            reader = _find_delivered(now, owner, name, position)
            if position <= reader.position:
                return ()
            return (SubscriptionAcknowledged(name=name, owner=owner, position=position),)

        self._stream.commit(decide, correlation_id=correlation_id)
        return self.get(owner, name)

    def park(
        self, owner: Owner | None, name: str, position: int, *, correlation_id: str
    ) -> Subscription:
        """Park an event that a reader cannot deal with; a repeat does nothing.

        Raises:
            InvalidRequest: The event was not delivered, or too many are parked behind the
                acknowledged ones.
        """

        def decide(now: Readers) -> Sequence[Event]:
            reader = _find_delivered(now, owner, name, position)
            if position <= reader.position or position in reader.parked_ahead:
                return ()
            if len(reader.parked_ahead) >= BATCH_MAX:
                msg = "acknowledge what precedes the parked events first"
                raise InvalidRequest(msg, field="position")
            return (
                SubscriptionEventParked(
                    name=name, owner=owner, position=position, reason=ParkReason.NACK
                ),
            )

        self._stream.commit(decide, correlation_id=correlation_id)
        return self.get(owner, name)

    def lag_of(self, reader: Subscription) -> int:
        """Return how many events a reader has not acknowledged, at most ``LAG_MAX``."""
        return len(self._next(reader, LAG_MAX))

    def _next(self, reader: Subscription, limit: int) -> Sequence[RecordedEvent]:
        parked = reader.parked_ahead
        found = self._log.select(reader.wanted, after=reader.position, limit=limit + len(parked))
        return [event for event in found if event.position not in parked][:limit]


def _find(readers: Readers, owner: Owner | None, name: str) -> Subscription:
    found = readers.readers.get((owner, name))
    if found is None:
        raise SubscriptionNotFound(name)
    return found


def _find_delivered(
    readers: Readers, owner: Owner | None, name: str, position: int
) -> Subscription:
    reader = _find(readers, owner, name)
    if position > reader.delivered:
        raise InvalidRequest(f"the last delivered event is at {reader.delivered}", field="position")
    return reader
