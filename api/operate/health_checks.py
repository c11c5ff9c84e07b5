"""Whether the service works: the findings behind ``/health/*``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.engine.control import AdmissionState
from domain.errors import QueueUnavailable, SemanticError
from domain.job.ports import WorkerPulse, WorkerPulses, WorkerState
from domain.log.ports import EventLog
from domain.usecases.engine_control import EngineControls
from domain.usecases.model_swaps import ModelSwaps
from ops.adapters.data_dir.free_space import DiskFloor

#: Share of the memory for contexts from which on the service is degraded. It counts bytes that
#: cannot be freed at once; contexts that are kept and are on the disk do not count.
FILL_DEGRADED: Final = 0.9
OK: Final = "ok"
#: States of a worker whose model a request waits for, instead of being refused.
_COMING: Final = (WorkerState.UNLOADED, WorkerState.LOADING)
_GB: Final = 10**9


class Level(StrEnum):
    """What a finding means for a request."""

    OK = "ok"
    #: It is answered, maybe later than usual.
    DEGRADED = "degraded"
    #: It is refused, or waits without an end in sight.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        text: ``ok``, a state, or the problem in one sentence.
        level: What it means.
    """

    text: str = OK
    level: Level = Level.OK


def worst(findings: Iterable[Finding]) -> Level:
    """Return the level of the service."""
    found = {finding.level for finding in findings}
    return next(level for level in reversed(Level) if level in found | {Level.OK})


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChecks:
    """The checks of one api process; each may block.

    Attributes:
        pulses: The living workers.
        swaps: The wanted model.
        controls: Whether operators let jobs be accepted and started.
        draining: Set once this process ends.
        disk: The free space of the log's disk, and the floor under new work.
    """

    log: EventLog
    pulses: WorkerPulses
    swaps: ModelSwaps
    controls: EngineControls
    draining: threading.Event
    disk: DiskFloor

    def check_log(self) -> Finding:
        """The log takes events."""
        self.log.check_writable()
        return Finding()

    def check_broker(self) -> Finding:
        """The broker answers."""
        self.pulses.alive()
        return Finding()

    def check_model(self) -> Finding:
        """A worker has the model, or loads it for the next request."""
        states = {pulse.state for pulse in self.pulses.alive() if pulse.model is not None}
        swap = self.swaps.read_all().open_swap
        is_everywhere = swap is not None and not swap.place
        if (
            swap is not None
            and swap.before is not None
            and (is_everywhere or WorkerState.READY not in states)
        ):
            return Finding(f"swapping to {swap.model}: {swap.state}", Level.DEGRADED)
        if WorkerState.READY in states:
            return Finding()
        for state in _COMING:
            if state in states:
                return Finding(state)
        loading = [one for one in self.pulses.alive() if one.state == WorkerState.LOADING]
        if not loading:
            return Finding("no worker with a model is alive", Level.UNAVAILABLE)
        name = loading[0].target or "the model"
        return Finding(f"a worker is loading {name}", Level.UNAVAILABLE)

    def check_memory(self) -> Finding:
        """Contexts that cannot be freed leave memory for others."""
        fills = [pulse.cache.fill for pulse in self._ready() if pulse.cache is not None]
        fill = min(fills, default=0.0)
        if fill < FILL_DEGRADED:
            return Finding()
        text = f"{fill:.0%} of the memory for contexts is in use and cannot be freed at once"
        return Finding(text, Level.DEGRADED)

    def check_disk(self) -> Finding:
        """The disk has space for the log, and takes contexts."""
        if (why := self.disk.shortage()) is not None:
            return Finding(f"new work is refused: {why}", Level.UNAVAILABLE)
        free, wanted = self.disk.measure(), self.disk.cache_min_bytes
        if free < wanted:
            text = (
                f"{free / _GB:.1f} GB are free, less than {wanted / _GB:.1f} GB: "
                "contexts are deleted from the disk"
            )
            return Finding(text, Level.DEGRADED)
        if any(pulse.cache is not None and pulse.cache.disk == "paused" for pulse in self._ready()):
            return Finding("contexts are not saved: the disk fails or is full", Level.DEGRADED)
        return Finding()

    def check_admission(self) -> Finding:
        """Jobs are accepted and started."""
        if self.draining.is_set():
            return Finding("the api is draining", Level.UNAVAILABLE)
        control = self.controls.current()
        because = f": {control.reason}" if control.reason else ""
        match control.admission:
            case AdmissionState.DRAINING:
                return Finding(f"draining{because}", Level.UNAVAILABLE)
            case AdmissionState.PAUSED:
                return Finding(f"paused{because}", Level.DEGRADED)
            case AdmissionState.OPEN:
                return Finding()

    def _ready(self) -> list[WorkerPulse]:
        try:
            return [pulse for pulse in self.pulses.alive() if pulse.state == WorkerState.READY]
        except QueueUnavailable:
            return []  # ``check_broker`` finds it


def finding_of(check: Callable[[], Finding]) -> Finding:
    """Return the finding of a check; an error is one."""
    try:
        return check()
    except SemanticError as error:
        return Finding(error.message, Level.UNAVAILABLE)
