"""The stores on which every log contract runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from domain.agent.views import AgentViews
from domain.job.listing import JobViews, QueueViews
from domain.log.ports import EventLog, PayloadStore
from domain.usage.figures import UsageViews
from ops.log.sql_event_log import open_log
from tests.support.builders.log_files import new_log
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

#: Parameters of a fixture that opens stores.
STORES = ("fake", "sqlite", "postgres")


class Log(EventLog, PayloadStore, Protocol):
    """A log adapter: events and the payloads that they reference."""


@dataclass
class Store:
    """A log, its projections, and the clock of its timestamps."""

    log: Log
    views: JobViews
    queue_views: QueueViews
    usage: UsageViews
    agents: AgentViews
    clock: FakeClock


@contextmanager
def opened_store(request: pytest.FixtureRequest, directory: Path) -> Iterator[Store]:
    """Open a fresh store of the kind that the parameter of a fixture names."""
    clock = FakeClock()
    if request.param == "fake":
        fake = InMemoryEventLog(clock)
        yield Store(fake, fake.views, fake.queue_views, fake.usage, fake.agents, clock)
        return
    with open_log(new_log_of(request, directory), clock=clock) as real:
        yield Store(real, real.views, real.views, real.usage, real.agents, clock)


def new_log_of(request: pytest.FixtureRequest, directory: Path) -> str:
    """Return the URL of an empty log: in a file, or on the server of this session."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return new_log(directory)
