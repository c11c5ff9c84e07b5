"""A client that follows a job and reconnects with the last event id that it read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import httpx

from tests.support.polling import pause, scaled

#: Longest wait for something that takes seconds on an idle machine.
WAIT_S = 120.0
#: Pause between two attempts to reach a restarting service.
PAUSE_S = 0.05


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str | None
    kind: str | None
    data: Any


class JobReader:
    """Follows ``/v1/jobs/{id}/stream`` to its last event on a thread of its own."""

    def __init__(self, base_url: str, job_id: str) -> None:
        self.events: list[Event] = []
        self.connections = 0
        self._url = f"{base_url}/v1/jobs/{job_id}/stream"
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` numbered events have arrived."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.numbered) >= count, scaled(WAIT_S))
        assert came, f"{len(self.numbered)} of {count} events came"

    def whole(self) -> str:
        """Return the text of the ended job; each number came once, the end came last."""
        with self._changed:
            came = self._changed.wait_for(self._has_ended, scaled(WAIT_S))
        assert came, f"no end came; the last was {self.events[-1:]}"
        assert self.events[-1].kind == "finished", self.events[-1]
        assert sum(event.kind in {"finished", "failed"} for event in self.events) == 1
        numbers = [event.data["n"] for event in self.numbered]
        assert numbers == list(range(len(numbers)))
        return "".join(event.data["text"] for event in self.events if event.kind == "text")

    @property
    def numbered(self) -> list[Event]:
        return [event for event in self.events if event.id is not None]

    @property
    def attempts(self) -> set[int]:
        """The attempts whose items arrived."""
        return {event.data["a"] for event in self.numbered}

    def _has_ended(self) -> bool:
        return bool(self.events) and self.events[-1].kind in {"finished", "failed"}

    def _run(self) -> None:
        while not self._stopped and not self._has_ended():
            try:
                self._read()
            except httpx.TransportError:
                pause(PAUSE_S, reason="a client that connects again")

    def _read(self) -> None:
        seen = self.numbered
        headers = {"last-event-id": str(seen[-1].id)} if seen else {}
        with httpx.stream("GET", self._url, headers=headers, timeout=scaled(WAIT_S)) as response:
            if response.status_code != httpx.codes.OK:
                pause(PAUSE_S, reason="a client that connects again")
                return
            self.connections += 1
            for event in _events(response.iter_lines()):
                retry = event.id is None and event.kind == "failed" and event.data["retryable"]
                if retry or self._stopped:
                    return
                with self._changed:
                    self.events.append(event)
                    self._changed.notify_all()


def _events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        if not line and "data" in fields:
            yield Event(fields.get("id"), fields.get("event"), json.loads(fields["data"]))
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
