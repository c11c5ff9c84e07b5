"""The version of this program as a reader of event logs.

A log records the least reader version that its events need. A program refuses a log that needs a
higher version than its own, before it reads or changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from domain.errors import LogNewer

#: What this program can read. A release that adds a type of event or a schema version increments
#: the number once and names what it adds in ``READABLE_SINCE``.
READER_VERSION: Final = 1
#: ``(type, schema version)`` to the first reader version that can read it. What is not named here
#: can be read by every program that checks the version.
READABLE_SINCE: Mapping[tuple[str, int], int] = {}


def reader_needed(type_name: str, schema_version: int) -> int:
    """Return the least reader version that can read an event of this type and version."""
    return READABLE_SINCE.get((type_name, schema_version), 1)


def refuse_newer(reader_min: int) -> None:
    """Refuse a log that needs a newer reader.

    Args:
        reader_min: The least reader version that the log needs.

    Raises:
        LogNewer: This program is older.
    """
    if reader_min > READER_VERSION:
        msg = (
            "a newer version of semantic wrote to the event log "
            f"(it needs reader {reader_min}, this is reader {READER_VERSION}): update semantic"
        )
        raise LogNewer(msg)
