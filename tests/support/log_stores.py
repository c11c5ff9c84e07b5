"""The stores that every log contract runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from domain.listing import JobViews
from domain.ports import EventLog, PayloadStore
from ops.adapters.sqlite_event_log import open_log
from tests.support.fake_log import InMemoryEventLog
from tests.support.fake_time import FakeClock
from tests.support.log_files import new_log


class Log(EventLog, PayloadStore, Protocol):
    """What a log adapter is: events, and the payloads that they name."""


@dataclass
class Store:
    """A log, what is listed out of it, and the clock that stamps it."""

    log: Log
    views: JobViews
    clock: FakeClock


@contextmanager
def opened_store(kind: str, directory: Path) -> Iterator[Store]:
    """Open a fresh store: ``fake`` or ``sqlite``."""
    clock = FakeClock()
    if kind == "fake":
        fake = InMemoryEventLog(clock)
        yield Store(fake, fake.views, clock)
        return
    with open_log(new_log(directory), clock=clock) as real:
        yield Store(real, real.views, clock)
