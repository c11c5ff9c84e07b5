"""Events of workers, of their engines, and of the log itself."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTuned:
    """Values replace those of the settings; ``None`` means the setting.

    Attributes:
        batch_window_ms: As the setting ``engine.batch_window_ms``.
        max_batch_size: As the setting ``engine.max_batch_size``.
        gap_max_ms: Longest pause of a stream while another prompt is read.
    """

    batch_window_ms: float | None = None
    max_batch_size: int | None = None
    gap_max_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPaused:
    """Workers start no more jobs; new jobs are accepted and wait."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStarted:
    """Workers start no more jobs, and new jobs are refused."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResumed:
    """Jobs are accepted and started again."""


EngineEvent = EngineTuned | AdmissionPaused | DrainStarted | AdmissionResumed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogArchived:
    """A range of the log was moved to a file; only events that are still needed stay in the log.

    Attributes:
        base_hash: Hash of the event before the range.
        last_hash: Hash of the last event of the range, which the next event follows.
    """

    first_position: int
    last_position: int
    base_hash: str
    last_hash: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextsErased:
    """Texts that no owner needs were erased; see ``domain.log.text_owners``.

    Attributes:
        through: Position up to which the log was read; what was deleted later is not among it.
        waiting: What is still to be erased: further texts, and open jobs of deleted agents.
        ended_before: The texts of jobs and batches that ended before this RFC 3339 instant went.
        expired_by: The contents of files that expired by this RFC 3339 instant went.
    """

    payloads: int
    payload_bytes: int
    jobs: int
    through: int = 0
    waiting: int = 0
    ended_before: str | None = None
    expired_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveErased:
    """A file of old events was deleted, as a rule of retention wants."""

    file: str
    last_position: int


LogEvent = LogArchived | TextsErased | ArchiveErased
