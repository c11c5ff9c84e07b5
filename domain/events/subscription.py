"""Events of the named readers of the log, on the stream ``subscriptions``."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from domain.values import Owner, ParkReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionCreated:
    """A reader wants the events of some types.

    Attributes:
        owner: The API key whose events alone it gets, and which alone sees it; ``None`` for all.
        types: Empty for all types but those of this module.
        position: It gets events above this position.
        url: Where they are sent as webhooks; ``None`` for a reader that fetches them.
    """

    name: str
    owner: Owner | None
    types: tuple[str, ...]
    position: int
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDelivered:
    """A reader was given its next events; ``through`` is the position of the last of them."""

    name: str
    owner: Owner | None
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionAcknowledged:
    """A reader has dealt with all of its events up to ``position``."""

    name: str
    owner: Owner | None
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionEventParked:
    """The event at ``position`` is given to the reader no more."""

    name: str
    owner: Owner | None
    position: int
    reason: ParkReason


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDeleted:
    """A reader was deleted; its name may be used again."""

    name: str
    owner: Owner | None


SubscriptionEvent = (
    SubscriptionCreated
    | SubscriptionDelivered
    | SubscriptionAcknowledged
    | SubscriptionEventParked
    | SubscriptionDeleted
)
#: Each delivery adds such events, so that a reader of them would never reach the end of the log.
UNSUBSCRIBABLE = frozenset(cls.__name__ for cls in typing.get_args(SubscriptionEvent))
