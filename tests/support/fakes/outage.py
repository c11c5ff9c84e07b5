"""A broker that is away."""

from __future__ import annotations

from domain.errors import QueueUnavailable


class Outage:
    """A switch that all fakes of one broker look at."""

    def __init__(self) -> None:
        self.down = False

    def check(self) -> None:
        if self.down:
            message = "the broker is down"
            raise QueueUnavailable(message)
