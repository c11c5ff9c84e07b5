"""Memory for contexts at 80, 90 and 100 %: accept, save eagerly, wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from api.operate.health import FILL_DEGRADED
from domain.errors import Overloaded
from domain.job.submit import require_room
from domain.values import JobId, Priority, WaitingFor, WaitingJob
from tests.support.fakes.event_log import InMemoryJobViews
from tests.support.fakes.time import FakeClock
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK
from tests.support.models.tiny_architectures import LLAMA
from worker.cachestore.cache_gauge import CacheGauge
from worker.engine.mlx import admission

BLOCKS = 200
WAIT_S = 30.0


class Eta:
    """What the api reads from the pulse."""

    def __init__(self, gauge: CacheGauge) -> None:
        self._gauge = gauge

    def of(self, job_id: JobId) -> None:
        del job_id

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float:
        del priority, waiting, limit
        return 7.0

    def full_s(self) -> float:
        figures = self._gauge.read()
        assert figures is not None
        return figures.full_s


@pytest.fixture
def bench(tmp_path: Path) -> DiskBench:
    spec = DiskBench(LLAMA, tmp_path / "probe").reuse._spec
    bench = DiskBench(LLAMA, tmp_path / "kv", budget_bytes=BLOCKS * spec.full_bytes(BLOCK))
    # Nothing that is computed can be freed.
    bench.hold_writes()
    return bench


def fill_to(bench: DiskBench, share: float, gauge: CacheGauge, *, blocks: int) -> None:
    """Start sequences that run until that share of the memory cannot be freed."""
    while fill_of(gauge) < share:
        run = bench.join(random_tokens(blocks * BLOCK, len(bench.runs)), 4 * BLOCK)
        while not run.tokens:
            bench.step()


def fill_of(gauge: CacheGauge) -> float:
    figures = gauge.read()
    assert figures is not None
    return figures.fill


def times_for_saving(bench: DiskBench, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the time that steps may take for saving from now on."""
    times: list[float] = []

    def recorded(is_due: Callable[[], bool]) -> bool:
        del is_due
        return False

    def after_s(seconds: float) -> Callable[[], bool]:
        times.append(seconds)
        return lambda: True

    monkeypatch.setattr(bench.reuse, "pump", recorded)
    monkeypatch.setattr(admission, "after_s", after_s)
    bench.step()
    return times


def test_pool_accepts_saves_eagerly_and_lets_jobs_wait(
    bench: DiskBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    gauge = CacheGauge(bench.tier, lambda *_: None, clock=clock.monotonic)
    gauge.watch(bench.runner)

    fill_to(bench, 0.8, gauge, blocks=30)
    assert 0.8 <= fill_of(gauge) < FILL_DEGRADED
    bench.join(random_tokens(BLOCK, 99), 1)
    with monkeypatch.context() as patch:
        assert admission.EAGER_MOVES_S_MAX not in times_for_saving(bench, patch)

    fill_to(bench, FILL_DEGRADED, gauge, blocks=4)
    with monkeypatch.context() as patch:
        assert admission.EAGER_MOVES_S_MAX in times_for_saving(bench, patch)

    # No room for another: it waits, and after a while the api refuses more.
    assert bench.runner.insert(bench.admission(random_tokens(30 * BLOCK, 100), 8)) is None
    waiting = WaitingJob(id=JobId("job-1"), waiting_for=WaitingFor.MEMORY, position=0)
    views, eta = InMemoryJobViews(), Eta(gauge)
    gauge.record_waiting([waiting])
    clock.advance(WAIT_S - 1)
    gauge.record_waiting([waiting])
    require_room(Priority.INTERACTIVE, jobs_max=9, views=views, eta=eta, memory_wait_s=WAIT_S)
    clock.advance(1)
    with pytest.raises(Overloaded) as refused:
        require_room(Priority.INTERACTIVE, jobs_max=9, views=views, eta=eta, memory_wait_s=WAIT_S)
    assert refused.value.retry_after_s >= 7

    # The disk takes what has ended, so that its memory can be freed.
    bench.let_write()
    bench.finish()
    bench.settle()
    assert fill_of(gauge) < 0.1
    assert bench.runner.insert(bench.admission(random_tokens(30 * BLOCK, 100), 8)) is not None
    gauge.record_waiting([])
    require_room(Priority.INTERACTIVE, jobs_max=9, views=views, eta=eta, memory_wait_s=WAIT_S)
