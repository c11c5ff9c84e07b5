"""Load, decide, append: the only way in which a job changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from domain.chat.generation import GenerationTask, Outcome
from domain.chat.items import Failed
from domain.chat.request import ChatRequest
from domain.errors import JobNotFound, Unavailable
from domain.events.job import JobEvent
from domain.job.decisions import JobProposal, decide, failed_attempt
from domain.job.state import Job, fold_recorded
from domain.log.folded_stream import again_after_conflicts
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource
from domain.values import Digest, JobId, ModelCard, StreamName, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedJob:
    """A job with the events that it was folded from."""

    job: Job
    recorded: Sequence[RecordedEvent]


def load_job(job_id: JobId, *, log: EventLog) -> LoadedJob:
    """Fold a job from the log.

    Raises:
        JobNotFound: It has no events.
    """
    recorded = log.load(StreamName(job_id))
    job: Job | None = None
    for event in recorded:
        job = fold_recorded(job, event)
    if job is None:
        raise JobNotFound(job_id)
    return LoadedJob(job=job, recorded=recorded)


def commit(
    job_id: JobId,
    proposal: JobProposal | Callable[[Job], JobProposal | None],
    *,
    log: EventLog,
    ids: IdSource,
    payloads: Mapping[Digest, bytes] | None = None,
) -> Job:
    """Decide on the present state and append; decide again after a concurrent append.

    Args:
        proposal: The event, or a function from the state to it (``None`` for none).
        payloads: Texts that the events refer to, by digest.

    Returns:
        The job after the append.

    Raises:
        JobNotFound: The job has no events.
        JobAlreadyTerminal: From ``decide``.
        StaleAttempt: From ``decide``.
        LogUnavailable: Nothing was written.
    """

    def append() -> Job:
        loaded = load_job(job_id, log=log)
        wanted = proposal(loaded.job) if callable(proposal) else proposal
        events = decide(loaded.job, wanted) if wanted is not None else ()
        if not events:
            return loaded.job
        recorded = log.append(
            StreamName(job_id),
            drafts(events, loaded, ids=ids),
            expected_version=loaded.job.version,
            payloads=payloads,
        )
        return functools.reduce(fold_recorded, recorded, loaded.job)

    return again_after_conflicts(append)


def drafts(events: tuple[JobEvent, ...], loaded: LoadedJob, *, ids: IdSource) -> list[Draft]:
    """Return drafts of the events, each with the id of the one before as its causation."""
    cause = loaded.recorded[-1].event_id
    wrapped: list[Draft] = []
    for event in events:
        draft = Draft(
            event_id=ids.event_id(),
            event=event,
            correlation_id=loaded.job.correlation_id,
            causation_id=cause,
        )
        wrapped.append(draft)
        cause = draft.event_id
    return wrapped


_INTERRUPTED = Failed(
    error=Unavailable.code, message="the broker or the log was unavailable", retryable=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRun:
    """An attempt that reached the engine.

    Attributes:
        submitted_at: When the engine got it.
    """

    task: GenerationTask
    request: ChatRequest
    model: ModelCard
    submitted_at: datetime
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """One delivery of a job that ended it or an attempt of it; its end is recorded.

    Attributes:
        run: The attempt; ``None`` where the job ended before an attempt started.
        error: Code of the failure, if it failed.
    """

    loaded: LoadedJob
    ended_at: datetime
    run: AttemptRun | None = None
    error: str | None = None


class AttemptObserver(Protocol):
    """Follows the attempts of a worker. Its methods must neither block nor raise."""

    def loaded(self, job: LoadedJob) -> None:
        """Note that this thread works on a job from here on."""

    def ended(self, report: AttemptReport) -> None:
        """Note the end of an attempt, or of a job that needed none."""


class Unobserved:
    """``AttemptObserver`` that notes nothing."""

    def loaded(self, job: LoadedJob) -> None:
        """Note nothing."""

    def ended(self, report: AttemptReport) -> None:
        """Note nothing."""


def end_own_attempt(
    loaded: LoadedJob, worker: WorkerId, *, log: EventLog, ids: IdSource
) -> LoadedJob:
    """Return the job after the end of the attempt that a worker began and does not run any more.

    The broker or the log became unavailable after the start of that attempt. Its worker lives, so
    the next start must not count it as a death.

    Raises:
        JobAlreadyTerminal: Another worker ended the job first.
        StaleAttempt: Another worker started an attempt first.
        LogUnavailable: Nothing was written.
    """
    job = loaded.job
    if not job.active_attempt or job.started is None or job.started.worker != worker:
        return loaded
    commit(job.id, failed_attempt(attempt=job.attempt, failure=_INTERRUPTED), log=log, ids=ids)
    return load_job(job.id, log=log)
