"""Counts the connections of each peer, so that one peer cannot take all."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Final

from api.http_server.errors import BrokenFraming, too_many_connections, too_many_of_peer
from api.http_server.limits import ServerLimits

#: An IPv6 host may use any address of its /64.
_HOST_BITS: Final = 64
#: The name of all loopback addresses: a program of this machine may use any of them.
_THIS_MACHINE: Final = "loopback"


class PeerCounts:
    """Connections by peer; belongs to one event loop.

    Args:
        limits: Most connections in all, of this machine, and of another one.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()
        #: Open connections.
        self.total = 0

    def enter(self, address: str) -> tuple[BrokenFraming | None, bool]:
        """Count a connection.

        Returns:
            Why it is not served, ``None`` if it is; and whether it is cut without a reply.
        """
        peer, is_local = peer_of(address)
        self.total += 1
        self._counts[peer] += 1
        limits = self._limits
        peer_max = limits.loopback_connections_max if is_local else limits.peer_connections_max
        surplus = self.total - limits.connections_max
        peer_surplus = self._counts[peer] - peer_max
        is_cut = max(surplus, peer_surplus) > limits.refusals_max
        if surplus > 0:
            return too_many_connections(limits.connections_max), is_cut
        if peer_surplus > 0:
            return too_many_of_peer(peer_max), is_cut
        return None, is_cut

    def leave(self, address: str) -> None:
        """Remove a connection."""
        peer, _ = peer_of(address)
        self.total -= 1
        self._counts[peer] -= 1
        if self._counts[peer] <= 0:
            del self._counts[peer]


def peer_of(address: str) -> tuple[str, bool]:
    """Return the name under which an address is counted, and whether it is of this machine."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return _THIS_MACHINE, True  # a Unix socket has no address
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return _THIS_MACHINE, True
    if isinstance(ip, IPv6Address):
        return f"{int(ip) >> _HOST_BITS:x}/64", False
    return str(ip), False
