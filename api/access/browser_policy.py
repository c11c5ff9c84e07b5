"""Protection from web pages: the host names of the service, and the origins that may use it.

A foreign page can make its own name resolve to 127.0.0.1 (DNS rebinding): the browser then treats
replies of this service as those of the page. It still sends the foreign name as ``host``.

A browser lets any page send simple requests anywhere, ``text/plain`` bodies among them; CORS only
withholds the reply from the page. So a request of an unlisted origin is refused before it has
effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final

from api.errors import TransportError
from api.http.messages import Reply

#: How long a browser may cache the reply to a preflight, in seconds.
PREFLIGHT_AGE_S: Final = 600

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/]+)(?::\d{1,5})?", re.IGNORECASE)
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound
_METHODS: Final = "GET, POST, PATCH, DELETE"
_EXPOSED: Final = (
    "request-id, x-semantic-trace, x-semantic-warning, retry-after, x-should-retry, location"
)
_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Hosts:
    """The host names of the service. Ports are ignored, since they may be forwarded.

    Args:
        listening: The host of the settings; a wildcard adds no name.
        allowed: Further names.
    """

    def __init__(self, *, listening: str, allowed: Iterable[str]) -> None:
        own = () if listening in _ANY else (listening,)
        self._names = {_bare(name) for name in ("localhost", *own, *allowed)}

    def check(self, target: str, host: str | None) -> None:
        """Refuse a request for another host.

        Args:
            target: As sent; the host of its absolute form counts too (RFC 9112 §3.2).
            host: The header. Browsers always send it, HTTP/1.0 clients need not.

        Raises:
            TransportError: 403.
        """
        names = [host] if host is not None else []
        if not target.startswith("/") and "://" in target:
            names.append(re.split(r"[/?#]", target.partition("://")[2], maxsplit=1)[0])
        for name in names:
            if not self._knows(name):
                message = (
                    f"this service does not answer as {name[:100]!a}; names beside localhost are"
                    " listed in server.allowed_hosts"
                )
                raise TransportError(403, "host_not_allowed", message)

    def _knows(self, authority: str) -> bool:
        found = _AUTHORITY.fullmatch(authority)
        if found is None:
            return False
        name = _bare(found[1])
        return name in self._names or _is_loopback(name)


class Origins:
    """The origins whose pages may use the service, beside its own page.

    The service's own origin is the host that the request names, which ``Hosts`` has checked.

    Args:
        allowed: Scheme, host and optional port, as browsers write them.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a request of a page with an unlisted origin.

        Raises:
            TransportError: 403.
        """
        origin = headers.get("origin")
        if origin is not None:
            if not self._allows(origin) and not _is_own(origin, headers):
                message = (
                    f"pages of {origin[:100]!a} may not use this service; those that may are"
                    " listed in server.cors_origins"
                )
                raise TransportError(403, "origin_not_allowed", message)
            return
        # Requests for images and scripts of another site have no origin. Browsers have marked them
        # with sec-fetch-site since 2023.
        mode = headers.get("sec-fetch-mode")
        if headers.get("sec-fetch-site") == "cross-site" and mode != "navigate":
            message = "another site's page may not use this service"
            raise TransportError(403, "origin_not_allowed", message)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of a reply that let a listed page read it."""
        origin = headers.get("origin")
        if origin is None or not self._allows(origin):
            return _NOTHING
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": _EXPOSED,
            "vary": "origin",
        }

    def preflight(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """Return the reply to a preflight of a listed page, ``None`` for other requests."""
        if not self.is_preflight(method, headers):
            return None
        names = headers.get("access-control-request-headers", "")
        allowed = {
            "access-control-allow-methods": _METHODS,
            "access-control-max-age": str(PREFLIGHT_AGE_S),
        }
        # Any header may be sent: the request itself is checked when it comes.
        if _NAMES.fullmatch(names):
            allowed["access-control-allow-headers"] = names
        if headers.get("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
        return Reply(status=204, headers=allowed)

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether a request is a preflight, which browsers send without a key."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and self._allows(headers.get("origin", ""))
        )

    def _allows(self, origin: str) -> bool:
        return origin.lower() in self._allowed


def _is_own(origin: str, headers: Mapping[str, str]) -> bool:
    """Whether an origin is the service's; a proxy in front may add TLS, so both schemes count."""
    scheme, _, authority = origin.lower().partition("://")
    is_same = headers.get("sec-fetch-site", "same-origin") == "same-origin"
    host = headers.get("host", "").lower()
    return is_same and scheme in {"http", "https"} and bool(host) and authority == host


def _bare(name: str) -> str:
    """Return a name in lower case, without brackets and a final dot."""
    return name.strip("[]").lower().removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
