"""What a worker knows of an attempt once it is over, and the end of one that it left open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from domain.chat.generation import GenerationTask, Outcome
from domain.chat.items import Failed
from domain.chat.request import ChatRequest
from domain.errors import Unavailable
from domain.job.decisions import failed_attempt
from domain.log.ports import EventLog
from domain.ports import IdSource
from domain.usecases.jobs.commit import LoadedJob, commit, load_job
from domain.values import ModelCard, WorkerId

_INTERRUPTED = Failed(
    error=Unavailable.code, message="the broker or the log was unavailable", retryable=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRun:
    """An attempt that reached the engine.

    Attributes:
        task: What the engine was given.
        request: The request of the job.
        model: The model that answered.
        submitted_at: When the engine got it.
        outcome: How the generation ended.
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
        loaded: The job before the attempt.
        ended_at: When its end was recorded.
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
        ...

    def ended(self, report: AttemptReport) -> None:
        """Note the end of an attempt, or of a job that needed none."""
        ...


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
