"""Appends the life of worker processes to the log: start, model, stop, and loss."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

from domain.errors import ConcurrencyConflict
from domain.events.cache import ModelWeightsChanged
from domain.events.event import Event
from domain.events.model import ModelLoaded, ModelUnloaded
from domain.events.worker import UnfinishedStep, WorkerLost, WorkerStarted, WorkerStopped
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import Draft
from domain.ports import IdSource
from domain.values import ModelCard, StreamName, WorkerId


class WorkerEventRecorder:
    """Appends the life of one worker process to its own stream.

    Args:
        worker: The worker; also the name of the stream.
    """

    def __init__(self, worker: WorkerId, *, log: EventLog, ids: IdSource) -> None:
        self._worker = worker
        self._log = log
        self._ids = ids
        self._run_id = ids.event_id()

    def record(self, *events: Event) -> None:
        """Append events about this worker."""
        self._append(StreamName(self._worker), events)

    def record_started(self, card: ModelCard, *, load_ms: float, versions: str) -> None:
        """Append that this worker is running, and the model it serves."""
        loaded = ModelLoaded(
            worker=self._worker,
            model=card.id,
            fingerprint=card.fingerprint,
            context_length=card.context_length,
            description=card.description,
            created_at=card.created_at,
            abilities=card.abilities,
            load_ms=round(load_ms, 1),
        )
        self.record(WorkerStarted(worker=self._worker, pid=os.getpid(), versions=versions))
        stream = StreamName(f"model-{card.id}")
        before, after = last_load(card.id, self._log), card.fingerprint
        events: list[Event] = [loaded]
        if before is not None and before.fingerprint != after:
            changed = ModelWeightsChanged(
                worker=self._worker, model=card.id, before=before.fingerprint, after=after
            )
            events.insert(0, changed)
        self._append(stream, events)

    def record_stopped(self, *, unloaded: str | None) -> None:
        """Append that this worker ended in order.

        Args:
            unloaded: The model that it unloaded because it was idle; ``None`` if it was not.
        """
        if unloaded is not None:
            event = ModelUnloaded(worker=self._worker, model=unloaded)
            self._append(StreamName(f"model-{unloaded}"), [event])
        self.record(WorkerStopped(worker=self._worker, unloaded=unloaded))

    def record_lost(self, previous: WorkerId, step: UnfinishedStep | None = None) -> bool:
        """Append ``WorkerLost`` for the previous worker, unless it stopped or is recorded as lost.

        The caller holds the worker lock of the data directory, so the previous worker has ended.

        Args:
            step: The step during which it ended, if it ended in one.

        Returns:
            Whether the previous worker was lost.
        """
        events = self._log.load(StreamName(previous))
        begun = [event for event in events if event.type == WorkerStarted.__name__]
        ends = {WorkerStopped.__name__, WorkerLost.__name__}
        if not begun or any(event.type in ends for event in events):
            return False
        started = decode_recorded(begun[0])
        assert isinstance(started, WorkerStarted)
        lost = WorkerLost(worker=previous, pid=started.pid, step=step)
        self._append(StreamName(previous), [lost])
        return True

    def _append(self, stream: StreamName, events: Sequence[Event]) -> None:
        """Append at the stream's current version; other workers append to a model's stream too."""
        drafts = [
            Draft(event_id=self._ids.event_id(), event=event, correlation_id=self._run_id)
            for event in events
        ]
        append_to_end(stream, drafts, log=self._log)


def append_to_end(
    stream: StreamName, drafts: Sequence[Draft], *, log: EventLog, known: int = 0
) -> int:
    """Append at the current version of a stream that others append to too; return the new one.

    Args:
        known: A version that the stream has reached.
    """
    while True:
        later = log.load(stream, after_version=known)
        # The last version, not the count, because old events are archived.
        version = later[-1].version if later else known
        with suppress(ConcurrencyConflict):
            return log.append(stream, drafts, expected_version=version)[-1].version


def last_load(model: str, log: EventLog) -> ModelLoaded | None:
    """Return the last load of a model by any worker."""
    for recorded in reversed(log.load(StreamName(f"model-{model}"))):
        event = decode_recorded(recorded)
        if isinstance(event, ModelLoaded):
            return event
    return None


def library_versions() -> str:
    """Return the versions of the libraries that determine numerical results."""
    return f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
