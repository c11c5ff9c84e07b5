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
    """A worker ended in order."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker was found to have died; its jobs go back to the queue."""

    worker: WorkerId
    pid: int


WorkerEvent = WorkerStarted | WorkerDraining | WorkerStopped | WorkerLost
