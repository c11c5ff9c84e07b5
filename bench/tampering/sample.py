"""Records a small log with everything that can be changed: events, texts, archives, heads."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from domain.events.cache import AgentCacheRestored
from domain.events.event import Event
from domain.events.job import JobCancelled, JobCancelRequested, JobFailed
from domain.log.record import Draft
from domain.values import Digest, JobId, StreamName, Usage, digest_of, rfc3339
from domain.webhook.delivery import DueHost, Webhook, WebhookId
from ops.clock import RandomIds
from ops.log.admin.archive import archive_log
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log
from ops.log.database import reader_engine
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.webhooks.store import SqlWebhookStore
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.fakes.time import FakeClock

LOG_NAME = "events.sqlite3"
#: Jobs before and after the archive.
_JOBS = 12
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class _StepClock(FakeClock):
    """Advances a second at each look."""

    def now(self) -> datetime:
        self.advance(1)
        return super().now()


class _Recorder:
    """Appends the events of one log after another."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.url = url_of(directory)
        self.clock = _StepClock()
        self._directory = directory
        self._random = random.Random(seed)

    def record(self, log: SqlEventLog, first: int, last: int) -> None:
        for number in range(first, last):
            self._job(log, number)

    def sign(self) -> None:
        engine = reader_engine(self.url)
        try:
            sign_log(engine, CheckpointFiles.of(self._directory), clock=self.clock)
        finally:
            engine.dispose()

    def _job(self, log: SqlEventLog, number: int) -> None:
        job, agent = JobId(f"job-{number:04d}"), f"agent {number % 3}"
        request, output = (self._text() for _ in range(2))
        events: list[Event] = [replace(submitted(agent=agent), request=digest_of(request))]
        if number % 4:
            events.append(started())
        if number % 4 == 1:
            events.append(replace(completed(), output=digest_of(output)))
        elif number % 4 == 2:
            events.append(JobFailed(error="engine_failure", message="a step failed"))
        payloads = {digest_of(text): text for text in (request, output)}
        self._append(log, job, events, payloads)
        if number % 4 == 3:
            cancelled = JobCancelled(attempt=1, usage=Usage(prompt_tokens=10))
            wish = JobCancelRequested(reason="no longer needed")
            self._append(log, job, [wish, cancelled], {}, after=2)
        if number % 4:
            restored = AgentCacheRestored(
                job=job, source="ram", tokens=8, disk_tokens=0, prompt_tokens=12, took_ms=1.5
            )
            self._append(log, f"agent-{agent}", [restored], {}, after=None)
        if not number:
            self._append(log, "worker-1", [worker_event()], {})

    def _text(self) -> bytes:
        return self._random.randbytes(self._random.choice((40, 700, 9000)))

    def _append(
        self,
        log: SqlEventLog,
        stream: str,
        events: list[Event],
        payloads: dict[Digest, bytes],
        *,
        after: int | None = 0,
    ) -> None:
        name = StreamName(stream)
        drafts: list[Draft] = [draft(event) for event in events]
        if after is None:
            before = log.load(name)
            after = before[-1].version if before else 0
        log.append(name, drafts, expected_version=after, payloads=payloads)


def record_sample(directory: Path, *, seed: int) -> None:
    """Record a log in ``directory``: an archive, signed heads, webhooks, and a write-ahead log."""
    recording = directory.with_name(directory.name + ".recording")
    recording.mkdir(parents=True)
    recorder = _Recorder(recording, seed)
    upgrade(recorder.url)
    with open_log(recorder.url, clock=recorder.clock) as log:
        recorder.record(log, 0, _JOBS)
        recorder.sign()
    archive_log(
        recorder.url,
        before=rfc3339(recorder.clock.now()),
        clock=recorder.clock,
        ids=RandomIds(),
    )
    recorder.sign()
    add_webhooks(recorder.url)
    with open_log(recorder.url, clock=recorder.clock) as log:
        recorder.record(log, _JOBS, 2 * _JOBS)
    recorder.sign()
    with open_log(recorder.url, clock=recorder.clock) as log:
        recorder.record(log, 2 * _JOBS, 2 * _JOBS + 4)
        recorder.sign()
        # As a killed process leaves it: the last commits are in the write-ahead log only.
        shutil.copytree(recording, directory, ignore=shutil.ignore_patterns("*-shm", "*.lock"))
    shutil.rmtree(recording)


def url_of(directory: Path) -> str:
    """Return the URL of the log in a directory."""
    return f"sqlite:///{directory / LOG_NAME}"


def add_webhooks(url: str) -> None:
    """Add five webhooks; attempts of two of them have begun."""
    store = SqlWebhookStore(url)
    now = rfc3339(_BEGINNING)
    first = Webhook(
        id=WebhookId("webhook-1"),
        subject="job-0001",
        event="job.completed",
        url="https://receiver.example/a",
        host="receiver.example:443",
        position=4,
        body=b'{"type":"job.completed"}',
        created_at=now,
        next_at=now,
    )
    others = [
        replace(first, id=WebhookId(f"webhook-{number}"), subject=f"job-{number:04d}")
        for number in range(2, 6)
    ]
    try:
        store.add([first, *others], position=4)
        store.claim(
            DueHost(first.host), now=now, until=rfc3339(_BEGINNING + timedelta(hours=1)), limit=2
        )
    finally:
        store.close()
