"""Under which names the service answers.

A page of a stranger can have its own name resolve to 127.0.0.1 (DNS rebinding): the browser then
takes our answers for its own. But it still sends the stranger's name as ``host``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from api.errors import TransportError

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/]+)(?::\d{1,5})?", re.IGNORECASE)
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound


class Hosts:
    """The names; the port does not matter, for it may be forwarded.

    Args:
        listening: The host of the settings; a wildcard adds no name.
        allowed: Further names.
    """

    def __init__(self, *, listening: str, allowed: Iterable[str]) -> None:
        own = () if listening in _ANY else (listening,)
        self._names = {_bare(name) for name in ("localhost", *own, *allowed)}

    def check(self, target: str, host: str | None) -> None:
        """Refuse a request that was meant for somebody else.

        Args:
            target: As sent; its absolute form names a host too, which then counts (RFC 9112 §3.2).
            host: The header; browsers always send one, HTTP/1.0 need not.

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


def _bare(name: str) -> str:
    """Return a name as it is compared: lower case, without brackets and a closing dot."""
    return name.strip("[]").lower().removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
