"""Jobs that ask how likely tokens were: what is kept, and what a crash in the middle leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from domain.chat.items import StreamItem, Text, ToolStart
from domain.chat.logprobs import TokenLogprob, from_json
from domain.job.run_attempt import RunResult
from domain.values import Digest, JobId, StreamName
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.engine import likelihood_of
from tests.unit.domain.job.test_run_attempt_calls import _die, _moved

_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}},
)
_CALL = '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
#: Text that is held back, a call, and text behind it.
_ANSWER = f"a <b> {_CALL}done"


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"go": _ANSWER}) as world:
        yield world


def _submit(world: JobWorld, logprobs: int | None = 2) -> JobId:
    return world.submit("go", max_tokens=900, tools=_TOOLS, logprobs=logprobs)


def _output(world: JobWorld, job_id: JobId) -> dict[str, Any]:
    last = world.log.load(StreamName(job_id))[-1]
    output: dict[str, Any] = json.loads(world.log.get(Digest(last.data["output"])))
    return output


def _emitted_logprobs(items: tuple[StreamItem, ...] | list[StreamItem]) -> list[TokenLogprob]:
    bodies = [item.body for item in items]
    return [one for body in bodies if isinstance(body, Text) for one in body.logprobs]


def test_logprobs_are_emitted_and_kept_with_the_answer(world: JobWorld) -> None:
    job_id = _submit(world)
    assert world.run(job_id) is RunResult.ENDED
    output = _output(world, job_id)
    kept = from_json(output["logprobs"])
    assert output["text"] == "a <b>done"
    assert b"".join(one.token for one in kept).decode() == "a <b>done"
    assert list(kept) == _emitted_logprobs(world.items(job_id))
    for one in kept:
        expected = likelihood_of(output["token_ids"][one.index], one.index, 2)
        assert one.logprob == expected.logprob
        assert [value for _, value in one.top] == [value for _, value in expected.top]


def test_nothing_is_kept_where_none_are_requested(world: JobWorld) -> None:
    job_id = _submit(world, None)
    world.run(job_id)
    assert "logprobs" not in _output(world, job_id)
    assert _emitted_logprobs(world.items(job_id)) == []


def test_crash_after_any_item_loses_and_repeats_no_likelihood(world: JobWorld) -> None:
    undisturbed = _submit(world)
    world.run(undisturbed)
    whole = world.items(undisturbed)
    kept = _output(world, undisturbed)["logprobs"]
    assert any(isinstance(item.body, ToolStart) for item in whole)
    for k in range(len(whole)):
        job_id = _submit(world)
        _die(world, job_id)
        emitted = [replace(item, body=_moved(item.body, undisturbed, job_id)) for item in whole]
        world.broker.items.publish([(job_id, item) for item in emitted[:k]])
        assert world.run(job_id) is RunResult.ENDED
        assert [(i.n, i.body) for i in world.items(job_id)] == [(i.n, i.body) for i in emitted], k
        assert _output(world, job_id)["logprobs"] == kept, k
