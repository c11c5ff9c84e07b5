"""Jobs whose answers call tools: what is kept of them, and what a crash in the middle leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from domain.chat.items import Body, StreamItem, ToolStart
from domain.job.commit import commit
from domain.job.run_attempt import RunResult
from domain.values import Digest, JobId, StreamName
from tests.support.builders.job_events import start_command
from tests.support.builders.job_world import JobWorld

_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}},
)
_CALL = '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
_ANSWER = f"Look. {_CALL}{_CALL}"


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"go": _ANSWER}) as world:
        yield world


def _submit(world: JobWorld) -> JobId:
    return world.submit("go", max_tokens=900, tools=_TOOLS)


def test_calls_are_kept_with_the_answer(world: JobWorld) -> None:
    job_id = _submit(world)
    assert world.run(job_id) is RunResult.ENDED
    last = world.log.load(StreamName(job_id))[-1]
    output = json.loads(world.log.get(Digest(last.data["output"])))
    assert output["text"] == "Look."
    assert output["tool_calls"] == [
        {
            "id": f"toolu_{job_id.removeprefix('job-')}_{n}",
            "name": "Bash",
            "arguments": '{"command": "ls"}',
            "is_complete": True,
        }
        for n in (0, 1)
    ]


def test_crash_after_any_item_of_a_call_loses_and_repeats_nothing(world: JobWorld) -> None:
    undisturbed = _submit(world)
    world.run(undisturbed)
    whole = world.items(undisturbed)
    for k in range(1, len(whole)):
        job_id = _submit(world)
        _die(world, job_id)
        emitted = [replace(item, body=_moved(item.body, undisturbed, job_id)) for item in whole]
        world.broker.items.publish([(job_id, item) for item in emitted[:k]])
        assert world.run(job_id) is RunResult.ENDED
        assert _plain(world.items(job_id)) == _plain(emitted), k


def _die(world: JobWorld, job_id: JobId) -> None:
    """Record an attempt of a worker that then died."""
    dead = start_command("dead")
    commit(job_id, dead, log=world.log, ids=world.ids)


def _moved(body: Body, from_job: JobId, to_job: JobId) -> Body:
    """Return the items of the other job: ids of calls are made of the job's."""
    if not isinstance(body, ToolStart):
        return body
    here, there = (job.removeprefix("job-") for job in (from_job, to_job))
    return replace(body, id=body.id.replace(here, there))


def _plain(items: tuple[StreamItem, ...] | list[StreamItem]) -> list[tuple[int | None, Body]]:
    return [(item.n, item.body) for item in items]
