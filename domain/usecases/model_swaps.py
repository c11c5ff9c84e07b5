"""Reads and changes the wanted model in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from domain.errors import ConcurrencyConflict
from domain.events.model import WantedModelEvent
from domain.log.codec import decode_event
from domain.log.ports import EventLog
from domain.log.record import Draft
from domain.model.swap import (
    DRAIN_S,
    MODELS_STREAM,
    RequestSwap,
    Swap,
    SwapCommand,
    SwapReason,
    WantedModel,
    decide,
    fold,
)
from domain.ports import IdSource

#: Most times that a decision is repeated after a concurrent append.
TRIES_MAX = 8


@dataclass(slots=True)
class ModelSwaps:
    """The wanted model of a log. May be used from any thread.

    Attributes:
        log: Holds the stream.
        ids: Ids of the new events and swaps.
    """

    log: EventLog
    ids: IdSource
    _state: WantedModel = field(default_factory=WantedModel, init=False)

    def new_id(self) -> str:
        """Return the id of a new swap, ``swap-`` and a UUIDv7 in hex: sorts by creation."""
        return f"swap-{self.ids.event_id()}"

    def read(self) -> WantedModel:
        """Return the present state.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        # A concurrent call may fold the same events; either result may be kept.
        state = self._state
        events: list[tuple[WantedModelEvent, str, int]] = []
        for recorded in self.log.load(MODELS_STREAM, after_version=state.version):
            event = decode_event(recorded.type, recorded.schema_version, recorded.data)
            assert isinstance(event, WantedModelEvent)
            events.append((event, recorded.recorded_at, recorded.version))
        self._state = state = fold(events, state)
        return state

    def request(
        self, model: str, *, drain_s: float = DRAIN_S, reason: str = "", correlation_id: str = ""
    ) -> Swap:
        """Record that the workers are to serve a model, and return the swap.

        Args:
            model: A registered name.
            drain_s: Seconds that running jobs have to finish.
            reason: What causes the swap; by default a request.
            correlation_id: The request that led to it.

        Raises:
            LogUnavailable: Nothing was written.
        """
        reason = reason or SwapReason.REQUEST
        swap_id = self.new_id()
        command = RequestSwap(swap=swap_id, model=model, reason=reason, drain_s=drain_s)
        swap = self.apply(command, correlation_id=correlation_id).get(swap_id)
        assert swap is not None, "an appended swap is in the state"
        return swap

    def request_on_demand(self, model: str) -> Swap | None:
        """Record that jobs want a model; ``None`` while another swap is open.

        Raises:
            LogUnavailable: Nothing was written.
        """
        swap_id = self.new_id()
        command = RequestSwap(swap=swap_id, model=model, reason=SwapReason.ON_DEMAND)
        return self.apply(command).get(swap_id)

    def apply(self, command: SwapCommand, *, correlation_id: str = "") -> WantedModel:
        """Decide on the present state and append; decide again after a concurrent append.

        Args:
            command: The command.
            correlation_id: The request that led to it; by default the first event of it.

        Returns:
            The state after the append.

        Raises:
            LogUnavailable: Nothing was written.
        """
        for tries_left in reversed(range(TRIES_MAX)):
            state = self.read()
            events = decide(state, command)
            if not events:
                return state
            first = self.ids.event_id()
            rest = [self.ids.event_id() for _ in events[1:]]
            drafts = [
                Draft(event_id=event_id, event=event, correlation_id=correlation_id or first)
                for event_id, event in zip([first, *rest], events, strict=True)
            ]
            try:
                self.log.append(MODELS_STREAM, drafts, expected_version=state.version)
            except ConcurrencyConflict:
                if not tries_left:
                    raise
                continue
            return self.read()
        raise AssertionError  # the last try returns or raises
