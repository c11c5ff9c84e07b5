"""Appends the life of worker processes to the log: start, model, stop, and loss."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
        before = self._fingerprint_before(stream)
        if before not in {None, card.fingerprint}:
            changed = ModelWeightsChanged(
                worker=self._worker, model=card.id, before=before or "", after=card.fingerprint
            )
            self._append(stream, [changed, loaded])
        else:
            self._append(stream, [loaded])

    def record_stopped(self, *, unloaded: str | None) -> None:
        """Append that this worker ended in order.

        Args:
            unloaded: The model that it unloaded because it was idle; ``None`` if it was not.
        """
        if unloaded is not None:
            event = ModelUnloaded(worker=self._worker, model=unloaded)
            self._append(StreamName(f"model-{unloaded}"), [event])
        self.record(WorkerStopped(worker=self._worker, unloaded=unloaded))

    def _fingerprint_before(self, stream: StreamName) -> str | None:
        """Return the fingerprint with which the model of a stream was last loaded."""
        for recorded in reversed(self._log.load(stream)):
            event = decode_recorded(recorded)
            if isinstance(event, ModelLoaded):
                return event.fingerprint
        return None

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
        while True:
            past = self._log.load(stream)
            # The last version, not the count, because old events are archived.
            version = past[-1].version if past else 0
            try:
                self._log.append(stream, drafts, expected_version=version)
            except ConcurrencyConflict:
                continue
            return


def library_versions() -> str:
    """Return the versions of the libraries that determine numerical results."""
    return f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
