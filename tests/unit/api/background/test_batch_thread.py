from __future__ import annotations

import threading

import pytest
import structlog

from api.background import batch_thread
from api.background.batch_thread import BatchThread, LineThreads
from domain.batch.state import BatchState
from tests.support.builders.batch_world import BatchWorld

PATIENCE_S = 60.0


def test_thread_takes_up_what_is_open_and_survives_a_log_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_thread, "BUSY_S", 0.01)
    with BatchWorld() as world:
        batch_id = world.submit_batch("one")
        world.log.unavailable = True
        woken = threading.Event()
        thread = BatchThread(world.driver, woken=woken, logger=structlog.get_logger("test"))
        thread.start()
        try:
            waiting = threading.Event()
            assert not waiting.wait(0.05)
            assert not world.log.views.rows
            world.log.unavailable = False
            for _ in range(int(PATIENCE_S / 0.01)):
                world.work()
                woken.set()
                if world.batch(batch_id).state is BatchState.ENDED:
                    break
                waiting.wait(0.01)
            assert world.batch(batch_id).state is BatchState.ENDED
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
