"""Admits requests by their head: host name, origin, API key, and rate limits, in this order."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final

from api.access.limits import Rate
from api.errors import TransportError
from api.http.messages import KEYLESS, UNIDENTIFIED, Caller, Reply
from api.ui.page import is_page_path, wants_page
from domain.errors import RateLimited
from domain.shares import Shares
from ops.settings.api_keys import (
    SUPERVISOR_KEY,
    ApiKey,
    KeyScope,
    digest_of_key,
    read_keys,
    scopes_of,
)
from ops.settings.service import ServerSettings

#: How long a browser may cache the reply to a preflight, in seconds.
PREFLIGHT_AGE_S: Final = 600

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/]+)(?::\d{1,5})?", re.IGNORECASE)
_HOST_NAME = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.?", re.IGNORECASE)
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound
_METHODS: Final = "GET, POST, PATCH, DELETE"
_EXPOSED: Final = (
    "request-id, x-semantic-trace, x-semantic-warning, retry-after, x-should-retry, location, "
    "etag, stream-next-offset, stream-cursor, stream-up-to-date, stream-closed"
)
_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Hosts:
    """The host names of the service. Ports are ignored, since they may be forwarded.

    Args:
        listening: The host of the settings; a wildcard adds no name.
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
                raise TransportError(403, "host_not_allowed", _how_to_allow(name))

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


def _how_to_allow(name: str) -> str:
    """Return the refusal of a host; for a name, with the setting that allows it."""
    refused = f"this service does not answer as {name[:100]!a}"
    found = _AUTHORITY.fullmatch(name[:100])
    if found is None or not _HOST_NAME.fullmatch(found[1]):
        return f"{refused}; names beside localhost are listed in server.allowed_hosts"
    bare = _bare(found[1])
    return (
        f'{refused}; if the name is yours, set server.allowed_hosts = ["{bare}"] in semantic.toml,'
        f""" or SEMANTIC_SERVER__ALLOWED_HOSTS='["{bare}"]'"""
    )


def _bare(name: str) -> str:
    """Return a name in lower case, without brackets and a final dot."""
    return name.strip("[]").lower().removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


#: Requests without a key, in this spelling only: the liveness check, and the first request of
#: Claude Code, whose reply is public.
_OPEN: Final = frozenset({("GET", "/health/live"), ("HEAD", "/health/live"), ("HEAD", "/")})
_READING: Final = frozenset({"GET", "HEAD"})
#: Challenges of RFC 6750: the error is named only where a key was sent.
_NO_KEY: Final = 'Bearer realm="semantic"'
_WRONG_KEY: Final = f'{_NO_KEY}, error="invalid_token"'
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


class KeyRing:
    """The API keys of the settings.

    Args:
        keys: If there are none, every request is admitted.
        scopes: Scopes of the settings, by the name of the key.
    """

    def __init__(
        self, keys: Sequence[ApiKey], scopes: Mapping[str, KeyScope] = MappingProxyType({})
    ) -> None:
        self._keys = tuple(keys)
        self._scopes = scopes_of(keys, scopes)
        named = sum(key.name != SUPERVISOR_KEY for key in keys)
        self._is_one = named == 1
        #: Whether keys have to share what is common.
        self.has_several = named > 1

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the holder of the key of a request with its scope; raises as ``holder``."""
        name = self.holder(headers)
        if not name:
            return KEYLESS
        return Caller(name=name, scope=self._scopes[name], is_alone=self._is_one)

    def holder(self, headers: Mapping[str, str]) -> str:
        """Return the name of the key of a request; empty if the settings have no keys.

        Both headers count, ``authorization: Bearer`` and ``x-api-key``: clients that read both
        environment variables send both, and one of the keys may belong to another service.

        Raises:
            TransportError: 401, with a challenge.
        """
        if not self._keys:
            return ""
        found = ""
        for given in _given(headers):
            digest = digest_of_key(given)
            for key in self._keys:
                # No early return: the time must not depend on which key is right.
                if hmac.compare_digest(digest, key.digest):
                    found = key.name
        if found:
            return found
        message, challenge = "the key is not one of this service's", _WRONG_KEY
        if next(_given(headers), None) is None:
            message = "send a key, as authorization: Bearer KEY or x-api-key: KEY"
            challenge = _NO_KEY
        raise TransportError(
            401, "invalid_api_key", message, headers={"www-authenticate": challenge}
        )


class AdmittedRequest:
    """A request that was admitted.

    Args:
        places: Counts the requests at once, if this one counts.
    """

    def __init__(self, caller: Caller, places: Shares | None) -> None:
        self.caller = caller
        self._places = places

    def leave(self) -> None:
        """Release the place of the request; further calls do nothing."""
        places, self._places = self._places, None
        if places is not None:
            places.give_back([self.caller.name])


class AccessControl:
    """Checks the head of a request, so that a refused client does not send its body.

    Args:
        rate: Requests per minute of a key.
        places: Counts the requests at once of each key.
    """

    def __init__(
        self, *, hosts: Hosts, origins: Origins, keys: KeyRing, rate: Rate, places: Shares
    ) -> None:
        self._hosts = hosts
        self._origins = origins
        self._keys = keys
        self._rate = rate
        self._places = places

    @classmethod
    def from_settings(cls, server: ServerSettings, *, connections_max: int) -> AccessControl:
        """Return the access control of the settings.

        Args:
            connections_max: Connections that are served; several keys share them.
        """
        keys = KeyRing(
            read_keys(key.get_secret_value() for key in server.api_keys), server.key_scopes
        )
        # Each request has a connection, so one key would take all of them by open streams.
        shared = connections_max if keys.has_several else None
        return cls(
            hosts=Hosts(listening=server.host, allowed=server.allowed_hosts),
            origins=Origins(server.cors_origins),
            keys=keys,
            rate=Rate(server.requests_per_minute, whose="key"),
            places=Shares(shared),
        )

    def admit(self, method: str, target: str, headers: Mapping[str, str]) -> AdmittedRequest:
        """Admit a request; the caller must call ``leave`` after its reply.

        Args:
            method: Upper case.
            target: As sent.
            headers: By lower-case name.

        Raises:
            TransportError: 401 without a key of the service, else 403, with the reason.
            RateLimited: With the time of the next try.
        """
        self._hosts.check(target, headers.get("host"))
        self._origins.check(headers)
        path = target.partition("?")[0]
        is_browser = method in _READING and wants_page(path, headers)
        if is_browser or _is_open(method, path) or self._origins.is_preflight(method, headers):
            return AdmittedRequest(UNIDENTIFIED, None)
        caller = self._keys.caller(headers)
        if (found := self._places.take([caller.name])) is not None:
            raise RateLimited(f"this key may have {found.limit} requests open at once")
        admitted = AdmittedRequest(caller, self._places)
        try:
            if not path.startswith("/health/"):
                self._rate.take(caller.name)
        except BaseException:
            admitted.leave()
            raise
        return admitted

    def preflight(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """Return the reply to a preflight; see ``Origins.preflight``."""
        return self._origins.preflight(method, headers)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return headers of every reply to such a request; see ``Origins.headers``."""
        return self._origins.headers(headers)


def _is_open(method: str, path: str) -> bool:
    """Whether a request needs no key; the data of the page needs one, its files do not."""
    return (method, path) in _OPEN or (method in _READING and is_page_path(path))


def _given(headers: Mapping[str, str]) -> Iterator[str]:
    bearer = _BEARER.fullmatch(headers.get("authorization", ""))
    if bearer is not None:
        yield bearer[1]
    if headers.get("x-api-key"):
        yield headers["x-api-key"]
