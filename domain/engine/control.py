"""What operators have changed while the service runs: one stream, ``engine``, folded. Pure.

Every worker and every api reads the stream, so a change survives each of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
from domain.log.codec import decode_recorded
from domain.log.record import RecordedEvent
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
class EngineControl:
    """The folded stream.

    Attributes:
        tuned: Values that replace those of the settings.
        reason: Why, if the operator gave a reason.
        since: RFC 3339 instant of the last change of ``admission``.
    """

    tuned: EngineTuned = EngineTuned()
    admission: AdmissionState = AdmissionState.OPEN
    reason: str | None = None
    since: str | None = None
    version: int = 0


#: The admission after an event, by its type.
ADMISSION_AFTER: Final = {
    AdmissionPaused.__name__: AdmissionState.PAUSED,
    AdmissionResumed.__name__: AdmissionState.OPEN,
    DrainStarted.__name__: AdmissionState.DRAINING,
}


def in_force(tuned: EngineTuned, settings: EngineValues) -> EngineValues:
    """Return the values with which the engine runs."""
    given = {name: value for name, value in asdict(tuned).items() if value is not None}
    return replace(settings, **given)


def decide(control: EngineControl, proposal: EngineEvent) -> tuple[EngineEvent, ...]:
    """Return what is recorded of a proposed event: it, or nothing where nothing changes.

    Raises:
        InvalidRequest: A value is out of its limits.
    """
    if isinstance(proposal, EngineTuned):
        _check("batch_window_ms", proposal.batch_window_ms, 0, BATCH_WINDOW_MS_MAX)
        _check("max_batch_size", proposal.max_batch_size, 1, BATCH_SIZE_MAX)
        _check("gap_max_ms", proposal.gap_max_ms, 0, GAP_MS_MAX)
        return () if proposal == control.tuned else (proposal,)
    is_known = ADMISSION_AFTER[type(proposal).__name__] is control.admission
    return () if is_known else (proposal,)


def evolve(control: EngineControl, recorded: RecordedEvent) -> EngineControl:
    """Return the state after the next event of the stream."""
    event, at = decode_recorded(recorded), recorded.recorded_at
    after = replace(control, version=recorded.version)
    if isinstance(event, EngineTuned):
        return replace(after, tuned=event)
    assert isinstance(event, EngineEvent)
    reason = None if isinstance(event, AdmissionResumed) else event.reason
    return replace(after, admission=ADMISSION_AFTER[recorded.type], reason=reason, since=at)


def _check(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"must be from {least:g} to {most:g}", field=name)
