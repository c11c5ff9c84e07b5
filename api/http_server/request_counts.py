"""Counts of the connections and requests of one api process."""

from __future__ import annotations

from collections import Counter
from typing import Final

#: The route of requests that match none, or that are refused before one is looked up.
UNROUTED: Final = "unrouted"
#: Counted as the status of a request whose client left before the reply, as nginx does.
CLIENT_LEFT: Final = 499


class RequestCounts:
    """What the HTTP server has counted; written by its event loop, read by any thread.

    Attributes:
        connections: Open connections.
        in_flight: Requests whose reply is not complete.
        replies: Replies by the pattern of the route and the status; bounded, since both are few.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.in_flight = 0
        self.replies: Counter[tuple[str, int]] = Counter()

    def record(self, route: str, status: int) -> None:
        """Count a reply."""
        self.replies[route, status] += 1
