"""A recorded end that was not published, and when it may be published again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from domain.chat.items import Failed, StreamItem, Text
from domain.errors import EngineFailure, QueueUnavailable
from domain.job.run_attempt import RunResult
from domain.values import JobId, JobStatus
from tests.support.builders.job_world import JobWorld

_TOOLS = ({"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}},)
_CALL = '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
_WISHES: dict[str, tuple[str, dict[str, Any]]] = {
    "its own end": ("Hello there.", {}),
    "a stop text": ("one two STOP three", {"stop": ("STOP",)}),
    "nothing but a stop text": ("STOP", {"stop": ("STOP",)}),
    "tags without a thought": ("</think>", {"thinking": True}),
    "a thought": ("Hm.</think>Yes.", {"thinking": True}),
    "the limit": ("Hello there.", {"max_tokens": 3}),
    "calls": (f"Look. {_CALL}{_CALL}", {"max_tokens": 900, "tools": _TOOLS}),
    "a call that was cut off": (_CALL, {"max_tokens": 60, "tools": _TOOLS}),
}


def _run_without_end(world: JobWorld, wishes: dict[str, Any]) -> JobId:
    """Run a job whose last item the broker does not take."""
    job_id = world.submit(**wishes)
    publish = world.broker.items.publish

    def dies(items: Sequence[tuple[JobId, StreamItem]]) -> None:
        if any(item.is_terminal for _, item in items):
            message = "gone"
            raise QueueUnavailable(message)
        publish(items)

    world.broker.items.publish = dies  # type: ignore[method-assign]  # a fault
    with pytest.raises(QueueUnavailable):
        world.run(job_id)
    world.broker.items.publish = publish  # type: ignore[method-assign]  # mended
    assert world.job(job_id).status is JobStatus.COMPLETED
    return job_id


@pytest.mark.parametrize("ended_by", _WISHES)
def test_crash_between_last_event_and_last_item_is_healed_by_the_next_delivery(
    ended_by: str,
) -> None:
    answer, wishes = _WISHES[ended_by]
    with JobWorld({"hi": answer}) as world:
        job_id = _run_without_end(world, wishes)
        whole = len(world.items(job_id))
        assert world.run(job_id) is RunResult.NOTHING_TO_DO
        items = world.items(job_id)
        assert items[-1].body == world.job(job_id).ending
        assert len(items) == whole + 1


def _lose_last(items: Sequence[StreamItem]) -> Sequence[StreamItem]:
    return items[:-1]


def _lose_all(items: Sequence[StreamItem]) -> Sequence[StreamItem]:
    del items
    return ()


@pytest.mark.parametrize("lose", [_lose_last, _lose_all])
@pytest.mark.parametrize("ended_by", ["its own end", "a stop text", "a thought", "calls"])
def test_end_is_not_published_behind_a_hole(
    ended_by: str, lose: Callable[[Sequence[StreamItem]], Sequence[StreamItem]]
) -> None:
    answer, wishes = _WISHES[ended_by]
    with JobWorld({"hi": answer}) as world:
        job_id = _run_without_end(world, wishes)
        left = lose(world.items(job_id))
        world.broker.items.forget(job_id)
        world.broker.items.publish([(job_id, item) for item in left])
        world.run(job_id)
        assert world.items(job_id) == tuple(left)


def test_end_is_not_published_of_an_answer_that_was_erased() -> None:
    with JobWorld({"hi": "Hello."}) as world:
        job_id = _run_without_end(world, {})
        output = world.job(job_id).output
        assert output is not None
        world.log.lose_payload(output)
        world.run(job_id)
        assert not world.items(job_id)[-1].is_terminal
        assert any(isinstance(item.body, Text) for item in world.items(job_id))


def test_end_follows_the_items_that_were_stored_where_later_ones_were_lost() -> None:
    with JobWorld({"hi": "Hello there."}) as world:
        job_id = world.submit()
        publish = world.broker.items.publish

        def breaks(items: Sequence[tuple[JobId, StreamItem]]) -> None:
            if any(isinstance(item.body, Text) for _, item in items):
                message = "lost"
                raise RuntimeError(message)
            publish(items)

        world.broker.items.publish = breaks  # type: ignore[method-assign]  # a fault
        results = [world.run(job_id)]
        while results[-1] is RunResult.REQUEUE:
            results.append(world.run(job_id))
        assert world.job(job_id).status is JobStatus.FAILED
        items = world.items(job_id)
        assert [item.n for item in items] == list(range(len(items)))
        assert isinstance(items[-1].body, Failed)
        assert items[-1].body.error == EngineFailure.code
