"""Query parameters with limits, refused in the caller's terms."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from domain.errors import InvalidRequest
from ops.adapters.event_log.row_codec import instant

Query = Mapping[str, Sequence[str]]

_DIGITS = re.compile(r"[0-9]{1,19}")


def text(query: Query, name: str, *, pattern: str | None = None) -> str | None:
    """Return the only value of a parameter, ``None`` if it is not there.

    Raises:
        InvalidRequest: It stands twice, or does not match.
    """
    values = query.get(name, ())
    if not values:
        return None
    if len(values) > 1:
        msg = "given more than once"
        raise InvalidRequest(msg, field=name)
    if pattern is not None and not re.fullmatch(pattern, values[0]):
        msg = f"must match {pattern}"
        raise InvalidRequest(msg, field=name)
    return values[0]


def whole_number(query: Query, name: str, *, default: int, least: int, most: int) -> int:
    """Return a parameter as a number.

    Raises:
        InvalidRequest: It stands twice, is no number, or lies outside the range.
    """
    value = text(query, name)
    if value is None:
        return default
    if not _DIGITS.fullmatch(value) or not least <= int(value) <= most:
        msg = f"must be a whole number from {least} to {most}"
        raise InvalidRequest(msg, field=name)
    return int(value)


def choice(query: Query, name: str, options: Collection[str]) -> str | None:
    """Return a parameter that is one of ``options``.

    Raises:
        InvalidRequest: It stands twice or is none of them.
    """
    value = text(query, name)
    if value is not None and value not in options:
        msg = f"must be one of {', '.join(options)}"
        raise InvalidRequest(msg, field=name)
    return value


def moment(query: Query, name: str) -> str | None:
    """Return an RFC 3339 instant as the log writes it.

    Raises:
        InvalidRequest: It stands twice, is none, or names no time zone.
    """
    value = text(query, name)
    if value is None:
        return None
    try:
        told = datetime.fromisoformat(value)
        if told.tzinfo is not None:
            return instant(told.astimezone(UTC))
    except (ValueError, OverflowError):
        pass
    msg = "must be an RFC 3339 instant such as 2026-01-31T12:00:00Z"
    raise InvalidRequest(msg, field=name)
