"""Reads and changes the wanted model in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from domain.events.model import WantedModelEvent
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import RecordedEvent
from domain.model.swap import (
    RequestSwap,
    SwapCommand,
    decide,
    evolve_all,
)
from domain.model.wanted_model import (
    DRAIN_S,
    MODELS_STREAM,
    Swap,
    SwapReason,
    WantedModel,
    WantedModels,
)
from domain.ports import IdSource
from domain.usecases.folded_stream import FoldedStream


@dataclass(slots=True)
class ModelSwaps:
    """The wanted model of a log. May be used from any thread.

    Attributes:
        log: Holds the stream.
        ids: Ids of the new events and swaps.
    """

    log: EventLog
    ids: IdSource
    _stream: FoldedStream[WantedModels] = field(init=False)

    def __post_init__(self) -> None:
        self._stream = FoldedStream(
            MODELS_STREAM, log=self.log, ids=self.ids, initial=WantedModels(), evolve=_evolve
        )

    def new_id(self) -> str:
        """Return the id of a new swap, ``swap-`` and a UUIDv7 in hex: sorts by creation."""
        return f"swap-{self.ids.event_id()}"

    def read(self, place: str = "") -> WantedModel:
        """Return the wanted model of the worker of a place, or that of workers without their own.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        return self.read_all().at(place)

    def read_all(self) -> WantedModels:
        """Return the wanted models of all places.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        return self._stream.read()

    def request(
        self,
        model: str,
        *,
        drain_s: float = DRAIN_S,
        place: str = "",
        reason: str = "",
        correlation_id: str = "",
    ) -> Swap:
        """Record that the workers are to serve a model, and return the swap.

        Args:
            model: A registered name.
            drain_s: Seconds that running jobs have to finish.
            place: The data directory of the only worker that is meant; empty for all workers.
            reason: What causes the swap; by default a request.
            correlation_id: The request that led to it.

        Raises:
            LogUnavailable: Nothing was written.
        """
        reason = reason or SwapReason.REQUEST
        swap_id = self.new_id()
        command = RequestSwap(
            swap=swap_id, model=model, reason=reason, drain_s=drain_s, place=place
        )
        swap = self.apply(command, place=place, correlation_id=correlation_id).get(swap_id)
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

    def apply(
        self, command: SwapCommand, *, place: str = "", correlation_id: str = ""
    ) -> WantedModel:
        """Decide on the present state and append; decide again after a concurrent append.

        Args:
            place: The place whose wanted model decides and is returned.
            correlation_id: The request that led to it; by default the first event of it.

        Returns:
            The state after the append.

        Raises:
            LogUnavailable: Nothing was written.
        """
        self._stream.commit(
            lambda state: decide(state.at(place), command), correlation_id=correlation_id
        )
        return self.read(place)


def _evolve(state: WantedModels, recorded: RecordedEvent) -> WantedModels:
    event = decode_recorded(recorded)
    assert isinstance(event, WantedModelEvent)
    return evolve_all(state, event, at=recorded.recorded_at, version=recorded.version)
