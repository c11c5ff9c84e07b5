"""One delivery, whatever state it finds the job in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from domain.chat.generation import ThinkingLimit
from domain.chat.items import Failed, Finished, Started, StreamItem, Text
from domain.errors import DeviceFailed, JobNotFound, LogUnavailable
from domain.events.job import JobCompleted
from domain.job.commit import commit
from domain.job.decisions import failed_attempt
from domain.job.run_attempt import DEVICE_FAILURES_MAX, RunResult
from domain.values import (
    Digest,
    JobId,
    JobStatus,
    PromptEncoding,
    StopReason,
    StreamName,
)
from tests.support.builders.job_events import start_command
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.engine import REFUSED
from tests.support.polling import scaled, wait_until

ANSWER = "A scripted answer."


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER}) as world:
        yield world


def start_attempt(
    world: JobWorld,
    job_id: JobId,
    *,
    resumed: int = 0,
    thinking_limit: int | None = None,
    fingerprint: str | None = None,
    encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
) -> None:
    """Record an attempt of a worker that then died."""
    dead = start_command(
        "dead",
        fingerprint=fingerprint or world.engine.card().fingerprint,
        resumed_tokens=resumed,
        thinking_limit=thinking_limit,
        encoding=encoding,
    )
    commit(job_id, dead, log=world.log, ids=world.ids)


def test_job_runs_to_its_end_in_log_and_stream(world: JobWorld) -> None:
    job_id = world.submit()
    assert world.run(job_id) is RunResult.ENDED
    assert world.types(job_id) == ["JobSubmitted", "AttemptStarted", "JobCompleted"]
    items = world.items(job_id)
    assert isinstance(items[0].body, Started)
    assert world.text(job_id) == ANSWER
    last = items[-1].body
    assert isinstance(last, Finished)
    assert last.stop_reason is StopReason.END_TURN
    assert [item.n for item in items] == list(range(len(items)))


def test_last_event_names_the_payload_that_holds_the_answer(world: JobWorld) -> None:
    job_id = world.submit()
    world.run(job_id)
    completed = world.log.load(StreamName(job_id))[-1]
    assert completed.type == JobCompleted.__name__
    output = json.loads(world.log.get(Digest(completed.data["output"])))
    assert output["text"] == ANSWER
    assert output["token_ids"] == [ord(character) for character in ANSWER]


def test_last_event_stands_in_the_log_before_the_last_item_is_published(world: JobWorld) -> None:
    job_id = world.submit()
    seen: list[JobStatus] = []
    publish = world.broker.items.publish

    def watched(items: list[tuple[JobId, StreamItem]]) -> None:
        seen.extend(world.job(job).status for job, item in items if item.is_terminal)
        publish(items)

    world.broker.items.publish = watched  # type: ignore[method-assign,assignment]  # a spy
    world.run(job_id)
    assert seen == [JobStatus.COMPLETED]


def test_second_delivery_of_an_ended_job_changes_nothing(world: JobWorld) -> None:
    job_id = world.submit()
    world.run(job_id)
    before = (world.types(job_id), world.items(job_id))
    assert world.run(job_id) is RunResult.NOTHING_TO_DO
    assert (world.types(job_id), world.items(job_id)) == before


@pytest.mark.parametrize("emitted", range(0, len(ANSWER) + 1, 3))
def test_attempt_after_a_crash_continues_after_the_last_emitted_token(
    world: JobWorld, emitted: int
) -> None:
    job_id = world.submit()
    start_attempt(world, job_id)
    spoken = [StreamItem(n=0, attempt=1, body=Started(prompt_tokens=2, cached_tokens=0))] + [
        StreamItem(n=n, attempt=1, body=Text(text=character, ids=(ord(character),)))
        for n, character in enumerate(ANSWER[:emitted], start=1)
    ]
    world.broker.items.publish([(job_id, item) for item in spoken])
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER
    assert [item.n for item in world.items(job_id)] == list(range(len(ANSWER) + 2))
    started = world.log.load(StreamName(job_id))[-2]
    assert started.data["attempt"] == 2
    assert started.data["resumed_tokens"] == emitted


def test_attempt_that_lost_the_items_emits_the_same_under_the_same_numbers(world: JobWorld) -> None:
    undisturbed = world.submit()
    world.run(undisturbed)
    job_id = world.submit()
    start_attempt(world, job_id)
    world.run(job_id)
    assert [(item.n, item.body) for item in world.items(job_id)] == [
        (item.n, item.body) for item in world.items(undisturbed)
    ]


def publish_text(
    world: JobWorld, job_id: JobId, text: str, *, attempt: int = 1, first: int = 0
) -> None:
    """Publish what an attempt emitted: one character per item, after the beginning."""
    items = [
        StreamItem(n=n, attempt=attempt, body=Text(text=character, ids=(ord(character),)))
        for n, character in enumerate(text, start=max(1, first))
    ]
    if not first:
        begun = Started(prompt_tokens=2, cached_tokens=0)
        items.insert(0, StreamItem(n=0, attempt=attempt, body=begun))
    world.broker.items.publish([(job_id, item) for item in items])


def test_job_that_kills_its_worker_twice_fails_with_the_reason(world: JobWorld) -> None:
    job_id = world.submit()
    for _ in range(2):
        start_attempt(world, job_id)
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.FAILED
    last = world.items(job_id)[-1].body
    assert isinstance(last, Failed)
    assert "2 workers in a row died on this job" in last.message
    assert world.types(job_id)[-2:] == ["AttemptFailed", "JobFailed"]


def test_job_that_spoke_between_two_deaths_of_its_worker_goes_on(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id)
    publish_text(world, job_id, ANSWER[:3])
    start_attempt(world, job_id, resumed=3)
    publish_text(world, job_id, ANSWER[3:5], attempt=2, first=4)
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.COMPLETED
    assert world.text(job_id) == ANSWER


def test_job_whose_workers_die_at_the_same_word_fails(world: JobWorld) -> None:
    job_id = world.submit()
    start_attempt(world, job_id)
    publish_text(world, job_id, ANSWER[:3])
    for _ in range(2):
        start_attempt(world, job_id, resumed=3)
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.FAILED


@pytest.mark.parametrize(
    ("failures", "status"),
    [
        (DEVICE_FAILURES_MAX - 1, JobStatus.COMPLETED),
        (DEVICE_FAILURES_MAX, JobStatus.FAILED),
    ],
)
def test_job_that_breaks_the_device_again_and_again_fails(
    world: JobWorld, failures: int, status: JobStatus
) -> None:
    job_id = world.submit()
    broken = Failed(error=DeviceFailed.code, message="gone", retryable=True)
    for attempt in range(1, failures + 1):
        start_attempt(world, job_id)
        commit(
            job_id, failed_attempt(attempt=attempt, failure=broken), log=world.log, ids=world.ids
        )
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is status


def test_job_that_wears_out_its_attempts_fails_for_good(world: JobWorld) -> None:
    job_id = world.submit()
    # The first death is no counted failure: a job beside this one may have caused it.
    for emitted in range(4):
        start_attempt(world, job_id, resumed=emitted)
        publish_text(
            world, job_id, ANSWER[emitted], attempt=emitted + 1, first=emitted and emitted + 1
        )
    assert world.run(job_id) is RunResult.ENDED
    last = world.items(job_id)[-1].body
    assert isinstance(last, Failed)
    assert "4 attempts" in last.message


def test_prompt_that_the_template_refuses_fails_without_an_attempt(world: JobWorld) -> None:
    job_id = world.submit(REFUSED)
    assert world.run(job_id) is RunResult.ENDED
    assert world.types(job_id) == ["JobSubmitted", "AttemptFailed", "JobFailed"]
    last = world.items(job_id)[-1].body
    assert isinstance(last, Failed)
    assert last.error == "invalid_request"


def test_prompt_longer_than_the_context_fails_with_both_numbers() -> None:
    with JobWorld(context=10) as world:
        job_id = world.submit("x" * 50)
        world.run(job_id)
        last = world.items(job_id)[-1].body
        assert isinstance(last, Failed)
        assert last.error == "prompt_too_long"
        assert "50 tokens > 9 maximum" in last.message


def test_engine_failure_is_tried_again_and_the_answer_is_whole(world: JobWorld) -> None:
    job_id = world.submit()
    world.engine.runner.step_error = RuntimeError("a kernel failed")
    assert world.run(job_id) is RunResult.REQUEUE
    assert world.job(job_id).status is JobStatus.QUEUED
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER


def test_unreachable_log_leaves_the_job_open(world: JobWorld) -> None:
    job_id = world.submit()
    world.log.unavailable = True
    with pytest.raises(LogUnavailable):
        world.run(job_id)
    world.log.unavailable = False
    assert world.job(job_id).status is JobStatus.QUEUED
    assert world.run(job_id) is RunResult.ENDED


def test_unknown_job_is_named(world: JobWorld) -> None:
    with pytest.raises(JobNotFound):
        world.run(JobId("job-unknown"))


def test_delivery_of_a_job_that_this_process_runs_is_left_alone(world: JobWorld) -> None:
    job_id = world.submit()
    world.engine.pause()
    thread = threading.Thread(target=world.run, args=(job_id,))
    thread.start()
    wait_until(lambda: job_id in world.active.jobs())
    assert world.run(job_id) is RunResult.NOTHING_TO_DO
    world.engine.resume()
    thread.join(scaled(60))
    assert world.job(job_id).attempt == 1


def test_nothing_is_emitted_before_the_attempt_stands_in_the_log(world: JobWorld) -> None:
    job_id = world.submit()
    append = world.log.append
    emitted: list[int] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert world.engine.runner.stepped.wait(scaled(60)), "the engine waited for the log"
        emitted.append(len(world.items(job_id)))
        return append(*args, **kwargs)

    world.log.append = slow  # type: ignore[method-assign]  # a slow disk
    assert world.run(job_id) is RunResult.ENDED
    assert emitted[0] == 0
    assert world.text(job_id) == ANSWER
    assert [item.n for item in world.items(job_id)] == list(range(len(ANSWER) + 2))


def test_attempt_that_cannot_be_recorded_emits_nothing_and_frees_its_place(world: JobWorld) -> None:
    job_id = world.submit()
    append = world.log.append

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        message = "the disk is full"
        raise LogUnavailable(message)

    world.log.append = refuse  # type: ignore[method-assign]  # a fault
    with pytest.raises(LogUnavailable):
        world.run(job_id)
    wait_until(lambda: world.engine.runner.running == 0)
    assert world.items(job_id) == ()
    world.log.append = append  # type: ignore[method-assign]  # mended
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER


def test_zombie_of_an_older_attempt_cannot_finish_the_job(world: JobWorld) -> None:
    job_id = world.submit()
    world.engine.pause()
    results: list[RunResult] = []
    zombie = world.runner
    thread = threading.Thread(target=lambda: results.append(zombie.run(job_id)))
    thread.start()
    wait_until(lambda: world.job(job_id).attempt == 1)
    start_attempt(world, job_id)
    world.engine.resume()
    thread.join(scaled(60))
    assert results == [RunResult.SUPERSEDED]
    assert world.job(job_id).status is JobStatus.RUNNING
    assert world.job(job_id).attempt == 2


def test_reasoning_is_limited_as_the_first_attempt_was_whatever_the_room_is_now(
    world: JobWorld,
) -> None:
    half = ThinkingLimit(share=0.5)
    job_id = world.submit(thinking_limit=half, max_tokens=50)
    assert world.run(job_id) is RunResult.ENDED
    assert _limits(world, job_id) == [25]
    again = world.submit(thinking_limit=half)
    start_attempt(world, again, thinking_limit=7)
    assert world.run(again) is RunResult.ENDED
    assert _limits(world, again) == [7, 7]
    unlimited = world.submit(thinking_limit=half)
    start_attempt(world, unlimited)
    assert world.run(unlimited) is RunResult.ENDED
    assert _limits(world, unlimited) == [None, None]


def test_an_answer_begun_before_an_update_goes_on_with_its_encoding(world: JobWorld) -> None:
    older = world.submit()
    start_attempt(world, older, encoding=PromptEncoding.MARKS_READ)
    assert world.run(older) is RunResult.ENDED
    assert _recorded(world, older, "encoding") == [1, 1]
    newer = world.submit()
    assert world.run(newer) is RunResult.ENDED
    assert _recorded(world, newer, "encoding") == [2]


def _limits(world: JobWorld, job_id: JobId) -> list[Any]:
    return _recorded(world, job_id, "thinking_limit")


def _recorded(world: JobWorld, job_id: JobId, field: str) -> list[Any]:
    events = world.log.load(StreamName(job_id))
    return [one.data[field] for one in events if one.type == "AttemptStarted"]
