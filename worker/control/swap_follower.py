"""Compares the model of this worker with the wanted one, and takes part in swaps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from domain.errors import ConcurrencyConflict, LogUnavailable
from domain.events.model import ModelServed, ModelSwapAdvanced
from domain.log.ports import EventLog
from domain.model.registry import ModelEntry, ModelKind, ModelRegistry
from domain.model.swap import (
    Configure,
    RecordLoss,
    RollBack,
    SwapCommand,
)
from domain.model.swaps import ModelSwaps
from domain.model.wanted_model import (
    Swap,
    SwapState,
    WantedModel,
)
from domain.values import WorkerId
from ops.clock import RandomIds
from ops.models.registry import RegistryReader, first_model
from ops.observe.logs import Logger
from ops.settings.settings import Settings
from worker.engine.ports import ModelLoadError


@dataclass(slots=True, eq=False)
class SwapFollower:
    """The part of one worker in the swaps of the log. May be used from any thread.

    Its methods raise ``LogUnavailable`` where the log cannot be read or written.

    Attributes:
        check: Raises ``ModelLoadError`` for a model that this machine cannot load, as far as that
            is known without a load.
    """

    worker: WorkerId
    swaps: ModelSwaps
    registry: Callable[[], ModelRegistry]
    first: ModelEntry
    check: Callable[[ModelEntry], None]
    logger: Logger
    model: ModelEntry = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _place: str = field(default="", init=False)
    #: ``WantedModel.since`` at the start of this worker.
    _since: int = field(default=0, init=False)
    #: The swap for which this worker loads its model, and later the one for which it ends.
    _swap: Swap | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.model = self.first

    def choose(self, *, place: str, choice: str, previous: WorkerId | None) -> ModelEntry:
        """Return the model to load: the wanted one of the log.

        Args:
            place: The data directory of this worker.
            choice: Id of the command that named the configured model; empty if none did.
            previous: The worker before this one in the same place.
        """
        self._place = place
        if previous is not None:
            self._apply(RecordLoss(worker=previous))
        configured = Configure(
            place=place, model=self.first.name, choice=choice, swap=self.swaps.new_id()
        )
        state = self._apply(configured)
        swap = state.open_swap
        if swap is not None and swap.can_roll_back and (why := self._why_not(swap)) is not None:
            state = self._apply(RollBack(swap=swap.id, why=why))
        entry = self._entry(state.model)
        if entry is None:
            self.logger.warning("model_not_registered", model=state.model, serves=self.first.name)
            entry = self.first
        self.model, self._since, self._swap = entry, state.since, state.open_swap
        return entry

    def may_wait_unloaded(self, model: str) -> bool:
        """Return whether this worker may wait without a model, after it had unloaded ``model``."""
        return self._swap is None and model == self.model.name

    def begin_load(self) -> None:
        """Record that the load begins; a worker that dies in it is counted."""
        if self._swap is not None:
            self._apply(self._phase(self._swap, SwapState.LOADING))

    def has_loaded(self) -> None:
        """Record that this worker serves its model, which ends the swap."""
        self._apply(ModelServed(worker=self.worker, model=self.model.name))

    def has_failed(self, why: str) -> bool:
        """Roll back the swap whose model could not be loaded.

        Returns:
            Whether another model is wanted now, so that the worker must start again.
        """
        if self._swap is None:
            return False
        state = self._apply(RollBack(swap=self._swap.id, why=why))
        return state.model not in {None, self.model.name}

    def look(self) -> Swap | None:
        """Return the swap for which this worker has to end, if there is one.

        A model that cannot be loaded here is refused before the present one is given up.
        """
        with self._lock:
            state = self.swaps.read(self._place)
            if not self._must_restart(state):
                return None
            swap = state.open_swap
            if swap is not None and swap.state is SwapState.REQUESTED:
                why = self._why_not(swap)
                if why is not None:
                    self.logger.warning("swap_refused", model=swap.model, why=why)
                    state = self._apply(RollBack(swap=swap.id, why=why))
            if not self._must_restart(state):
                return None
            self._swap = state.open_swap or (state.swaps[-1] if state.swaps else None)
            return self._swap

    def shares_base(self, swap: Swap) -> bool:
        """Return whether the model of a swap is another adapter of the present weights."""
        entry = self._entry(swap.model)
        return entry is not None and entry.shares_base(self.model)

    def enter(self, phase: SwapState) -> None:
        """Record a phase of the swap for which this worker ends.

        The swap goes on without the record if the log is not available.
        """
        if self._swap is None:
            return
        try:
            self._apply(self._phase(self._swap, phase))
        except (LogUnavailable, ConcurrencyConflict) as error:
            self.logger.warning("phase_not_recorded", phase=phase, why=error.message)

    def _apply(self, command: SwapCommand) -> WantedModel:
        return self.swaps.apply(command, place=self._place)

    def _must_restart(self, state: WantedModel) -> bool:
        return state.must_restart(self.model.name, since=self._since)

    def _why_not(self, swap: Swap) -> str | None:
        entry = self._entry(swap.model)
        if entry is None:
            return f"{swap.model} is not registered on the worker's machine"
        try:
            self.check(entry)
        except ModelLoadError as error:
            return error.message
        return None

    def _entry(self, name: str | None) -> ModelEntry | None:
        if name == self.first.name:
            return self.first
        return None if name is None else self.registry().get(name)

    def _phase(self, swap: Swap, phase: SwapState) -> ModelSwapAdvanced:
        return ModelSwapAdvanced(swap=swap.id, worker=self.worker, phase=phase)


def follower_of(
    settings: Settings, worker: WorkerId, *, log: EventLog, logger: Logger
) -> SwapFollower:
    """Return the follower of a worker with these settings."""

    def check(model: ModelEntry) -> None:
        if model.kind is ModelKind.EMBEDDING:
            msg = f"{model.name} generates no text; it serves /v1/embeddings beside the model"
            raise ModelLoadError(msg)
        from worker.composition import check_model  # noqa: PLC0415 - imports MLX

        check_model(settings, model)

    return SwapFollower(
        worker,
        swaps=ModelSwaps(log, RandomIds()),
        registry=RegistryReader(settings).current,
        first=first_model(settings),
        check=check,
        logger=logger,
    )
