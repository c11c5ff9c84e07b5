"""Whose key a request carries, and what the operations need of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from domain.values import Owner
from ops.setting_groups.api_keys import KeyScope


class Access(StrEnum):
    """What an operation needs; each scope of a key has some of them.

    ``READ`` shows what the key may see, ``CHANGE`` makes or changes things of the key,
    ``READ_ALL`` shows what belongs to no single key, and ``OPERATE`` changes the whole service.
    """

    READ = "read"
    CHANGE = "change"
    READ_ALL = "read_all"
    OPERATE = "operate"


_GRANTED = {
    KeyScope.ADMIN: frozenset(Access),
    KeyScope.OWN: frozenset({Access.READ, Access.CHANGE}),
    KeyScope.READ: frozenset({Access.READ, Access.READ_ALL}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of the key of a request; without keys, all clients are one admin.

    Attributes:
        name: Name of the key; empty without keys.
        is_alone: Whether the service has no other key.
    """

    name: str = ""
    scope: KeyScope = KeyScope.ADMIN
    is_alone: bool = True

    @property
    def owner(self) -> Owner | None:
        """The owner of what the caller makes."""
        return Owner(self.name) if self.name else None

    @property
    def sees(self) -> Owner | None:
        """The only owner whose things the caller may see; ``None`` for all."""
        return Owner(self.name) if self.scope is KeyScope.OWN else None

    @property
    def sharer(self) -> Owner | None:
        """Whose share of common limits counts; ``None`` where the service has no other key."""
        return None if self.is_alone else self.owner

    @property
    def keyspace(self) -> str:
        """As in ``NewJob``."""
        return "" if self.is_alone else self.name

    def may(self, access: Access) -> bool:
        """Return whether the scope of the key has an access."""
        return access in _GRANTED[self.scope]


#: The caller of a service without keys.
KEYLESS = Caller()
#: The caller of the few paths that need no key: it owns nothing and sees nothing.
UNIDENTIFIED = Caller(scope=KeyScope.OWN, is_alone=False)
