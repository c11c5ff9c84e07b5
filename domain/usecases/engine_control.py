"""Streams with one state each, kept folded, and the one of what operators set at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from domain.engine.control import (
    ENGINE_STREAM,
    AdmissionState,
    EngineCommand,
    EngineControl,
    EngineTuning,
    SetAdmission,
    Tune,
    decide,
    evolve,
)
from domain.errors import ConcurrencyConflict, Draining, QueueUnavailable
from domain.events.event import Event
from domain.events.worker import EngineEvent
from domain.job.ports import ControlSignals, ControlTopic
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource
from domain.values import StreamName

#: Most times that a decision is repeated after a concurrent append.
TRIES_MAX = 8


class VersionedState(Protocol):
    """The state of a stream at a version."""

    @property
    def version(self) -> int:
        """Version of the last event; 0 before the first."""
        ...


State = TypeVar("State", bound=VersionedState)


class FoldedStream(Generic[State]):
    """One stream of the log with its state. May be used from any thread.

    Args:
        log: Holds it.
        ids: Ids of the new events.
        initial: The state before the first event.
        evolve: Returns the state after an event.
    """

    def __init__(
        self,
        stream: StreamName,
        *,
        log: EventLog,
        ids: IdSource,
        initial: State,
        evolve: Callable[[State, RecordedEvent], State],
    ) -> None:
        self._stream = stream
        self._log = log
        self._ids = ids
        self._evolve = evolve
        self._state = initial

    def read(self) -> State:
        """Return the state as of now; reads only what is new in the log.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        # A concurrent call may fold the same events; either result may be kept.
        state = self._state
        for recorded in self._log.load(self._stream, after_version=state.version):
            state = self._evolve(state, recorded)
        self._state = state
        return state

    def commit(
        self, decide: Callable[[State], Sequence[Event]], *, correlation_id: str = ""
    ) -> bool:
        """Decide on the present state and append; decide again after a concurrent append.

        Args:
            decide: Returns the events to append.
            correlation_id: The request that leads to them; by default the first event of them.

        Returns:
            Whether events were appended.

        Raises:
            LogUnavailable: Nothing was appended.
        """
        for tries_left in reversed(range(TRIES_MAX)):
            state = self.read()
            drafts = self._drafts(decide(state), correlation_id)
            if not drafts:
                return False
            try:
                self._log.append(self._stream, drafts, expected_version=state.version)
            except ConcurrencyConflict:
                if not tries_left:
                    raise
                continue
            return True
        raise AssertionError  # the last try returns or raises

    def _drafts(self, events: Sequence[Event], correlation_id: str) -> list[Draft]:
        ids = [self._ids.event_id() for _ in events]
        return [
            Draft(event_id=event_id, event=event, correlation_id=correlation_id or ids[0])
            for event_id, event in zip(ids, events, strict=True)
        ]


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
    _stream: FoldedStream[EngineControl] = field(init=False)

    def __post_init__(self) -> None:
        self._stream = FoldedStream(
            ENGINE_STREAM, log=self.log, ids=self.ids, initial=EngineControl(), evolve=_evolve
        )

    def current(self) -> EngineControl:
        """Return the state as of now; reads only what is new in the log.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        return self._stream.read()

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
        is_changed = self._stream.commit(
            lambda now: decide(now, command(now)), correlation_id=correlation_id
        )
        if is_changed:
            # Workers that miss the signal look at the log from time to time.
            with suppress(QueueUnavailable):
                self.signals.nudge(ControlTopic.ENGINE)
        return self._stream.read()


def _evolve(control: EngineControl, recorded: RecordedEvent) -> EngineControl:
    event = decode_recorded(recorded)
    assert isinstance(event, EngineEvent)
    return evolve(control, event, at=recorded.recorded_at, version=recorded.version)
