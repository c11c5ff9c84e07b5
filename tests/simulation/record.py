"""What is known of one job of a simulated life."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from domain.events.job import (
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
)
from domain.values import (
    Predecessor,
    Priority,
)
from tests.simulation.engine import answer_to

_ENDS = (JobCompleted, JobFailed, JobCancelled, JobExpired)


@dataclass
class Record:
    """What is known of a job.

    Attributes:
        prompt: What was asked.
        life: How often it was put back after its end.
        end: The terminal event of this life.
        held_until: The instant before which it must not be released; ``None`` once it was.
        after: The jobs that it waits for.
        is_released: Whether it ever was released.
        queued_anew: Whether it waits for another reason than its acceptance.
        bound: The model that must answer it.
        waits_for_model: Whether it waits for that model.
        is_line: Whether it is a line of a batch, which has a limit of its own.
        models: The model of each epoch, by the attempt with which it began.
        worker: The worker that started the latest attempt.
        labels: By which filters find it.
        seed: Of its draws.
        inherited: The text of the parent that a fork begins with.
        unique: What makes it the only one of its kind, until ``unique_until``.
    """

    prompt: str
    priority: Priority
    key: str | None
    life: int = 0
    attempt: int = 0
    active_attempt: int = 0
    is_queued: bool = True
    queued_anew: bool = False
    held_until: str | None = None
    after: tuple[Predecessor, ...] = ()
    is_released: bool = False
    cancel_reason: str | None = None
    end: Any = None
    ends: list[str] = field(default_factory=list)
    bound: str | None = None
    waits_for_model: bool = False
    is_line: bool = False
    models: dict[int, str] = field(default_factory=dict)
    worker: str = ""
    labels: tuple[str, ...] = ()
    seed: int = 1
    is_fork: bool = False
    inherited: str = ""
    unique: str | None = None
    unique_until: str = ""

    @property
    def epoch(self) -> int:
        """The latest epoch."""
        return max(self.models, default=1)

    @property
    def answer(self) -> str:
        """What the model of the latest epoch answers."""
        return self.answer_in(self.epoch)

    def answer_in(self, epoch: int) -> str:
        """Return what the model of an epoch answers; nothing before any attempt."""
        if epoch not in self.models:
            return ""
        own = answer_to(self.prompt, self.models[epoch], self.seed)
        return self.inherited + own[len(self.inherited) :]
