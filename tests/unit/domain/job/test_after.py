"""Jobs that wait for other jobs, with their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.audit.timeline import build_timeline
from domain.chat.earlier_answers import require_known, with_answers
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest
from domain.events.job import JobReleased
from domain.job.state import request_of
from domain.log.codec import decode_recorded
from domain.values import AfterCondition, JobId, JobStatus, Predecessor, SamplingWish, StreamName
from tests.support.builders.job_events import recorded_at, submitted
from tests.support.builders.job_world import JobWorld

ANSWER = "A scripted answer."
FILLED = f"Sum up: {ANSWER} and {ANSWER}"


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER, FILLED: "A sum."}) as world:
        yield world


def _after(world: JobWorld, *jobs: JobId, prompt: str = "hi", **facts: Any) -> JobId:
    condition = facts.pop("condition", AfterCondition.COMPLETED)
    after = tuple(
        Predecessor(name=str(number), job=job, condition=condition)
        for number, job in enumerate(jobs)
    )
    return world.accept(prompt, command={"after": after} | facts).job_id


def _request(content: str) -> ChatRequest:
    return ChatRequest(
        model="m",
        messages=(Message(role="user", content=content),),
        max_tokens=9,
        sampling=SamplingWish(seed=1),
    )


def test_a_job_runs_with_the_answers_of_all_that_it_waits_for(world: JobWorld) -> None:
    first, second = world.submit(), world.submit()
    last = _after(world, first, second, prompt="Sum up: {{after.0.text}} and {{ after.1.text }}")
    assert world.job(last).status is JobStatus.HELD
    assert world.due.release_due() == ()
    world.run(second)
    assert world.due.release_due() == ()
    world.run(first)
    assert world.due.release_due() == (last,)
    world.run(last)
    assert world.text(last) == "A sum."
    events = [decode_recorded(one) for one in world.log.load(StreamName(last))]
    request = ChatRequest.from_bytes(world.log.get(request_of(events)))
    assert request.messages[0].content == FILLED
    assert world.job(last).submitted.request == request_of(events)


def test_one_job_may_release_many(world: JobWorld) -> None:
    first = world.submit()
    others = [_after(world, first) for _ in range(3)]
    world.run(first)
    assert world.due.release_due() == tuple(others)
    assert world.due.release_due() == ()


def test_a_failed_predecessor_fails_its_successors_one_by_one(world: JobWorld) -> None:
    first = world.submit()
    second = _after(world, first)
    third = _after(world, second)
    world.cancel(first)
    assert world.due.release_due() == (second, third)
    for job in (second, third):
        ended = world.job(job)
        assert (ended.status, ended.error) == (JobStatus.FAILED, "predecessor_failed")
        assert [item.is_terminal for item in world.items(job)] == [True]
    assert first in (world.job(second).error_message or "")


def test_a_successor_may_be_skipped_instead(world: JobWorld) -> None:
    first = world.submit()
    second = _after(world, first, is_skippable=True)
    world.cancel(first)
    world.due.release_due()
    assert world.job(second).status is JobStatus.CANCELLED


def test_a_successor_may_run_after_any_end(world: JobWorld) -> None:
    first = world.submit()
    ended = _after(world, first, prompt="Sum up: {{after.0.text}}", condition=AfterCondition.ENDED)
    world.cancel(first)
    assert world.due.release_due() == (ended,)
    digest = world.job(ended).submitted.request
    assert ChatRequest.from_bytes(world.log.get(digest)).messages[0].content == "Sum up: "


def test_a_successor_whose_predecessor_is_retried_can_be_retried_too(world: JobWorld) -> None:
    first = world.submit()
    second = _after(world, first, prompt="Sum up: {{after.0.text}}")
    world.cancel(first)
    world.due.release_due()
    world.retry(first)
    assert world.retry(second).status is JobStatus.HELD
    assert world.broker.queue.take() == first
    assert world.broker.queue.take() is None
    assert world.due.release_due() == ()
    world.run(first)
    assert world.due.release_due() == (second,)


def test_an_answer_that_was_erased_fails_what_waits_for_it(world: JobWorld) -> None:
    first = world.submit()
    second = _after(world, first)
    world.run(first)
    output = world.job(first).output
    assert output is not None
    world.log.lose_payload(output)
    world.due.release_due()
    assert (world.job(second).status, world.job(second).error) == (
        JobStatus.FAILED,
        "payload_missing",
    )


def test_a_held_job_waits_for_its_instant_and_for_others(world: JobWorld) -> None:
    first = world.submit()
    second = _after(world, first, start_after="2026-01-01T00:00:05.000000Z")
    world.run(first)
    assert world.due.release_due() == ()
    world.clock.advance(5)
    assert world.due.release_due() == (second,)


def test_the_timeline_names_what_a_job_waits_for() -> None:
    after = (Predecessor(name="facts", job="job-9"),)
    timeline = build_timeline(recorded_at((0, submitted(after=after)), (3, JobReleased())))
    assert timeline.steps[1].text == "held until facts (job-9) has completed"


@pytest.mark.parametrize(
    "place", ["{{after.b.text}}", "{{after.a.json}}", "{{after.a}}", "{{after.}}"]
)
def test_a_place_that_no_answer_fills_is_refused(place: str) -> None:
    require_known(_request("{{after.a.text}} {{other}}"), ["a"])
    with pytest.raises(InvalidRequest, match=r"there is \{\{after\.a\.text"):
        require_known(_request(f"x {place}"), ["a"])


@given(st.text(), st.text())
def test_an_answer_stands_in_the_prompt_as_it_is(answer: str, other: str) -> None:
    filled = with_answers(
        _request("<{{after.a.text}}|{{after.b.text}}>"), {"a": answer, "b": other}
    )
    assert filled.messages[0].content == f"<{answer}|{other}>"


def test_a_place_in_an_answer_is_not_filled() -> None:
    filled = with_answers(_request("{{after.a.text}}"), {"a": "{{after.b.text}}", "b": "secret"})
    assert filled.messages[0].content == "{{after.b.text}}"
