"""Drafts and events of jobs, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from domain.events.event import Event
from domain.events.job import AttemptStarted, JobCompleted, JobSubmitted
from domain.events.worker import WorkerDraining
from domain.job.state import Job
from domain.log.record import GENESIS_HASH, Draft, LogHead, RecordedEvent
from domain.values import (
    AgentId,
    EventId,
    Predecessor,
    Priority,
    PromptEncoding,
    Sampling,
    SamplingWish,
    StopReason,
    StreamName,
    Timings,
    Usage,
    WorkerId,
    digest_of,
)
from ops.clock import uuid7_hex
from ops.log.row_codec import link

#: The texts that the events refer to, by digest.
TEXTS = {digest_of(text): text for text in (b"request", b"output")}


def draft(event: Event, *, event_id: str | None = None, correlation_id: str = "req-1") -> Draft:
    return Draft(
        event_id=EventId(event_id or uuid7_hex()), event=event, correlation_id=correlation_id
    )


def submitted(
    *,
    agent: str | None = None,
    model: str = "m",
    attempts_max: int = 3,
    priority: Priority = Priority.INTERACTIVE,
    key: str | None = None,
    deadline: str | None = None,
    finish_deadline: str | None = None,
    labels: tuple[str, ...] = (),
    unique: str | None = None,
    unique_until: str | None = None,
    start_after: str | None = None,
    after: tuple[Predecessor, ...] = (),
) -> JobSubmitted:
    return JobSubmitted(
        protocol="jobs",
        model=model,
        request=digest_of(b"request"),
        sampling=SamplingWish(seed=7),
        max_tokens=16,
        priority=priority,
        attempts_max=attempts_max,
        agent=AgentId(agent) if agent is not None else None,
        idempotency=digest_of(key.encode()) if key is not None else None,
        asked=digest_of(model.encode("utf-8", "surrogatepass")),
        deadline=deadline,
        finish_deadline=finish_deadline,
        labels=labels,
        unique=digest_of(unique.encode()) if unique is not None else None,
        unique_until=unique_until,
        start_after=start_after,
        after=after,
    )


def started(attempt: int = 1) -> AttemptStarted:
    return AttemptStarted(
        attempt=attempt,
        worker=WorkerId("worker-1"),
        model="m",
        fingerprint="f",
        prompt_tokens=10,
        cached_tokens=4,
        cache_source="ram",
        first_item=0,
        sampling=Sampling(),
        encoding=PromptEncoding.MARKS_AS_TEXT,
    )


def start_command(worker: str = "worker-1", **changes: Any) -> Callable[[Job], AttemptStarted]:
    """Return what proposes the next attempt of a job."""

    def propose(job: Job) -> AttemptStarted:
        return replace(started(job.attempt + 1), worker=WorkerId(worker), **changes)

    return propose


def completed(attempt: int = 1) -> JobCompleted:
    return JobCompleted(
        attempt=attempt,
        stop_reason=StopReason.END_TURN,
        usage=Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3),
        output=digest_of(b"output"),
        token_hash="0" * 64,
        timings=Timings(queued_ms=1.5, prefill_ms=2.25, first_token_ms=3.0, decode_ms=4.125),
    )


def worker_event(name: str = "worker-1") -> WorkerDraining:
    return WorkerDraining(worker=WorkerId(name))


def recorded_at(*events: tuple[float, Event]) -> list[RecordedEvent]:
    """Return the events of one job, each recorded at its second."""
    head = LogHead(position=0, hash=GENESIS_HASH)
    recorded: list[RecordedEvent] = []
    for version, (second, event) in enumerate(events, start=1):
        one = link(
            draft(event),
            stream=StreamName("job-1"),
            version=version,
            before=head,
            recorded_at=f"2026-01-01T00:00:{second:09.6f}Z",
        )
        recorded.append(one)
        head = LogHead(position=one.position, hash=one.hash)
    return recorded
