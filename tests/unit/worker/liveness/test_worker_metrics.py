"""The metrics of a worker over its restarts, and while its parts come and go."""

from __future__ import annotations

from pathlib import Path

from ops.metrics.counter_file import CounterFile, Figures
from ops.metrics.families import FAMILIES
from worker.liveness.worker_metrics import TokenRate, WorkerMetrics


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


def test_rate_is_that_of_the_time_between_two_readings() -> None:
    tokens, now_s = 10, 5.0
    rate = TokenRate(lambda: tokens, clock=lambda: now_s)
    assert rate() == {"tokens_per_second": {"": 0.0}}
    tokens, now_s = 30, 7.0
    assert rate() == {"tokens_per_second": {"": 10.0}}
