"""Reads and changes what operators have set while the service runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from domain.engine.control import (
    ENGINE_STREAM,
    AdmissionState,
    EngineCommand,
    EngineControl,
    EngineTuning,
    SetAdmission,
    Tune,
    decide,
    fold,
)
from domain.errors import ConcurrencyConflict, Draining, QueueUnavailable
from domain.events.engine import EngineEvent
from domain.job.ports import ControlSignals, ControlTopic
from domain.log.codec import decode_event
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource

#: Most times that a decision is repeated after a concurrent append.
TRIES_MAX = 8


@dataclass(slots=True)
class EngineControls:
    """The stream ``engine`` of a log. May be used from any thread.

    Attributes:
        log: Holds the stream.
        ids: Ids of the new events.
        signals: Reach the workers after a change.
    """

    log: EventLog
    ids: IdSource
    signals: ControlSignals
    _known: EngineControl = field(default_factory=EngineControl, init=False)

    def current(self) -> EngineControl:
        """Return the state as of now; reads only what is new in the log.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        known = self._known
        recorded = self.log.load(ENGINE_STREAM, after_version=known.version)
        if not recorded:
            return known
        found = fold(((_event(one), one.recorded_at, one.version) for one in recorded), known)
        # Of two threads either may be the last; then a later call reads some events again.
        self._known = found
        return found

    def admission(self) -> AdmissionState:
        """Return which jobs are accepted and started.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        return self.current().admission

    def require_admission(self) -> None:
        """Check that new jobs are accepted.

        Raises:
            Draining: The service drains.
            LogUnavailable: The log cannot be read.
        """
        if self.admission() is AdmissionState.DRAINING:
            raise Draining("the service drains: it accepts no new jobs until it is resumed")

    def tune(
        self, change: Callable[[EngineTuning], EngineTuning], *, correlation_id: str
    ) -> EngineControl:
        """Change the tuned values, and nudge the workers.

        Args:
            change: Returns the new values for the present ones.
            correlation_id: The request.

        Raises:
            InvalidRequest: A value is out of its limits.
            LogUnavailable: Nothing was changed.
        """
        return self._commit(lambda now: Tune(tuning=change(now.tuning)), correlation_id)

    def set_admission(
        self, admission: AdmissionState, *, reason: str | None = None, correlation_id: str
    ) -> EngineControl:
        """Pause, drain or resume, and nudge the workers.

        Args:
            admission: The wanted state.
            reason: For other operators.
            correlation_id: The request.

        Raises:
            LogUnavailable: Nothing was changed.
        """
        command = SetAdmission(admission=admission, reason=reason)
        return self._commit(lambda _: command, correlation_id)

    def _commit(
        self, command: Callable[[EngineControl], EngineCommand], correlation_id: str
    ) -> EngineControl:
        for tries_left in reversed(range(TRIES_MAX)):
            now = self.current()
            drafts = [
                Draft(event_id=self.ids.event_id(), event=event, correlation_id=correlation_id)
                for event in decide(now, command(now))
            ]
            if not drafts:
                return now
            try:
                self.log.append(ENGINE_STREAM, drafts, expected_version=now.version)
            except ConcurrencyConflict:
                if not tries_left:
                    raise
                continue
            # Workers that miss the signal look at the log from time to time.
            with suppress(QueueUnavailable):
                self.signals.nudge(ControlTopic.ENGINE)
            return self.current()
        raise AssertionError  # the last try returns or raises


def _event(recorded: RecordedEvent) -> EngineEvent:
    event = decode_event(recorded.type, recorded.schema_version, recorded.data)
    assert isinstance(event, EngineEvent)
    return event
