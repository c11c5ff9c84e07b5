"""The events that a worker appends about itself and its model."""

from __future__ import annotations

from domain.events.worker import WorkerStopped
from domain.values import ModelCard, StreamName, WorkerId
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import SequentialIds
from worker.recording.worker_event_recorder import WorkerEventRecorder

MODEL = StreamName("model-tiny")


def start(log: InMemoryEventLog, ids: SequentialIds, worker: str, fingerprint: str) -> None:
    card = ModelCard(
        id="tiny",
        fingerprint=fingerprint,
        context_length=10,
        description="",
        created_at="2026-01-01T00:00:00Z",
    )
    WorkerEventRecorder(WorkerId(worker), log=log, ids=ids).record_started(
        card, load_ms=1, versions=""
    )


def test_changed_fingerprint_is_an_event() -> None:
    log, ids = InMemoryEventLog(), SequentialIds()
    start(log, ids, "worker-1", "sha256:a")
    start(log, ids, "worker-2", "sha256:a")
    assert [event.type for event in log.load(MODEL)] == ["ModelLoaded", "ModelLoaded"]
    start(log, ids, "worker-3", "sha256:b")
    changed, loaded = log.load(MODEL)[2:]
    assert (changed.type, loaded.type) == ("ModelWeightsChanged", "ModelLoaded")
    assert (changed.data["before"], changed.data["after"]) == ("sha256:a", "sha256:b")
    start(log, ids, "worker-4", "sha256:b")
    assert [event.type for event in log.load(MODEL)][4:] == ["ModelLoaded"]


def test_only_the_previous_worker_that_did_not_stop_is_lost() -> None:
    log, ids = InMemoryEventLog(), SequentialIds()
    for name in ("worker-mine", "worker-of-another-machine", "worker-stopped"):
        start(log, ids, name, "sha256:a")
    stopped = WorkerId("worker-stopped")
    WorkerEventRecorder(stopped, log=log, ids=ids).record(WorkerStopped(worker=stopped))
    recorder = WorkerEventRecorder(WorkerId("worker-next"), log=log, ids=ids)
    assert recorder.record_lost(WorkerId("worker-mine"))
    assert not recorder.record_lost(WorkerId("worker-mine"))
    assert not recorder.record_lost(stopped)
    assert not recorder.record_lost(WorkerId("worker-that-never-began"))
    lost = [event for event in log.read_all(limit=100) if event.type == "WorkerLost"]
    assert [event.stream for event in lost] == ["worker-mine"]
