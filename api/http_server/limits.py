"""Bounds of connections, requests and replies, and who has taken how much of what all share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from api.errors import TransportError
from api.http.messages import UNIDENTIFIED, Caller
from domain.shares import Shares

#: Bytes of memory for each byte of a body: Robyn keeps a copy while the handler runs, hands over
#: another one, and the handler gets the third. By then the shield has none.
BODY_COPIES: Final = 3
#: First bytes of each body, which are not counted: small requests pass while large ones fill the
#: budget.
FREE_BYTES: Final = 65_536
#: An IPv6 host may use any address of its /64.
_HOST_BITS: Final = 64
#: The name of all loopback addresses: a program of this machine may use any of them.
_THIS_MACHINE: Final = "loopback"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of a connection, a request and a reply.

    Attributes:
        head_bytes_max: Request line and header fields together; also each chunk line and trailer.
        headers_max: Header fields of one request; Robyn takes 96, and the shield adds some.
        body_bytes_max: One upload, after chunks are joined.
        request_bytes_max: One body of any other request.
        bodies_bytes_max: Memory for all bodies that are held.
        upload_paths: Encoded paths that take uploads.
        head_timeout_s: From the first byte of a head to its last.
        body_timeout_s: From the end of the head to the end of the body.
        idle_timeout_s: Without a byte between two requests.
        connections_max: Client connections that are served.
        loopback_connections_max: Those of them from this machine.
        peer_connections_max: Those of them from the address of another machine.
        refusals_max: Connections beyond one of these that get an error; further ones are dropped
            without a reply.
        stall_timeout_s: How long a client may take no byte of a reply.
        write_buffer_bytes: Unsent bytes of a reply above which its source has to wait.
        stream_window_bytes: Bytes of a stream that are on their way from its source to the client
            at once.
        linger_s: How long bytes are read and dropped after an early error, so that the client can
            read the reply before the connection resets.
        linger_bytes_max: How many bytes are dropped that way.
        close_timeout_s: How long the iterator of a stream may take to clean up.
        robyn_head_bytes_max: Of a head as Robyn gets it; it cuts connections from 128 KiB on.
    """

    head_bytes_max: int = 32_768
    headers_max: int = 90
    body_bytes_max: int = 32 * 1024 * 1024
    request_bytes_max: int = 8 * 1024 * 1024
    bodies_bytes_max: int = 384 * 1024 * 1024
    upload_paths: frozenset[str] = frozenset()
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    connections_max: int = 2048
    loopback_connections_max: int = 1920
    peer_connections_max: int = 256
    refusals_max: int = 64
    stall_timeout_s: float = 600.0
    write_buffer_bytes: int = 65_536
    stream_window_bytes: int = 65_536
    linger_s: float = 2.0
    linger_bytes_max: int = 64 * 1024 * 1024
    close_timeout_s: float = 5.0
    robyn_connect_timeout_s: float = 5.0
    robyn_head_bytes_max: int = 120_000


class BrokenFraming(TransportError):
    """A request whose end is unknown: the connection closes after the reply."""


class Deadline:
    """Calls a function once a time is over, unless it is stopped or set again before."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether it was set and not stopped since."""
        return self._handle is not None

    def set(self, limit_s: float, too_late: Callable[[], None]) -> None:
        """Begin the time anew."""
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(limit_s, too_late)

    def stop(self) -> None:
        """Call nothing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class BodyShare:
    """The memory that one body takes of the memory for all.

    It counts against the key, if there are several, and against the address. A proxy on this
    machine is one address for all, so there only requests without a key count against it.

    Args:
        memory: Bytes of all bodies beyond the first ``FREE_BYTES`` of each; keys and addresses have
            shares of it.
    """

    def __init__(self, memory: Shares, address: str, caller: Caller) -> None:
        self._memory = memory
        peer, is_local = peer_of(address)
        self._holders = [] if caller.sharer is None else [f"key {caller.sharer}"]
        if not is_local or caller == UNIDENTIFIED:
            self._holders.append(f"address {peer}")
        self._size_bytes = 0
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count further bytes of the body, before they are kept.

        Raises:
            BrokenFraming: The memory is used up, 503, or the share of the key or the address, 429;
                the request may be repeated.
        """
        self._size_bytes += size_bytes
        wanted_bytes = max(0, self._size_bytes - FREE_BYTES) * BODY_COPIES
        found = self._memory.take(self._holders, wanted_bytes - self._taken_bytes)
        if found is None:
            self._taken_bytes = wanted_bytes
        elif found.of_holder:
            message = (
                "the bodies of your key or address take the"
                f" {found.limit} bytes of memory that they may have at once; repeat the request"
            )
            raise BrokenFraming(429, "too_many_bodies_of_one", message, retryable=True)
        else:
            message = (
                f"the bodies of other requests take the {found.limit} bytes of memory for all;"
                " repeat the request"
            )
            raise BrokenFraming(503, "too_many_bodies", message, retryable=True)

    def give_back(self) -> None:
        """Count the body no longer."""
        self._memory.give_back(self._holders, self._taken_bytes)
        self._taken_bytes = 0


class PeerCounts:
    """Connections by peer, so that one peer cannot take all; belongs to one event loop."""

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
        refusal = None
        if surplus > 0:
            message = f"{limits.connections_max} connections are open already"
            refusal = BrokenFraming(503, "too_many_connections", message, retryable=True)
        elif peer_surplus > 0:
            message = f"{peer_max} connections from this address are open already"
            refusal = BrokenFraming(429, "too_many_connections_of_peer", message, retryable=True)
        return refusal, max(surplus, peer_surplus) > limits.refusals_max

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
