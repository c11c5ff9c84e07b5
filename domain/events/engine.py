"""Events of the stream ``engine``: what operators change while the service runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTuned:
    """Values replace those of the settings; ``None`` means the setting.

    Attributes:
        batch_window_ms: As the setting ``engine.batch_window_ms``.
        max_batch_size: As the setting ``engine.max_batch_size``.
        gap_max_ms: Longest pause of a stream while another prompt is read.
    """

    batch_window_ms: float | None
    max_batch_size: int | None
    gap_max_ms: float | None


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
