"""Metrics of all workers, from their pulses."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from domain.job.ports import WorkerPulse, WorkerPulses
from domain.values import CacheFigures, WaitingFor
from ops.metrics.counter_file import Figures
from ops.metrics.families import FAMILIES
from ops.metrics.family import Kind
from ops.metrics.readings import Readings

#: Places whose totals are shown after their worker has gone.
PLACES_MAX: Final = 64
_STATES: Final = ("loading", "ready", "draining", "swapping", "unloaded")
_DISK_STATES: Final = ("on", "paused", "scanning", "off")


class FleetMetrics:
    """Reads the pulses. Safe to use from any thread.

    A worker is labelled by its place, which the next worker of the data directory has too. While a
    place has no worker, its last totals stay, so that a sum over all places never decreases.

    Args:
        pulses: The living workers.
    """

    def __init__(self, pulses: WorkerPulses) -> None:
        self._pulses = pulses
        self._lock = threading.Lock()
        self._totals: dict[str, Figures] = {}

    def read(self, into: Readings) -> None:
        """Add all samples.

        Raises:
            QueueUnavailable: The broker cannot be reached; the last totals were added.
        """
        try:
            # A worker that was killed has a pulse for some seconds beside the next one of its
            # place. The names of workers sort by their start.
            alive = {place_of(one): one for one in self._pulses.alive()}
        except BaseException:
            self._add_totals(into)
            raise
        for place, pulse in alive.items():
            self._keep_totals(place, pulse.metrics)
            _add_values(into, place, pulse)
        states = Counter(pulse.state for pulse in alive.values())
        for state in _STATES:
            into.add("workers", states[state], state=state)
        self._add_totals(into)

    def _keep_totals(self, place: str, metrics: Figures) -> None:
        totals = {name: values for name, values in metrics.items() if _is_total(name)}
        with self._lock:
            self._totals.pop(place, None)
            self._totals[place] = totals
            if len(self._totals) > PLACES_MAX:
                del self._totals[next(iter(self._totals))]

    def _add_totals(self, into: Readings) -> None:
        with self._lock:
            totals = dict(self._totals)
        for place, figures in totals.items():
            for name, values in figures.items():
                add_figure(into, name, values, owner=place)


def place_of(pulse: WorkerPulse) -> str:
    """Return the label of a worker: its place, or its name where it has none."""
    return pulse.place or pulse.worker


def add_figure(into: Readings, name: str, values: object, *, owner: str) -> None:
    """Add the values of a family that a process has reported; unknown ones are ignored.

    Args:
        into: Receives the samples.
        name: Name of the family.
        values: Numbers by the value of the label that the family has beside its owner.
        owner: The worker or process.
    """
    family = FAMILIES.get(name)
    if family is None or not family.labels or not isinstance(values, dict):
        return  # of a worker of another version
    first, *others = family.labels
    if family.kind is Kind.HISTOGRAM:
        into.add_histogram(name, values, **{first: owner})
        return
    for label, value in values.items():
        own = {others[0]: label} if others else {}
        into.add(name, value, **{first: owner}, **own)


def _is_total(name: str) -> bool:
    return name in FAMILIES and FAMILIES[name].kind is not Kind.GAUGE


def _add_values(into: Readings, place: str, pulse: WorkerPulse) -> None:
    model = pulse.model.id if pulse.model is not None else ""
    into.add("worker_info", 1, worker=place, host=pulse.host, model=model, state=pulse.state)
    for name, values in pulse.metrics.items():
        if not _is_total(name):
            add_figure(into, name, values, owner=place)
    reasons = Counter(job.waiting_for for job in pulse.waiting)
    for reason in WaitingFor:
        into.add("engine_waiting", reasons[reason], worker=place, reason=reason.value)
    if pulse.turns is not None:
        into.add("batch_size", pulse.running, worker=place)
        into.add("batch_places", pulse.turns.slots, worker=place)
    if pulse.cache is not None:
        _add_cache(into, place, pulse.cache)


def _add_cache(into: Readings, place: str, cache: CacheFigures) -> None:
    budget = cache.ram_budget_bytes
    into.add(
        "pool_utilization_ratio", cache.ram_used_bytes / budget if budget else 0.0, worker=place
    )
    into.add("pool_pinned_ratio", cache.fill, worker=place)
    into.add("pool_blocks", cache.ram_blocks, worker=place)
    used = {
        "weights": cache.weights_bytes,
        "live": cache.ram_live_bytes,
        "kept": max(0, cache.ram_used_bytes - cache.ram_live_bytes),
    }
    for kind, size_bytes in used.items():
        into.add("memory_used_bytes", size_bytes, worker=place, kind=kind)
    into.add("memory_limit_bytes", budget, worker=place, kind="contexts")
    if cache.ceiling_bytes:
        into.add("memory_limit_bytes", cache.ceiling_bytes, worker=place, kind="ceiling")
    into.add("memory_wait_seconds", cache.full_s, worker=place)
    into.add("disk_cache_used_bytes", cache.disk_used_bytes, worker=place)
    into.add("disk_cache_limit_bytes", cache.disk_budget_bytes, worker=place)
    into.add("disk_cache_blocks", cache.disk_blocks, worker=place)
    for state in _DISK_STATES:
        into.add("disk_cache_state", state == cache.disk, worker=place, state=state)
