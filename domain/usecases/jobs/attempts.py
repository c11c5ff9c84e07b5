"""What a worker knows of an attempt once it is over, for logs and traces."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from domain.chat.generation import GenerationTask, Outcome
from domain.chat.request import ChatRequest
from domain.usecases.jobs.commit import LoadedJob
from domain.values import ModelCard


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
