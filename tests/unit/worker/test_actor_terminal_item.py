"""The actor when the broker is unavailable as a job ends."""

from __future__ import annotations

import threading

from domain.errors import QueueUnavailable
from domain.values import JobStatus
from tests.support.builders.job_world import JobWorld
from worker.actors import _run_deliveries


def test_terminal_item_is_published_when_the_broker_is_back() -> None:
    with JobWorld({"hi": "Hello."}) as world:
        job_id = world.submit()
        publish = world.broker.items.publish
        pauses: list[float] = []

        def goes_away(items: object) -> None:
            if any(item.is_terminal for _, item in items):  # type: ignore[attr-defined]  # pairs
                world.broker.down = True
                message = "gone"
                raise QueueUnavailable(message)
            publish(items)  # type: ignore[arg-type]  # pairs

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            assert world.job(job_id).status is JobStatus.COMPLETED
            world.broker.items.publish = publish  # type: ignore[method-assign]  # mended
            world.broker.down = len(pauses) < 3

        world.broker.items.publish = goes_away  # type: ignore[method-assign]  # a fault
        _run_deliveries(world.runner, threading.Event(), pause)(job_id)
        assert len(pauses) == 3
        assert world.items(job_id)[-1].is_terminal
        assert world.text(job_id) == "Hello."
