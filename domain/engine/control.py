"""What operators have changed while the service runs: one stream, ``engine``, folded. Pure.

Every worker and every api reads the stream, so a change survives each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from domain.errors import InvalidRequest
from domain.events.worker import (
    AdmissionPaused,
    AdmissionResumed,
    DrainStarted,
    EngineEvent,
    EngineTuned,
)
from domain.values import StreamName

#: The stream of these events.
ENGINE_STREAM: Final = StreamName("engine")
#: Longest batch window, in milliseconds.
BATCH_WINDOW_MS_MAX: Final = 1000.0
#: Most sequences that run at once.
BATCH_SIZE_MAX: Final = 256
#: Longest pause of a stream while another prompt is read, unless operators change it.
GAP_MS: Final = 100.0
#: Longest pause of a stream that can be set, in milliseconds.
GAP_MS_MAX: Final = 60_000.0


class AdmissionState(StrEnum):
    """Which jobs are accepted and started.

    ``open``: all. ``paused``: new jobs are accepted, none is started. ``draining``: no job is
    accepted or started. Jobs that run go on in each state.
    """

    OPEN = "open"
    PAUSED = "paused"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineValues:
    """The values with which an engine runs.

    Attributes:
        batch_window_ms: How long requests that come together wait for more, in milliseconds.
        max_batch_size: Most sequences that run at once.
        gap_max_ms: Longest pause of a stream while another prompt is read, in milliseconds; 0 for
            any.
    """

    batch_window_ms: float
    max_batch_size: int
    gap_max_ms: float = GAP_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTuning:
    """Values that replace those of the settings; ``None`` means the setting.

    Attributes:
        batch_window_ms: In [0, ``BATCH_WINDOW_MS_MAX``].
        max_batch_size: In [1, ``BATCH_SIZE_MAX``].
        gap_max_ms: In [0, ``GAP_MS_MAX``].
    """

    batch_window_ms: float | None = None
    max_batch_size: int | None = None
    gap_max_ms: float | None = None

    def over(self, settings: EngineValues) -> EngineValues:
        """Return the values in force."""
        window, size, gap = self.batch_window_ms, self.max_batch_size, self.gap_max_ms
        return EngineValues(
            batch_window_ms=settings.batch_window_ms if window is None else window,
            max_batch_size=settings.max_batch_size if size is None else size,
            gap_max_ms=settings.gap_max_ms if gap is None else gap,
        )

    def check(self) -> None:
        """Check the limits.

        Raises:
            InvalidRequest: A value is out of its limits.
        """
        _check("batch_window_ms", self.batch_window_ms, 0, BATCH_WINDOW_MS_MAX)
        _check("max_batch_size", self.max_batch_size, 1, BATCH_SIZE_MAX)
        _check("gap_max_ms", self.gap_max_ms, 0, GAP_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineControl:
    """The folded stream.

    Attributes:
        reason: Why, if the operator gave a reason.
        since: RFC 3339 instant of the last change of ``admission``.
    """

    tuning: EngineTuning = EngineTuning()
    admission: AdmissionState = AdmissionState.OPEN
    reason: str | None = None
    since: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """Replace all tuned values."""

    tuning: EngineTuning


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAdmission:
    """Pause, drain or resume."""

    admission: AdmissionState
    reason: str | None = None


EngineCommand = Tune | SetAdmission


def decide(control: EngineControl, command: EngineCommand) -> tuple[EngineEvent, ...]:
    """Return the events that a command leads to; none where nothing changes.

    Raises:
        InvalidRequest: A value is out of its limits.
    """
    if isinstance(command, Tune):
        tuning = command.tuning
        tuning.check()
        if tuning == control.tuning:
            return ()
        return (
            EngineTuned(
                batch_window_ms=tuning.batch_window_ms,
                max_batch_size=tuning.max_batch_size,
                gap_max_ms=tuning.gap_max_ms,
            ),
        )
    if command.admission is control.admission:
        return ()
    match command.admission:
        case AdmissionState.OPEN:
            return (AdmissionResumed(),)
        case AdmissionState.PAUSED:
            return (AdmissionPaused(reason=command.reason),)
        case AdmissionState.DRAINING:
            return (DrainStarted(reason=command.reason),)


def evolve(control: EngineControl, event: EngineEvent, *, at: str, version: int) -> EngineControl:
    """Return the state after an event.

    Args:
        at: Its RFC 3339 instant.
    """
    after = replace(control, version=version)
    match event:
        case EngineTuned():
            tuning = EngineTuning(
                batch_window_ms=event.batch_window_ms,
                max_batch_size=event.max_batch_size,
                gap_max_ms=event.gap_max_ms,
            )
            return replace(after, tuning=tuning)
        case AdmissionPaused(reason=reason):
            return replace(after, admission=AdmissionState.PAUSED, reason=reason, since=at)
        case DrainStarted(reason=reason):
            return replace(after, admission=AdmissionState.DRAINING, reason=reason, since=at)
        case AdmissionResumed():
            return replace(after, admission=AdmissionState.OPEN, reason=None, since=at)


def _check(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"must be from {least:g} to {most:g}", field=name)
