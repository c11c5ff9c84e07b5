"""Reads server-sent events, and cuts open connections."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from bench.chaos.history import Item


class OpenStreams:
    """The streams that are open at the moment, so that another thread can cut them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    @contextmanager
    def holding(self, response: httpx.Response) -> Iterator[None]:
        """Allow the connection of ``response`` to be cut within the block."""
        line: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        with self._lock:
            self._open.add(line)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(line)

    def cut(self, chance: random.Random) -> int:
        """Break about half of the open connections, at least one; return how many."""
        with self._lock:
            chosen = [line for line in self._open if chance.random() < 0.5] or [*self._open][:1]
            for line in chosen:
                with suppress(OSError):  # the connection may have just ended by itself
                    line.shutdown(socket.SHUT_RDWR)
        return len(chosen)


def events_of(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and data of each complete event; comments are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields:
            yield fields.get("event", ""), json.loads(fields["data"])
            fields = {}


def native_item(_: str, data: Any) -> Item:
    """Return the item of an event of ``/v1/jobs/{id}/stream``; an end has its reason as text."""
    text = data.get("text") or data.get("stop_reason") or data.get("error") or ""
    return Item(n=data["n"], attempt=data["a"], kind=data["kind"], text=str(text))
