"""A broker that is away, or that answers reads and refuses writes."""

from __future__ import annotations

from domain.errors import QueueUnavailable


class Outage:
    """A switch that all fakes of one broker look at."""

    def __init__(self) -> None:
        self.down = False
        #: As Redis with a full disk or memory, or one that has become a replica.
        self.refuses_writes = False

    @property
    def takes_writes(self) -> bool:
        return not self.down and not self.refuses_writes

    def check(self) -> None:
        if self.down:
            message = "the broker is down"
            raise QueueUnavailable(message)

    def check_write(self) -> None:
        self.check()
        if self.refuses_writes:
            message = "the broker refuses writes"
            raise QueueUnavailable(message)
