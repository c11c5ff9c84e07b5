"""``WorkerPulses`` and ``ControlSignals``, on the fake, on fakeredis and on both brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from domain.engine.control import AdmissionState, EngineValues
from domain.engine.figures import RowFigures, RowPhase, WorkCounts
from domain.engine.workers import (
    AgentQueueState,
    ControlTopic,
    TurnState,
    WorkerPulse,
    WorkerPulses,
)
from domain.errors import QueueUnavailable
from domain.values import (
    CacheFigures,
    DraftFigures,
    JobId,
    ModelCard,
    Priority,
    WaitingFor,
    WaitingJob,
    WorkerId,
)
from ops.broker.client import Keys, connect
from ops.broker.control import ControlListener, RedisControlSignals, RedisWorkerPulses
from tests.support.fakes.broker import FakeWorkerPulses
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.brokers import client_of

CARD = ModelCard(
    id="demo",
    fingerprint="sha256:00",
    context_length=2048,
    description="a model",
    created_at="2026-01-01T00:00:00Z",
)
LOADING = WorkerPulse(worker=WorkerId("engine-0"), pid=7, state="loading", model=None)
CACHE = CacheFigures(
    ram_blocks=3, ram_used_bytes=300, ram_budget_bytes=1000, disk="on", disk_blocks=5
)
TURNS = TurnState(
    slots=8,
    interactive_reserved=2,
    running=(JobId("job-1"), JobId("job-2")),
    lines=(AgentQueueState(priority=Priority.BATCH, agent="a", turns_ago=3),),
    passed_batch=1,
)
READY = WorkerPulse(
    worker=WorkerId("engine-1"),
    pid=8,
    state="ready",
    model=CARD,
    cache=CACHE,
    drafts=DraftFigures(drafts=2, drafted_tokens=9, accepted_tokens=7),
    turns=TURNS,
    waiting=(WaitingJob(id=JobId("job-2"), waiting_for=WaitingFor.MEMORY, position=0),),
    values=EngineValues(batch_window_ms=0.5, max_batch_size=4, gap_max_ms=100),
    admission=AdmissionState.PAUSED,
    counts=WorkCounts(generated_tokens=5, first_tokens=1, first_token_ms=2.5),
    slow_step="decode of 1 rows",
    rows=(
        RowFigures(
            job=JobId("job-1"),
            phase=RowPhase.PREFILL,
            prompt_tokens=9,
            read_tokens=4,
            cached_tokens=2,
            generated_tokens=0,
            max_tokens=7,
        ),
    ),
    place="engine-1f",
    host="studio",
    metrics={"eviction_total": {"ram": 3.0, "disk": 1.0}},
)
#: So long that nobody fades while a test looks.
LASTING_MS = 600_000


@pytest.fixture(params=["fake", "fakeredis", "valkey", "redis"])
def pulses_and_fade(
    request: pytest.FixtureRequest, keys: Keys
) -> Iterator[tuple[WorkerPulses, Callable[[], None]]]:
    if request.param == "fake":
        fake = FakeWorkerPulses()
        yield fake, fake.fade
        return
    client = client_of(request, request.param)
    real = RedisWorkerPulses(client, keys, ttl_ms=LASTING_MS)

    def fade() -> None:
        for last in real.alive():
            RedisWorkerPulses(client, keys, ttl_ms=1).beat(last)
        wait_until(lambda: not real.alive())

    yield real, fade
    client.close()


def test_heartbeat_replies_whether_the_rows_are_watched(
    pulses_and_fade: tuple[WorkerPulses, Callable[[], None]],
) -> None:
    pulses, _ = pulses_and_fade
    assert not pulses.beat(READY).is_watched
    pulses.watch()
    assert pulses.beat(READY).is_watched


def test_pulses_are_listed_by_worker_until_they_fade(
    pulses_and_fade: tuple[WorkerPulses, Callable[[], None]],
) -> None:
    pulses, fade = pulses_and_fade
    assert pulses.alive() == ()
    pulses.beat(READY)
    pulses.beat(LOADING)
    assert pulses.alive() == (LOADING, READY)
    fade()
    assert pulses.alive() == ()


def test_beat_reports_a_pulse_that_the_broker_has_lost(
    pulses_and_fade: tuple[WorkerPulses, Callable[[], None]],
) -> None:
    pulses, fade = pulses_and_fade
    assert not pulses.beat(READY).was_known
    fade()
    assert not pulses.beat(READY).was_known


def test_beat_reports_a_pulse_that_the_broker_still_has(keys: Keys, client: redis.Redis) -> None:
    pulses = RedisWorkerPulses(client, keys)
    pulses.beat(READY)
    assert pulses.beat(READY).was_known
    assert not pulses.beat(LOADING).was_known
    client.delete(keys.pulses)
    assert not pulses.beat(READY).was_known


def test_later_pulse_of_a_worker_replaces_the_earlier(
    pulses_and_fade: tuple[WorkerPulses, Callable[[], None]],
) -> None:
    pulses, _ = pulses_and_fade
    ready = WorkerPulse(worker=LOADING.worker, pid=7, state="ready", model=CARD)
    pulses.beat(LOADING)
    pulses.beat(ready)
    assert pulses.alive() == (ready,)


def test_dead_worker_fades_while_another_lives(client: redis.Redis, keys: Keys) -> None:
    RedisWorkerPulses(client, keys, ttl_ms=1).beat(LOADING)
    pulses = RedisWorkerPulses(client, keys, ttl_ms=LASTING_MS)

    def only_the_other_is_left() -> bool:
        pulses.beat(READY)
        return pulses.alive() == (READY,) and client.hlen(keys.pulses) == 1

    wait_until(only_the_other_is_left)


def test_nudge_reaches_the_listener_and_one_that_fails_does_not_deafen_it(
    client: redis.Redis, keys: Keys
) -> None:
    received: list[JobId] = []
    listening, done, tuned = threading.Event(), threading.Event(), threading.Event()

    def receive(job_id: JobId) -> None:
        received.append(job_id)
        if job_id == "job-1":
            raise ValueError
        done.set()

    listener = ControlListener(
        client,
        keys,
        on_cancel=receive,
        on_listening=listening.set,
        on_topic={ControlTopic.ENGINE: tuned.set},
    )
    with listener:
        assert listening.wait(scaled(WITHIN_S))
        for unknown in ("not a nudge", "{}", '{"kind": []}', '{"kind": "of a later version"}'):
            client.publish(keys.control, unknown)
        signals = RedisControlSignals(client, keys)
        signals.nudge_cancel(JobId("job-1"))
        signals.nudge_cancel(JobId("job-2"))
        signals.nudge(ControlTopic.ENGINE)
        assert tuned.wait(scaled(WITHIN_S))
        assert done.wait(scaled(WITHIN_S))
        assert received == ["job-1", "job-2"]


def test_listener_reports_that_it_listens_again_after_a_lost_connection(
    redis_url: str, keys: Keys
) -> None:
    client = connect(redis_url)
    begun = threading.Semaphore(0)
    received = threading.Event()
    listener = ControlListener(
        client, keys, on_cancel=lambda _: received.set(), on_listening=begun.release
    )
    with listener:
        assert begun.acquire(timeout=scaled(WITHIN_S))
        client.client_kill_filter(_type="pubsub")
        assert begun.acquire(timeout=scaled(WITHIN_S))
        RedisControlSignals(client, keys).nudge_cancel(JobId("job-1"))
        assert received.wait(scaled(WITHIN_S))
    client.close()


def test_broker_that_is_down_is_named_so() -> None:
    gone = connect("redis://127.0.0.1:9/0")
    with pytest.raises(QueueUnavailable):
        RedisWorkerPulses(gone, Keys("t")).alive()
    with pytest.raises(QueueUnavailable):
        RedisWorkerPulses(gone, Keys("t")).beat(LOADING)
    with pytest.raises(QueueUnavailable):
        RedisControlSignals(gone, Keys("t")).nudge_cancel(JobId("job-1"))
    with pytest.raises(QueueUnavailable):
        RedisControlSignals(gone, Keys("t")).nudge(ControlTopic.ENGINE)
