"""Events of a worker process, on its stream ``worker-…``."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import (
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """A worker process is up; ``versions`` names the libraries that decide its numerics."""

    worker: WorkerId
    pid: int
    versions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraining:
    """A worker takes no new jobs."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped:
    """A worker ended in order; ``unloaded`` is the model that it unloaded because it was idle."""

    worker: WorkerId
    unloaded: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedStep:
    """A step of the engine during which its worker ended.

    Attributes:
        kind: ``admit``, ``prefill``, ``decode`` or ``save``.
        rows: Sequences in it.
        tokens: Tokens that it computes at most.
        seconds: From its begin until the next worker found it.
        is_stuck: Whether the worker ended because the step did not return.
    """

    kind: str
    rows: int
    tokens: int
    seconds: float
    is_stuck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker was found to have died; its jobs go back to the queue.

    ``step`` is the step during which it died, if it died in one.
    """

    worker: WorkerId
    pid: int
    step: UnfinishedStep | None = None


WorkerEvent = WorkerStarted | WorkerDraining | WorkerStopped | WorkerLost
