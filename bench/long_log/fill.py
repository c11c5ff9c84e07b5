"""Writes logs of a given length: jobs of agents over months, with their texts and contexts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import insert

from domain.events.cache import AgentCacheMissed, AgentCacheRestored, AgentCacheSaved
from domain.events.event import Event
from domain.log.record import GENESIS_HASH, Draft, LogHead
from domain.values import JobId, StreamName, digest_of, rfc3339
from ops.adapters.event_log.database import writer_engine
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.migrate import upgrade
from ops.adapters.event_log.row_codec import event_values, link
from ops.adapters.event_log.tables import EVENTS, PAYLOADS
from ops.clock import RandomIds
from tests.support.builders.job_events import completed, started, submitted

#: Agents among which the jobs take turns, as sessions of a client do: a new one after each 50 jobs.
AGENTS_AT_ONCE: Final = 8
JOBS_AN_AGENT: Final = 50
#: Events of one job: three of its own and one of its agent's context.
EVENTS_A_JOB: Final = 4
PAYLOAD_BYTES: Final = 512
#: Time between two jobs; 250,000 jobs take three months.
_PAUSE: Final = timedelta(seconds=30)
_JOBS_A_TRANSACTION: Final = 2000

_INSERT_EVENTS = HotStatement(insert(EVENTS).inline())
_INSERT_PAYLOADS = HotStatement(insert(PAYLOADS).inline())


def fill(url: str, events: int) -> None:
    """Create a log of about ``events`` events, without its projections."""
    upgrade(url)
    engine = writer_engine(url)
    filler = _Filler()
    for numbers in _pages(range(events // EVENTS_A_JOB)):
        with engine.begin() as connection:
            rows = [row for number in numbers for row in filler.job(number)]
            _INSERT_EVENTS.run_many(connection, rows)
            _INSERT_PAYLOADS.run_many(connection, filler.take_payloads())
    engine.dispose()


class _Filler:
    def __init__(self) -> None:
        self._head = LogHead(position=0, hash=GENESIS_HASH)
        self._versions: dict[str, int] = {}
        self._ids = RandomIds()
        self._payloads: list[dict[str, Any]] = []

    def job(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of the events of a job."""
        now = datetime(2026, 1, 1, tzinfo=UTC) + number * _PAUSE
        agent = agent_of(number)
        job = JobId(f"job-{number:032x}")
        content = (f"{number:016x}" * (PAYLOAD_BYTES // 16)).encode()
        digest = digest_of(content)
        self._payloads.append(
            {
                "digest": digest,
                "content": content,
                "bytes": len(content),
                "stored_at": "",
            }
        )
        accepted = replace(submitted(agent=agent), request=digest, asked=digest)
        for event in (accepted, started(), completed()):
            yield self._row(job, event, now, job)
        yield self._row(f"agent-{agent}", _context_event(number, job), now, job)

    def take_payloads(self) -> list[dict[str, Any]]:
        """Return the payloads since the last call."""
        taken, self._payloads = self._payloads, []
        return taken

    def _row(self, stream: str, event: Event, now: datetime, job: str) -> dict[str, Any]:
        version = self._versions[stream] = self._versions.get(stream, 0) + 1
        recorded = link(
            Draft(event_id=self._ids.event_id(), event=event, correlation_id=f"req-{job}"),
            stream=StreamName(stream),
            version=version,
            before=self._head,
            recorded_at=rfc3339(now),
        )
        self._head = LogHead(position=recorded.position, hash=recorded.hash)
        return event_values(recorded)


def agent_of(number: int) -> str:
    """Return the agent of a job."""
    session = number // (AGENTS_AT_ONCE * JOBS_AN_AGENT)
    return f"session-{session}-{number % AGENTS_AT_ONCE}"


def _context_event(number: int, job: JobId) -> Event:
    kind = number % 3
    if kind == 0:
        return AgentCacheSaved(job=job, fingerprint="f", blocks=("a" * 64,), tail=None, tokens=256)
    if kind == 1:
        return AgentCacheRestored(
            job=job, source="ram", tokens=256, disk_tokens=0, prompt_tokens=300, took_ms=1.5
        )
    return AgentCacheMissed(job=job, reason="diverged", at_token=100, missed_tokens=156)


def _pages(numbers: Iterable[int]) -> Iterator[list[int]]:
    ahead = iter(numbers)
    while page := list(itertools.islice(ahead, _JOBS_A_TRANSACTION)):
        yield page
