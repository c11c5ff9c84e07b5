"""Attempts under another fingerprint: no answer mixes the tokens of two models."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from domain.chat.items import Finished, Started, StreamItem, Text
from domain.events.job import AttemptStarted
from domain.job.run_attempt import RunResult
from domain.log.codec import decode_recorded
from domain.values import Digest, JobId, JobStatus, StreamName
from tests.support.builders.job_world import JobWorld
from tests.unit.domain.job.test_run_attempt import start_attempt

ANSWER = "The answer of the present model."
OTHER = "sha256:" + "a" * 64


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER}) as world:
        yield world


def speak(world: JobWorld, job_id: JobId, text: str) -> list[StreamItem]:
    """Publish what the first attempt emitted, one character per item."""
    items = [
        StreamItem(n=0, attempt=1, body=Started(prompt_tokens=2, cached_tokens=0)),
        *(
            StreamItem(n=n, attempt=1, body=Text(text=character, ids=(ord(character),)))
            for n, character in enumerate(text, start=1)
        ),
    ]
    world.broker.items.publish([(job_id, item) for item in items])
    return items


def last_start(world: JobWorld, job_id: JobId) -> AttemptStarted:
    events = [decode_recorded(recorded) for recorded in world.log.load(StreamName(job_id))]
    return [event for event in events if isinstance(event, AttemptStarted)][-1]


def test_half_answer_of_another_model_is_not_continued(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id, fingerprint=OTHER)
    speak(world, job_id, "Half an answer of")
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER
    items = world.items(job_id)
    assert [item.n for item in items] == list(range(len(items)))
    assert {(item.attempt, item.epoch) for item in items} == {(2, 2)}
    assert isinstance(items[0].body, Started)
    assert isinstance(items[-1].body, Finished)
    started = last_start(world, job_id)
    assert (started.first_item, started.resumed_tokens) == (0, 0)
    output = world.job(job_id).output
    assert output is not None
    assert json.loads(world.log.get(Digest(output)))["text"] == ANSWER


def test_attempt_of_the_same_model_goes_on_in_the_later_epoch(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id, fingerprint=OTHER)
    start_attempt(world, job_id)
    present = [
        StreamItem(n=0, attempt=2, body=Started(prompt_tokens=2, cached_tokens=0), epoch=2),
        StreamItem(n=1, attempt=2, body=Text(text="The", ids=tuple(map(ord, "The"))), epoch=2),
    ]
    world.broker.items.publish([(job_id, item) for item in present])
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER
    assert last_start(world, job_id).resumed_tokens == 3
    assert {item.epoch for item in world.items(job_id)} == {2}


def test_items_that_a_broker_restored_are_not_mixed_with_those_of_the_present_model(
    world: JobWorld,
) -> None:
    job_id = world.submit()
    start_attempt(world, job_id, fingerprint=OTHER)
    start_attempt(world, job_id)
    speak(world, job_id, "Half an answer of")  # of the first attempt
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER


def test_deaths_under_another_model_do_not_count_against_the_job(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id, fingerprint=OTHER)
    start_attempt(world, job_id)
    assert world.job(job_id).deaths_without_progress == 0


def test_job_that_is_cancelled_between_two_models_has_one_end(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id, fingerprint=OTHER)
    spoken = speak(world, job_id, "Half")
    world.cancel(job_id)
    assert world.job(job_id).status is JobStatus.CANCELLED
    items = world.items(job_id)
    assert items[:-1] == tuple(spoken)
    assert isinstance(items[-1].body, Finished)
