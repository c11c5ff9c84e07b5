"""One stream of the log with its state, kept folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from domain.errors import ConcurrencyConflict
from domain.events.event import Event
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource
from domain.values import Digest, StreamName

#: Most times that a decision is tried. A stream has few writers: more than two conflicts in a row
#: mean that one of them loops.
TRIES_MAX = 8

Result = TypeVar("Result")


def again_after_conflicts(attempt: Callable[[], Result]) -> Result:
    """Load, decide and append by ``attempt``, anew after each concurrent append.

    Raises:
        ConcurrencyConflict: The last of ``TRIES_MAX`` attempts had one too.
    """
    for _ in range(TRIES_MAX - 1):
        with suppress(ConcurrencyConflict):
            return attempt()
    return attempt()


class VersionedState(Protocol):
    """The state of a stream at a version."""

    @property
    def version(self) -> int:
        """Version of the last event; 0 before the first."""


State = TypeVar("State", bound=VersionedState)


class FoldedStream(Generic[State]):
    """One stream of the log with its state. May be used from any thread.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written: nothing is
    appended then.
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
        self._last: RecordedEvent | None = None

    def read(self) -> State:
        """Return the state as of now; reads only what is new in the log."""
        # A concurrent call may fold the same events; either result may be kept.
        state = self._state
        for recorded in self._log.load(self._stream, after_version=state.version):
            state, self._last = self._evolve(state, recorded), recorded
        self._state = state
        return state

    def commit(
        self,
        decide: Callable[[State], Sequence[Event]],
        *,
        correlation_id: str = "",
        payloads: Mapping[Digest, bytes] | None = None,
        continues: bool = False,
    ) -> bool:
        """Decide on the present state and append; decide again after a concurrent append.

        Args:
            correlation_id: The request that leads to them; by default the first event of them.
            payloads: Texts that the events refer to, by digest; read after the decision.
            continues: Whether they follow from the last event of the stream, and from its request.

        Returns:
            Whether events were appended.
        """

        def append() -> bool:
            state = self.read()
            events, last = decide(state), self._last if continues else None
            drafts = self._drafts(events, correlation_id, last)
            if drafts:
                self._log.append(
                    self._stream, drafts, expected_version=state.version, payloads=payloads
                )
            return bool(drafts)

        return again_after_conflicts(append)

    def _drafts(
        self, events: Sequence[Event], correlation_id: str, last: RecordedEvent | None
    ) -> list[Draft]:
        ids = [self._ids.event_id() for _ in events]
        if last is not None:
            correlation_id = last.correlation_id
        return [
            Draft(
                event_id=event_id,
                event=event,
                correlation_id=correlation_id or ids[0],
                causation_id=None if last is None else last.event_id,
            )
            for event_id, event in zip(ids, events, strict=True)
        ]
