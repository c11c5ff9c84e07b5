"""Parses server-sent events by the standard, independently of our encoder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEvent:
    event: str | None
    id: str | None
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def events_in(stream: bytes) -> list[WireEvent]:
    """Return the events of a stream; bytes after the last blank line are dropped."""
    found: list[WireEvent] = []
    fields: dict[str, list[str]] = {}
    for line in _LINE_END.split(stream.decode())[:-1]:
        if line:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
            continue
        if "data" in fields:
            found.append(
                WireEvent(
                    event=fields.get("event", [None])[-1],
                    id=fields.get("id", [None])[-1],
                    data="\n".join(fields["data"]),
                )
            )
        fields = {}
    return found
