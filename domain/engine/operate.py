"""What operators set of the engine while it runs: decided, recorded and announced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from domain.engine.control import (
    ENGINE_STREAM,
    AdmissionState,
    EngineControl,
    decide,
    evolve,
)
from domain.engine.workers import ControlSignals, ControlTopic
from domain.errors import Draining, QueueUnavailable
from domain.events.worker import (
    AdmissionPaused,
    AdmissionResumed,
    DrainStarted,
    EngineEvent,
    EngineTuned,
)
from domain.log.folded_stream import FoldedStream
from domain.log.ports import EventLog
from domain.ports import IdSource


@dataclass(slots=True)
class EngineControls:
    """The stream ``engine`` of a log. May be used from any thread.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written: nothing has
    changed then.
    """

    log: EventLog
    ids: IdSource
    signals: ControlSignals
    _stream: FoldedStream[EngineControl] = field(init=False)

    def __post_init__(self) -> None:
        self._stream = FoldedStream(
            ENGINE_STREAM, log=self.log, ids=self.ids, initial=EngineControl(), evolve=evolve
        )

    def current(self) -> EngineControl:
        """Return the state as of now; reads only what is new in the log."""
        return self._stream.read()

    def admission(self) -> AdmissionState:
        """Return which jobs are accepted and started."""
        return self.current().admission

    def require_admission(self) -> None:
        """Check that new jobs are accepted.

        Raises:
            Draining: The service drains.
        """
        if self.admission() is AdmissionState.DRAINING:
            raise Draining("the service drains: it accepts no new jobs until it is resumed")

    def tune(
        self, change: Callable[[EngineTuned], EngineTuned], *, correlation_id: str
    ) -> EngineControl:
        """Change the tuned values, and nudge the workers.

        Args:
            change: Returns the new values for the present ones.

        Raises:
            InvalidRequest: A value is out of its limits.
        """
        return self._commit(lambda now: change(now.tuned), correlation_id)

    def set_admission(
        self, admission: AdmissionState, *, reason: str | None = None, correlation_id: str
    ) -> EngineControl:
        """Pause, drain or resume, and nudge the workers."""
        event: EngineEvent = AdmissionResumed()
        if admission is AdmissionState.PAUSED:
            event = AdmissionPaused(reason=reason)
        elif admission is AdmissionState.DRAINING:
            event = DrainStarted(reason=reason)
        return self._commit(lambda _: event, correlation_id)

    def _commit(
        self, propose: Callable[[EngineControl], EngineEvent], correlation_id: str
    ) -> EngineControl:
        is_changed = self._stream.commit(
            lambda now: decide(now, propose(now)), correlation_id=correlation_id
        )
        if is_changed:
            # Workers that miss the signal look at the log from time to time.
            with suppress(QueueUnavailable):
                self.signals.nudge(ControlTopic.ENGINE)
        return self._stream.read()
