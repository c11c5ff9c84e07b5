"""Instants as options give them: an age such as ``10m``, or ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from domain.values import rfc3339

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")


def parse_instant(text: str, now: datetime) -> str:
    """Return ``10m`` (ago) or an ISO 8601 instant as the log writes instants.

    Raises:
        typer.BadParameter: It is neither.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return rfc3339(now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}))
        moment = datetime.fromisoformat(text)
        # Without an offset it is UTC, as in the log.
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return rfc3339(moment.astimezone(UTC))
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is neither an age such as 10m, 2h or 3d nor an ISO 8601 instant"
        raise typer.BadParameter(msg) from error
