"""All doors in their order: the host's name, the page's origin, the key, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from api.access.api_keys import KeyRing
from api.access.hosts import Hosts
from api.access.origins import Origins
from api.access.rate_limits import Rate, RateLimiter
from api.http.messages import Reply
from ops.api_keys import read_keys
from ops.settings import ServerSettings

#: Asked without a key, in this spelling only: is the process alive; and what Claude Code sends
#: before anything else, which has no answer to hide.
_OPEN: Final = frozenset({("GET", "/health/live"), ("HEAD", "/health/live"), ("HEAD", "/")})


class AdmittedRequest:
    """One request that came in.

    Args:
        holder: Name of its key; empty where none was asked for.
        places: Where it takes a place, if it does.
    """

    def __init__(self, holder: str, places: RateLimiter | None) -> None:
        self.holder = holder
        self._places = places

    def leave(self) -> None:
        """Make room; further calls do nothing."""
        places, self._places = self._places, None
        if places is not None:
            places.leave(self.holder)


class AccessControl:
    """Checks a request by its head alone, so that nobody who is refused gets to send a body.

    Args:
        hosts: Under which names we answer.
        origins: Which pages may ask.
        keys: Who may ask.
        rate: How often a holder of a key may.
        places: And how many times at once.
    """

    def __init__(
        self, *, hosts: Hosts, origins: Origins, keys: KeyRing, rate: Rate, places: RateLimiter
    ) -> None:
        self._hosts = hosts
        self._origins = origins
        self._keys = keys
        self._rate = rate
        self._places = places

    @classmethod
    def from_settings(cls, server: ServerSettings) -> AccessControl:
        """Build what the settings ask for."""
        return cls(
            hosts=Hosts(listening=server.host, allowed=server.allowed_hosts),
            origins=Origins(server.cors_origins),
            keys=KeyRing(read_keys(key.get_secret_value() for key in server.api_keys)),
            rate=Rate(server.requests_per_minute, whose="key"),
            places=RateLimiter(server.requests_at_once, whose="key"),
        )

    def enter(self, method: str, target: str, headers: Mapping[str, str]) -> AdmittedRequest:
        """Let a request in; its ``leave`` must be called once it is answered.

        Args:
            method: Upper case.
            target: As sent.
            headers: By lower-case name.

        Raises:
            TransportError: 403, with the reason.
            RateLimited: Saying when to try again.
        """
        self._hosts.check(target, headers.get("host"))
        self._origins.check(headers)
        path = target.partition("?")[0]
        if (method, path) in _OPEN or self._origins.is_preflight(method, headers):
            return AdmittedRequest("", None)
        holder = self._keys.holder(headers)
        self._places.enter(holder)
        visit = AdmittedRequest(holder, self._places)
        try:
            if not path.startswith("/health/"):
                self._rate.take(holder)
        except BaseException:
            visit.leave()
            raise
        return visit

    def preflight(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """Answer a preflight; see ``Origins.preflight``."""
        return self._origins.preflight(method, headers)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return what every answer to such a request carries; see ``Origins.headers``."""
        return self._origins.headers(headers)
