from __future__ import annotations

import threading

import pytest
import structlog

from api.loops import batches as batch_thread
from api.loops.batches import BatchThread, LineThreads
from domain.batch.driver import BatchDriver
from domain.batch.state import BatchState
from tests.support.builders.batch_world import BatchWorld
from tests.support.polling import wait_until


def test_thread_takes_up_what_is_open_and_survives_a_log_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_thread, "BUSY_S", 0.01)
    steps: list[BatchDriver] = []
    advance = BatchDriver.advance

    def counted(driver: BatchDriver) -> int:
        steps.append(driver)
        return advance(driver)

    monkeypatch.setattr(BatchDriver, "advance", counted)
    with BatchWorld() as world:
        batch_id = world.submit_batch("one")
        world.log.unavailable = True
        woken = threading.Event()
        thread = BatchThread(world.driver, woken=woken, logger=structlog.get_logger("test"))
        thread.start()
        try:
            wait_until(lambda: len(steps), lambda count: count > 3)
            assert not world.log.views.rows
            world.log.unavailable = False

            def state() -> BatchState:
                world.work()
                woken.set()
                return world.batch(batch_id).state

            wait_until(state, lambda seen: seen is BatchState.ENDED)
        finally:
            thread.close()


def test_threads_do_every_line_and_then_tell_the_first_failure() -> None:
    done: list[int] = []

    def act(line: tuple[int, bytes]) -> None:
        if line[0] == 3:
            raise ValueError(line)
        done.append(line[0])

    threads = LineThreads()
    try:
        with pytest.raises(ValueError, match="3"):
            threads(act, [(number, b"") for number in range(10)])
    finally:
        threads.close()
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
