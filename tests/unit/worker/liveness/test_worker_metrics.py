"""The metrics of a worker over its restarts, and while its parts come and go."""

from __future__ import annotations

from pathlib import Path

from domain.engine.figures import WorkCounts
from ops.observe.counter_file import CounterFile, Figures
from ops.observe.families import FAMILIES
from worker.liveness.pulse import WorkerMetrics


class Part:
    """A part of the worker that counts."""

    def __init__(self) -> None:
        self.figures: Figures = {}

    def __call__(self) -> Figures:
        return self.figures


def worker(path: Path) -> tuple[WorkerMetrics, Part]:
    metrics, part = WorkerMetrics("place", CounterFile(path)), Part()
    metrics.add(part)
    return metrics, part


def test_worker_that_was_killed_goes_on_with_its_last_published_totals(tmp_path: Path) -> None:
    path = tmp_path / "worker.counters.json"
    first, part = worker(path)
    part.figures = {"eviction_total": {"ram": 7.0}}
    assert first.read()["eviction_total"] == {"ram": 7.0}

    second, part = worker(path)
    assert second.read()["eviction_total"] == {"ram": 7.0}
    part.figures = {"eviction_total": {"ram": 2.0, "disk": 1.0}}
    assert second.read()["eviction_total"] == {"ram": 9.0, "disk": 1.0}


def test_part_that_has_ended_keeps_its_counts(tmp_path: Path) -> None:
    metrics, part = worker(tmp_path / "worker.counters.json")
    part.figures = {"eviction_total": {"ram": 7.0}}
    metrics.read()
    part.figures = {"eviction_total": {"ram": 0.0}}
    assert metrics.read()["eviction_total"] == {"ram": 7.0}
    part.figures = {}
    assert metrics.read()["eviction_total"] == {"ram": 7.0}


def test_values_are_those_of_now_and_of_this_process(tmp_path: Path) -> None:
    metrics, part = worker(tmp_path / "worker.counters.json")
    part.figures = {"disk_cache_queued_blocks": {"": 5.0}}
    assert metrics.read()["disk_cache_queued_blocks"] == {"": 5.0}
    part.figures = {"disk_cache_queued_blocks": {"": 0.0}}
    found = metrics.read()
    assert found["disk_cache_queued_blocks"] == {"": 0.0}
    assert found["process_resident_memory_bytes"][""] > 1e6
    assert found.keys() <= FAMILIES.keys()


def test_work_of_the_engine_has_totals_and_a_rate(tmp_path: Path) -> None:
    now_s = 5.0
    file = CounterFile(tmp_path / "worker.counters.json")
    metrics = WorkerMetrics("place", file, clock=lambda: now_s)
    assert "worker_starts_total" not in metrics.read()
    first = metrics.read(WorkCounts(generated_tokens=10, computed_tokens=100))
    assert first["worker_starts_total"] == {"": 1.0}
    assert first["tokens_per_second"] == {"": 0.0}
    now_s = 7.0
    found = metrics.read(WorkCounts(generated_tokens=30, computed_tokens=100))
    assert found["tokens_per_second"] == {"": 10.0}
    assert found["engine_generated_tokens_total"] == {"": 30.0}
    assert found["engine_prefill_tokens_total"] == {"": 100.0}
    assert "tokens_per_second" not in metrics.read()
