"""How long a worker that ends waits for its contexts and its jobs."""

from __future__ import annotations

import threading

import dramatiq
import fakeredis
import pytest

from domain.values import JobId, Priority
from ops.broker.client import Keys
from ops.broker.dramatiq_queue import ACTOR_NAME, BlockingRedisBroker, message_of
from ops.exit_codes import ExitCode
from tests.support.polling import scaled, unscaled
from worker.actors import Consumers
from worker.control import worker_drain
from worker.control.worker_drain import (
    SAVE_S,
    STOP_SAVE_S,
    PlannedExit,
    WorkerDrain,
    last_saves_s,
)

PATIENCE_S = 30.0

_SWAP = PlannedExit(ExitCode.SWAPPED, 300.0)


@pytest.mark.parametrize(
    ("planned", "is_asked_to_stop", "seconds"),
    [(None, False, STOP_SAVE_S), (_SWAP, False, SAVE_S), (_SWAP, True, STOP_SAVE_S)],
)
def test_a_planned_exit_waits_longer_than_a_stop(
    planned: PlannedExit | None, *, is_asked_to_stop: bool, seconds: float
) -> None:
    assert last_saves_s(planned, is_asked_to_stop=is_asked_to_stop) == seconds


class _IdleEngine:
    """An engine without generations."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def drain(self, _timeout_s: float) -> bool:
        return True

    def close(self, _timeout_s: float) -> None:
        self.closed.set()


def test_a_request_to_stop_shortens_the_wait_for_jobs_whose_broker_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_drain, "DRAIN_GRACE_S", 0.1)
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey"))
    broker = BlockingRedisBroker(client, Keys("t"), broker_id="engine-0")
    stuck, release = threading.Event(), threading.Event()

    def wait_for_the_broker(_job_id: str) -> None:
        stuck.set()
        release.wait()

    queue = Priority.BATCH.value
    dramatiq.actor(broker=broker, actor_name=ACTOR_NAME, queue_name=queue)(wait_for_the_broker)
    consumers, engine, asked = (
        Consumers(broker, {Priority.BATCH: 1}),
        _IdleEngine(),
        threading.Event(),
    )
    consumers.start()
    broker.enqueue(message_of(JobId("job-1"), queue))
    assert stuck.wait(scaled(PATIENCE_S))
    drain = WorkerDrain(
        engine=engine,  # type: ignore[arg-type]  # without generations
        consumers=consumers,
        stop_s=0.1,
        is_asked_to_stop=asked,
        on_saving=lambda: None,
    )
    thread = threading.Thread(target=drain.run, args=(_SWAP,), daemon=True)
    thread.start()
    try:
        assert engine.closed.wait(scaled(PATIENCE_S))
        thread.join(unscaled(0.5, reason="five times the time of a stop"))
        assert thread.is_alive(), "a swap gives jobs their time"
        asked.set()
        thread.join(scaled(PATIENCE_S))
        assert not thread.is_alive()
    finally:
        release.set()
    client.close()
