"""Timestamps of OpenAI's dialects."""

from __future__ import annotations

from datetime import datetime


def unix_seconds(instant: str) -> int:
    """Return an RFC 3339 instant of the event log in Unix seconds."""
    return int(datetime.fromisoformat(instant).timestamp())
