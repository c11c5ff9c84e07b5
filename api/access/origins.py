"""Which web pages may speak to the service: those on the list, and no other.

A browser lets any page send simple requests anywhere, ``text/plain`` bodies among them; CORS only
keeps the answer from it. So an origin that is not listed is refused before anything has effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from api.errors import TransportError
from api.http.messages import Reply

#: How long a browser may remember the answer to a preflight.
PREFLIGHT_AGE_S: Final = 600

_METHODS: Final = "GET, POST, DELETE"
_EXPOSED: Final = "request-id, retry-after, x-should-retry, location"
_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Origins:
    """The list.

    Args:
        allowed: Scheme, host and perhaps a port each, as browsers write them.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse what a page sends that is not on the list.

        Raises:
            TransportError: 403.
        """
        origin = headers.get("origin")
        if origin is not None:
            if not self._allows(origin):
                message = (
                    f"pages of {origin[:100]!a} may not use this service; those that may are"
                    " listed in server.cors_origins"
                )
                raise TransportError(403, "origin_not_allowed", message)
            return
        # Images and scripts of another page come without an origin, but say so since 2023.
        mode = headers.get("sec-fetch-mode")
        if headers.get("sec-fetch-site") == "cross-site" and mode != "navigate":
            message = "another site's page may not use this service"
            raise TransportError(403, "origin_not_allowed", message)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return what an answer says to the browser, so that a listed page may read it."""
        origin = headers.get("origin")
        if origin is None or not self._allows(origin):
            return _NOTHING
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": _EXPOSED,
            "vary": "origin",
        }

    def preflight(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """Answer a browser that asks beforehand whether a listed page may send something.

        Returns:
            ``None`` where nobody asks that.
        """
        if not self.is_preflight(method, headers):
            return None
        asked = headers.get("access-control-request-headers", "")
        allowed = {
            "access-control-allow-methods": _METHODS,
            "access-control-max-age": str(PREFLIGHT_AGE_S),
        }
        # Any header may be sent: what counts is checked when the request itself comes.
        if _NAMES.fullmatch(asked):
            allowed["access-control-allow-headers"] = asked
        if headers.get("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
        return Reply(status=204, headers=allowed)

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Tell whether a request is one that browsers send by themselves, without a key."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and self._allows(headers.get("origin", ""))
        )

    def _allows(self, origin: str) -> bool:
        return origin.lower() in self._allowed
