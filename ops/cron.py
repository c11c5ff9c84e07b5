"""Cron expressions in time zones, read by ``cronsim``; its module is imported on use only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from domain.errors import InvalidRequest

#: Fields of an expression: minute, hour, day of the month, month, day of the week.
FIELDS: Final = 5


class CronsimTable:
    """``CronTable``. Around a change of the clocks it does what Debian's cron does.

    A job at a time that does not exist on a day runs after the gap; one at a time that exists
    twice runs once. Expressions whose minute or hour begins with ``*`` follow the time that passes.
    """

    def after(self, cron: str, timezone: str, at: datetime) -> Iterator[datetime]:
        """See ``CronTable.after``."""
        from cronsim import CronSim  # noqa: PLC0415 - most processes need none

        for instant in CronSim(cron, at.astimezone(_zone(timezone))):
            yield instant.astimezone(UTC)

    def latest(self, cron: str, timezone: str, at: datetime) -> datetime:
        """See ``CronTable.latest``."""
        from cronsim import CronSim  # noqa: PLC0415 - most processes need none

        start = (at + timedelta(seconds=1)).astimezone(_zone(timezone))
        return next(CronSim(cron, start, reverse=True)).astimezone(UTC)

    def check(self, cron: str, timezone: str, at: datetime) -> datetime:
        """Return the first instant after ``at``.

        Raises:
            InvalidRequest: There is no such zone, the expression is none, or it never comes.
        """
        from cronsim import CronSimError  # noqa: PLC0415 - most processes need none

        try:
            _zone(timezone)
        except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            msg = "must be a time zone such as Europe/Berlin or UTC"
            raise InvalidRequest(msg, field="timezone") from None
        if len(cron.split()) != FIELDS:
            msg = "must have five fields: minute, hour, day, month, day of the week"
            raise InvalidRequest(msg, field="cron")
        try:
            found = list(islice(self.after(cron, timezone, at), 1))
        except CronSimError as error:
            raise InvalidRequest(str(error).lower(), field="cron") from None
        if not found:
            raise InvalidRequest("there is no such day", field="cron")
        return found[0]


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
