"""Workers as the other processes see them: their pulses, and the messages that reach them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from domain.engine.control import AdmissionState, EngineValues
from domain.engine.figures import RowFigures, WorkCounts
from domain.values import (
    CacheFigures,
    DraftFigures,
    JobId,
    ModelCard,
    Priority,
    WaitingJob,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentQueueState:
    """The queue of a line; ``turns_ago`` is the number of turns since its last one.

    ``agent`` has the name of the line, see ``line_of``.
    """

    priority: Priority
    agent: str
    turns_ago: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnState:
    """The state of the scheduler without the waiting jobs, small enough for a heartbeat.

    Attributes:
        interactive_reserved: Slots that batch jobs may not take.
        lines: The queues of agents with waiting jobs.
        passed_batch: Turns of interactive jobs since a batch job had one, while some waited.
    """

    slots: int
    interactive_reserved: int
    running: tuple[JobId, ...] = ()
    lines: tuple[AgentQueueState, ...] = ()
    passed_batch: int = 0


class ControlTopic(StrEnum):
    """A part of the log that all workers follow."""

    ENGINE = "engine"
    MODELS = "models"


class ControlSignals(Protocol):
    """Signals to the workers. They may be lost; the log holds the truth.

    Its methods raise ``QueueUnavailable`` where the broker cannot be reached.
    """

    def nudge_cancel(self, job_id: JobId) -> None:
        """Signal that the cancellation of a job is recorded."""

    def nudge(self, topic: ControlTopic) -> None:
        """Signal to all workers that a part of the log that they follow has changed."""


class WorkerState(StrEnum):
    """The phase of a worker process; its pulse carries it."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    SWAPPING = "swapping"
    UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPulse:
    """A heartbeat of a worker.

    Attributes:
        state: Its phase, a value of ``WorkerState``; workers of other versions may have more.
        model: The served model, once it is ready.
        target: Registered name of the model that it has, loads or swaps to.
        cache: Figures of its KV cache, once it is ready.
        drafts: What speculation has done, once it is ready.
        turns: State of its scheduler, with the places of its batch as slots, once it is ready.
        waiting: The jobs that wait in its engine, in their order.
        values: The values of its engine, once it is ready.
        counts: What its engine has done so far, once it is ready.
        slow_step: The step of its engine that takes long, in words; ``None`` if none does.
        rows: Its running sequences; ``None`` while no overview is watched.
        place: Identity of its data directory, which all workers of it have in turn.
        embeds: Names of the embedding models that it computes with, beside its model.
        metrics: Totals over all workers of the place and present values, by metric family and by
            the value of the label that the family has beside the worker.
    """

    worker: WorkerId
    pid: int
    state: str
    model: ModelCard | None
    target: str | None = None
    cache: CacheFigures | None = None
    drafts: DraftFigures | None = None
    turns: TurnState | None = None
    waiting: tuple[WaitingJob, ...] = ()
    values: EngineValues | None = None
    admission: AdmissionState = AdmissionState.OPEN
    counts: WorkCounts | None = None
    slow_step: str | None = None
    rows: tuple[RowFigures, ...] | None = None

    place: str = ""
    host: str = ""
    embeds: tuple[str, ...] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """The number of jobs that it runs, without those that wait in its engine."""
        return 0 if self.turns is None else max(0, len(self.turns.running) - len(self.waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseReply:
    """What the broker knew when a heartbeat came.

    Attributes:
        was_known: Whether the previous heartbeat was there. If not, the broker may have lost more.
        is_watched: Whether an overview shows the rows of the workers.
    """

    was_known: bool
    is_watched: bool = False


class WorkerPulses(Protocol):
    """Heartbeats; one that is not renewed expires within seconds.

    Its methods raise ``QueueUnavailable`` where the broker cannot be reached.
    """

    def beat(self, pulse: WorkerPulse) -> PulseReply:
        """Renew the heartbeat of a worker."""

    def watch(self) -> None:
        """Ask the workers for their rows; the request expires within seconds."""

    def alive(self) -> tuple[WorkerPulse, ...]:
        """Return the workers that are alive."""
