"""Checks webhook URLs: public addresses, and hosts that the operator allows.

A client could otherwise make this machine send requests to hosts that only it can reach
(server-side request forgery, OWASP A10:2021). A host that is no dotted-decimal IPv4 address and no
bracketed IPv6 address is a name, also ``127.1`` or ``0x7f.1``: the sender checks the addresses that
the resolver returns for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
)
from typing import Final
from urllib.parse import urlsplit

from domain.errors import InvalidRequest

#: Characters of a webhook's URL.
URL_CHARS_MAX: Final = 2048
Address = IPv4Address | IPv6Address

_PORTS: Final = {"http": 80, "https": 443}
#: The characters of RFC 3986; a URL with any other character is refused, not repaired.
_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NAME_CHARS_MAX: Final = 253
#: Special-purpose networks (IANA) that are not public or embed IPv4, which not every release of
#: ``ipaddress`` knows.
_REFUSED_V4: Final = tuple(
    IPv4Network(one) for one in ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24")
)
_REFUSED_V6: Final = tuple(
    IPv6Network(one) for one in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
#: Global unicast (RFC 4291): IANA allocates no public address outside it.
_PUBLIC_V6: Final = IPv6Network("2000::/3")
#: IPv6 addresses that carry an IPv4 address in their last 32 bits: compatible, mapped, translated
#: (RFC 4291, RFC 2765) and NAT64 (RFC 6052).
_CARRIERS: Final = tuple(
    IPv6Network(one) for one in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTarget:
    """The parts of a webhook URL.

    Attributes:
        scheme: ``http`` or ``https``.
        host: Lower case, without brackets; an address in its usual spelling.
        port: Defaults to the port of the scheme.
        path: Path and query, beginning with a slash.
        address: The host as an address; ``None`` if it is a name.
    """

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None

    @property
    def authority(self) -> str:
        """Host and port as in the ``Host`` header."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_target(url: str) -> WebhookTarget:
    """Parse the URL of a webhook.

    Raises:
        InvalidRequest: A webhook cannot have this URL, independent of its host.
    """
    if len(url) > URL_CHARS_MAX or not _URL.fullmatch(url):
        raise InvalidRequest(f"must be at most {URL_CHARS_MAX} characters of RFC 3986")
    try:
        parts = urlsplit(url)
        scheme, port = parts.scheme.lower(), parts.port
        host = (parts.hostname or "").removesuffix(".")
    except ValueError as error:
        raise InvalidRequest(f"is no URL: {error}") from error
    if scheme not in _PORTS:
        raise InvalidRequest("must begin with https:// or http://")
    if "@" in parts.netloc:
        raise InvalidRequest("must not carry a user or a password: it stands in the log")
    if "#" in url:
        raise InvalidRequest("must not have a fragment")
    if port == 0:
        raise InvalidRequest("has no such port")
    address = _address(host, bracketed="[" in parts.netloc)
    return WebhookTarget(
        scheme=scheme,
        host=host if address is None else str(address),
        port=port or _PORTS[scheme],
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        address=address,
    )


def refuse_literal(target: WebhookTarget, allow_hosts: Collection[str]) -> None:
    """Refuse a target that is forbidden by its URL alone, without a DNS lookup.

    Raises:
        InvalidRequest: The host is an address, or a name, of this machine or a private network.
    """
    if is_allowed(target, allow_hosts):
        return
    if target.host == "localhost" or target.host.endswith(".localhost"):
        raise InvalidRequest(refusal(target.host, "this machine"))
    if target.address is not None and (why := why_refused(target.address)):
        raise InvalidRequest(refusal(target.host, why))


def refusal(host: str, why: str) -> str:
    """Return the error message for a host that webhooks must not reach."""
    return f"{host} is {why}, and is not in webhooks.allow_hosts"


def is_allowed(target: WebhookTarget, allow_hosts: Collection[str]) -> bool:
    """Whether the operator named this host, with or without its port."""
    return not {target.host, f"{target.host}:{target.port}", target.authority}.isdisjoint(
        allow_hosts
    )


def why_refused(address: Address) -> str | None:
    """Return why webhooks must not reach an address; ``None`` if they may."""
    if isinstance(address, IPv4Address):
        return _why_refused_v4(address)
    if address.scope_id is not None:
        return "a link-local address"
    if address == IPv6Address("::1"):
        return "a loopback address"
    for carrier in _CARRIERS:
        if address in carrier:
            return _why_refused_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    if any(address in network for network in _REFUSED_V6):
        return "not a public address"
    return _why_not_public(address) or (None if address in _PUBLIC_V6 else "not a public address")


def _why_refused_v4(address: IPv4Address) -> str | None:
    if any(address in network for network in _REFUSED_V4):
        return "not a public address"
    return _why_not_public(address)


def _why_not_public(address: Address) -> str | None:
    kinds = (
        (address.is_multicast, "a multicast address"),
        (address.is_loopback, "a loopback address"),
        (address.is_link_local, "a link-local address"),
        (address.is_private, "a private address"),
        (address.is_reserved or not address.is_global, "not a public address"),
    )
    return next((what for applies, what in kinds if applies), None)


def _address(host: str, *, bracketed: bool) -> Address | None:
    """Return the address of a host; ``None`` if the host is a name.

    Raises:
        InvalidRequest: It is neither an address nor a name.
    """
    if bracketed:
        try:
            return IPv6Address(host)
        except ValueError as error:
            raise InvalidRequest("has no such host") from error
    if not _NAME.fullmatch(host) or len(host) > _NAME_CHARS_MAX:
        raise InvalidRequest("has no host, or one that is not in ASCII: write it in punycode")
    try:
        return IPv4Address(host)
    except ValueError:
        return None
