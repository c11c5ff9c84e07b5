"""A job that takes over the first tokens of another answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from domain.chat.items import Body, Started, StreamItem, Text
from domain.chat.stored_answer import StoredAnswer
from domain.events.job import AttemptStarted
from domain.job.run_attempt import RunResult
from domain.log.codec import decode_recorded
from domain.values import JobId, JobStatus, StreamName
from tests.support.builders.job_world import JobWorld
from tests.unit.domain.job.test_run_attempt import start_attempt

ANSWER = "A scripted answer."
AT = 5


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER}) as world:
        yield world


def _fork(world: JobWorld, *, at: int = AT, **facts: Any) -> JobId:
    parent = world.submit()
    world.run(parent)
    job = world.job(parent)
    assert job.started is not None
    inherited = {
        "parent": parent,
        "parent_tokens": at,
        "parent_output": job.output,
        "parent_fingerprint": job.started.fingerprint,
    }
    return world.accept(command=inherited | facts).job_id


def _streamed(world: JobWorld, job_id: JobId) -> str:
    items = world.items(job_id)
    assert [item.n for item in items] == list(range(len(items)))
    assert isinstance(items[0].body, Started)
    return "".join(item.body.text for item in items if isinstance(item.body, Text))


@pytest.mark.parametrize("at", [0, 1, AT, len(ANSWER)])
def test_fork_streams_and_stores_the_whole_answer(world: JobWorld, at: int) -> None:
    fork = _fork(world, at=at)
    assert world.run(fork) is RunResult.ENDED
    assert _streamed(world, fork) == ANSWER
    job = world.job(fork)
    assert job.status is JobStatus.COMPLETED
    assert job.output is not None
    answer = StoredAnswer.from_bytes(world.log.get(job.output))
    assert (answer.text, answer.token_ids) == (ANSWER, tuple(map(ord, ANSWER)))
    (started,) = [
        event
        for recorded in world.log.load(StreamName(fork))
        if isinstance(event := decode_recorded(recorded), AttemptStarted)
    ]
    assert (started.resumed_tokens, started.first_item) == (at, 0)


def test_fork_whose_worker_died_before_it_emitted_begins_at_the_same_token(
    world: JobWorld,
) -> None:
    fork = _fork(world)
    start_attempt(world, fork, resumed=AT)
    assert world.run(fork) is RunResult.ENDED
    assert _streamed(world, fork) == ANSWER


def test_fork_whose_worker_died_within_the_inherited_tokens_emits_each_once(
    world: JobWorld,
) -> None:
    fork = _fork(world)
    start_attempt(world, fork, resumed=AT)
    begun: list[Body] = [
        Started(prompt_tokens=2, cached_tokens=0),
        Text(text="A s", ids=(65, 32, 115)),
    ]
    items = [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(begun)]
    world.broker.items.publish([(fork, item) for item in items])
    assert world.run(fork) is RunResult.ENDED
    assert _streamed(world, fork) == ANSWER


def test_fork_that_is_cancelled_as_it_starts_streams_what_it_stores(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, attach = _fork(world), world.active.attach
    assert [world.broker.queue.take() for _ in range(2)][-1] == fork

    def cancel_first(job_id: JobId, handle: Any, *, attempt: int) -> None:
        has_started = world.job(fork).attempt == attempt
        if has_started:
            world.cancel(fork)
            world.nudge(fork)
        attach(job_id, handle, attempt=attempt)
        if has_started:
            handle.wait()  # until the engine has stopped it

    monkeypatch.setattr(world.active, "attach", cancel_first)
    world.engine.hold()
    assert world.run(fork) is RunResult.ENDED
    job = world.job(fork)
    assert (job.status, job.attempt) == (JobStatus.CANCELLED, 1)
    assert job.output is not None
    stored = StoredAnswer.from_bytes(world.log.get(job.output)).text
    assert _streamed(world, fork) == stored == ANSWER[:AT]


def test_fork_continues_under_no_other_weights(world: JobWorld) -> None:
    fork = _fork(world, parent_fingerprint="sha256:other")
    assert world.run(fork) is RunResult.ENDED
    job = world.job(fork)
    assert (job.status, job.error) == (JobStatus.FAILED, "model_unusable")


def test_fork_of_an_erased_answer_fails(world: JobWorld) -> None:
    fork = _fork(world)
    output = world.job(fork).submitted.parent_output
    assert output is not None
    world.log.lose_payload(output)
    assert world.run(fork) is RunResult.ENDED
    assert world.job(fork).error == "payload_missing"
