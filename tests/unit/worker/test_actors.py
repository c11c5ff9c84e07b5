"""A delivery while the log is unavailable."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from domain.errors import LogUnavailable
from domain.values import JobStatus
from tests.support.builders.job_world import JobWorld
from worker.actors import _run_deliveries, _run_to_the_end


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": "Hello!"}) as world:
        yield world


class Refusals:
    """An ``append`` that is refused a few times first."""

    def __init__(self, world: JobWorld, count: int) -> None:
        self.left = count
        self._append = world.log.append
        world.log.append = self  # type: ignore[method-assign]  # a fault

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.left:
            self.left -= 1
            message = "the disk is full"
            raise LogUnavailable(message)
        return self._append(*args, **kwargs)


def test_delivery_is_kept_until_the_log_is_back(world: JobWorld) -> None:
    job_id = world.submit()
    refusals = Refusals(world, 2)
    _run_to_the_end(job_id, world.runner, threading.Event(), time.sleep)
    assert refusals.left == 0
    assert world.job(job_id).status is JobStatus.COMPLETED


def test_draining_worker_leaves_the_delivery_to_the_next(world: JobWorld) -> None:
    job_id = world.submit()
    Refusals(world, 1)
    draining = threading.Event()
    draining.set()
    with pytest.raises(LogUnavailable):
        _run_to_the_end(job_id, world.runner, draining, time.sleep)
    assert world.job(job_id).status is JobStatus.QUEUED


class Defect:
    """An engine that raises what no part of the worker expects."""

    def __init__(self, world: JobWorld) -> None:
        self.runner = replace(world.runner, engine=self)  # type: ignore[arg-type]  # a fault

    def card(self) -> None:
        message = "this was closed"
        raise RuntimeError(message)


@pytest.mark.parametrize(
    ("is_ending", "status"), [(False, JobStatus.FAILED), (True, JobStatus.QUEUED)]
)
def test_defect_fails_a_job_with_its_traceback_except_while_the_worker_ends(
    world: JobWorld,
    is_ending: bool,  # noqa: FBT001 - a case
    status: JobStatus,
) -> None:
    job_id, draining = world.submit(), threading.Event()
    if is_ending:
        draining.set()
    with capture_logs() as lines:
        _run_deliveries(Defect(world).runner, draining)(job_id)
    assert world.job(job_id).status is status
    (line,) = [one for one in lines if one["event"] == "attempt_crashed"]
    assert (line["log_level"], line["exc_info"]) == ("error", True)
