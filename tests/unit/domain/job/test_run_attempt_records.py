"""What a delivery gives the engine, writes into the log, publishes and reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from domain.chat.generation import GenerationTask
from domain.chat.items import Failed, Finished, Started, StreamItem, Text
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.errors import EngineFailure, EngineLost, InvalidRequest
from domain.events.job import JobCancelled, JobCancelRequested
from domain.job.commit import AttemptReport, LoadedJob, commit
from domain.job.fair_scheduler import TurnRequest
from domain.job.run_attempt import RunResult
from domain.kv.hashing import hash_ids
from domain.log.codec import texts_of
from domain.log.trace import new_trace, trace_id_of
from domain.values import (
    JobId,
    JobStatus,
    Priority,
    StopReason,
    StreamName,
    Usage,
    WorkerId,
    rfc3339,
)
from tests.support.builders.job_events import start_command
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.engine import REFUSED
from tests.support.polling import scaled, wait_until

ANSWER = "A scripted answer."


class Reports:
    """Keeps what it observes."""

    def __init__(self) -> None:
        self.begun: list[LoadedJob] = []
        self.ends: list[AttemptReport] = []

    def loaded(self, job: LoadedJob) -> None:
        self.begun.append(job)

    def ended(self, report: AttemptReport) -> None:
        self.ends.append(report)


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER}) as world:
        yield world


@pytest.fixture
def reports(world: JobWorld) -> Reports:
    reports = Reports()
    world.runner = replace(world.runner, observer=reports)
    return reports


@pytest.fixture
def tasks(world: JobWorld) -> list[GenerationTask]:
    """Return the list of all that the engine gets."""
    tasks, submit = list[GenerationTask](), world.engine.submit

    def spy(task: GenerationTask) -> GenerationHandle:
        tasks.append(task)
        return submit(task)

    world.engine.submit = spy  # type: ignore[method-assign]  # a spy
    return tasks


def die(world: JobWorld, job_id: JobId, **changes: Any) -> None:
    """Record an attempt of a worker that then died."""
    dead = start_command("dead", fingerprint=world.engine.card().fingerprint, **changes)
    commit(job_id, dead, log=world.log, ids=world.ids)


def data_of(world: JobWorld, job_id: JobId, event: str) -> dict[str, Any]:
    """Return the fields of the last event of a type."""
    found = [one for one in world.log.load(StreamName(job_id)) if one.type == event]
    return {**found[-1].data, **texts_of(found[-1])}


class TestTask:
    """What the engine gets."""

    def test_it_has_the_names_the_wait_and_the_queue_of_the_job(
        self, world: JobWorld, tasks: list[GenerationTask]
    ) -> None:
        trace = new_trace()
        command = {"trace": str(trace), "priority": Priority.BATCH}
        job_id = world.accept("hi", command=command, stop=("!",)).job_id
        world.clock.advance(1.2345678)
        world.run(job_id)
        (task,) = tasks
        assert (task.job_id, task.attempt, task.epoch) == (job_id, 1, 1)
        assert (task.request_id, task.trace_id) == ("req_1", trace_id_of(str(trace)))
        assert task.priority is Priority.BATCH
        assert task.queued_ms == 1234.568
        assert (task.first_item, task.emitted, task.stop) == (1, (), ("!",))

    def test_a_clock_that_stepped_back_makes_no_negative_wait(
        self, world: JobWorld, tasks: list[GenerationTask]
    ) -> None:
        job_id = world.submit()
        world.clock.advance(-5)
        world.run(job_id)
        assert tasks[0].queued_ms == 0

    def test_attempt_of_another_model_starts_anew_and_forgets_the_older_items(
        self, world: JobWorld, tasks: list[GenerationTask]
    ) -> None:
        job_id = world.submit()
        other = start_command("dead", fingerprint="another")
        commit(job_id, other, log=world.log, ids=world.ids)
        told = [
            StreamItem(n=0, attempt=1, body=Started(prompt_tokens=2, cached_tokens=0)),
            StreamItem(n=1, attempt=1, body=Text(text="Z", ids=(90,))),
        ]
        world.broker.items.publish([(job_id, item) for item in told])
        assert world.run(job_id) is RunResult.ENDED
        (task,) = tasks
        assert (task.attempt, task.epoch, task.first_item, task.emitted) == (2, 2, 1, ())
        items = world.items(job_id)
        assert {item.attempt for item in items} == {2}
        assert {item.epoch for item in items} == {2}
        assert items[0].body == Started(prompt_tokens=2, cached_tokens=0)
        assert world.text(job_id) == ANSWER

    def test_blocks_of_an_owner_are_its_own(self, world: JobWorld) -> None:
        owners, prepare = list[str | None](), world.engine.prepare

        def spy(request: ChatRequest, *args: Any, **kwargs: Any) -> Any:
            owners.append(kwargs["cache_owner"])
            return prepare(request, *args, **kwargs)

        world.engine.prepare = spy  # type: ignore[method-assign]  # a spy
        world.run(world.accept("hi", command={"cache_owner": "alice"}).job_id)
        world.run(world.submit())
        assert owners == ["alice", None]


class TestLog:
    """What the log holds of an attempt."""

    def test_start_names_worker_model_and_prompt(self, world: JobWorld) -> None:
        job_id = world.submit()
        world.run(job_id)
        card, started = world.engine.card(), data_of(world, job_id, "AttemptStarted")
        assert started["worker"] == "worker-1"
        assert (started["model"], started["fingerprint"]) == (card.id, card.fingerprint)
        assert (started["prompt_tokens"], started["cached_tokens"]) == (2, 0)
        assert started["cache_source"] == "none"
        assert started["first_item"] == 0
        assert started["prompt_hash"] == hash_ids(tuple(map(ord, "hi")))
        assert world.items(job_id)[0].body == Started(prompt_tokens=2, cached_tokens=0)

    def test_end_has_the_wait_the_stop_text_and_the_counts(self, world: JobWorld) -> None:
        job_id = world.submit(stop=("scr",))
        world.clock.advance(0.25)
        world.run(job_id)
        done = data_of(world, job_id, "JobCompleted")
        assert (done["stop_reason"], done["stop_sequence"]) == ("stop_sequence", "scr")
        assert done["timings"]["queued_ms"] == 250
        assert done["usage"]["prompt_tokens"] == 2
        assert done["token_hash"]
        last = world.items(job_id)[-1].body
        assert isinstance(last, Finished)
        assert (last.stop_reason, last.stop_sequence) == (StopReason.STOP_SEQUENCE, "scr")
        assert last.usage == Usage(**done["usage"])

    def test_cancelled_attempt_keeps_its_number_usage_and_wait(self, world: JobWorld) -> None:
        job_id = world.submit()
        die(world, job_id)
        world.clock.advance(2)
        world.engine.hold()
        thread = threading.Thread(target=world.run, args=(job_id,))
        thread.start()
        wait_until(lambda: world.job(job_id).attempt == 2)
        commit(job_id, JobCancelRequested(reason="api"), log=world.log, ids=world.ids)
        world.nudge(job_id)
        thread.join(scaled(60))
        ended = data_of(world, job_id, "JobCancelled")
        assert ended["attempt"] == 2
        assert ended["usage"]["prompt_tokens"] == 2
        assert ended["timings"]["queued_ms"] == 2000


class TestDeadlines:
    """When a job is too late to run."""

    @pytest.mark.parametrize("field", ["deadline", "finish_deadline"])
    @pytest.mark.parametrize(("waited_s", "is_late"), [(4.9, False), (5, True)])
    def test_instant_of_a_deadline_is_too_late(
        self, world: JobWorld, field: str, waited_s: float, *, is_late: bool
    ) -> None:
        deadline = rfc3339(world.clock.now() + timedelta(seconds=5))
        job_id = world.accept("hi", command={field: deadline}).job_id
        world.clock.advance(waited_s)
        world.run(job_id)
        expected = JobStatus.EXPIRED if is_late else JobStatus.COMPLETED
        assert world.job(job_id).status is expected

    def test_job_that_has_begun_in_time_goes_on_until_the_end_is_due(self, world: JobWorld) -> None:
        deadline = rfc3339(world.clock.now() + timedelta(seconds=5))
        begun = world.accept("hi", command={"deadline": deadline}).job_id
        due = world.accept("hi", command={"finish_deadline": deadline}).job_id
        for job_id in (begun, due):
            die(world, job_id)
        world.clock.advance(6)
        for job_id in (begun, due):
            world.run(job_id)
        assert world.job(begun).status is JobStatus.COMPLETED
        assert world.job(due).status is JobStatus.EXPIRED


class TestFailures:
    """Failures that end a job or an attempt."""

    def test_engine_that_refuses_an_attempt_leaves_the_job_waiting(
        self, world: JobWorld, reports: Reports
    ) -> None:
        job_id = world.submit()
        submit = world.engine.submit

        def refuse(_: GenerationTask) -> GenerationHandle:
            raise EngineLost("it is closing")

        world.engine.submit = refuse  # type: ignore[method-assign,assignment]  # a fault
        assert world.run(job_id) is RunResult.REQUEUE
        failed = data_of(world, job_id, "AttemptFailed")
        assert (failed["error"], failed["message"]) == (EngineLost.code, "it is closing")
        assert failed["retryable"] is True
        assert [report.error for report in reports.ends] == [EngineLost.code]
        world.engine.submit = submit  # type: ignore[method-assign]  # mended
        assert world.run(job_id) is RunResult.ENDED

    def test_refused_prompt_is_final_and_reported_without_a_run(
        self, world: JobWorld, reports: Reports
    ) -> None:
        job_id = world.submit(REFUSED)
        world.run(job_id)
        failed = data_of(world, job_id, "AttemptFailed")
        assert (failed["error"], failed["retryable"]) == (InvalidRequest.code, False)
        (report,) = reports.ends
        assert (report.loaded.job.id, report.run, report.error) == (job_id, None, "invalid_request")
        assert world.items(job_id)[-1].n == 0

    def test_worn_out_job_fails_with_the_code_of_the_engine_and_for_good(
        self, world: JobWorld
    ) -> None:
        job_id = world.submit()
        for _ in range(2):
            die(world, job_id)
        world.run(job_id)
        last = world.items(job_id)[-1].body
        assert isinstance(last, Failed)
        assert (last.error, last.retryable) == (EngineFailure.code, False)
        assert last.message.startswith("given up: ")

    def test_broken_attempt_publishes_its_failure_after_its_last_item(
        self, world: JobWorld
    ) -> None:
        job_id = world.accept("hi", command={"attempts_max": 1}).job_id
        world.engine.runner.poison = {ord(ANSWER[4])}
        while world.run(job_id) is RunResult.REQUEUE:
            pass
        items = world.items(job_id)
        assert [item.n for item in items] == list(range(len(items)))
        assert isinstance(items[-1].body, Failed)


class TestReports:
    """What an observer learns."""

    def test_end_of_an_attempt_has_its_task_request_model_and_outcome(
        self, world: JobWorld, reports: Reports, tasks: list[GenerationTask]
    ) -> None:
        job_id = world.submit()
        world.clock.advance(3)
        world.run(job_id)
        assert [one.job.id for one in reports.begun] == [job_id]
        (report,) = reports.ends
        assert report.loaded is reports.begun[0]
        assert report.ended_at == world.clock.now()
        assert report.error is None
        run = report.run
        assert run is not None
        assert [run.task] == tasks
        assert run.request.messages[0].content == "hi"
        assert run.model == world.engine.card()
        assert run.submitted_at == world.clock.now()
        assert run.outcome.timings.queued_ms == 3000
        assert run.outcome.stop_reason is StopReason.END_TURN

    def test_failed_attempt_has_its_run_and_its_code(
        self, world: JobWorld, reports: Reports
    ) -> None:
        job_id = world.submit()
        world.engine.runner.step_error = RuntimeError("a kernel failed")
        world.run(job_id)
        (report,) = reports.ends
        assert report.run is not None
        assert report.error == EngineFailure.code

    def test_cancelled_job_that_never_ran_has_no_run(
        self, world: JobWorld, reports: Reports
    ) -> None:
        job_id = world.submit()
        commit(job_id, JobCancelRequested(reason="api"), log=world.log, ids=world.ids)
        assert world.run(job_id) is RunResult.ENDED
        (report,) = reports.ends
        assert (report.loaded.job.id, report.run, report.error) == (job_id, None, None)


class TestTurns:
    """How a job waits for its place."""

    def test_turn_is_asked_for_with_what_the_job_is(
        self, world: JobWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked, request_turn = list[TurnRequest](), world.turns.request_turn

        def spy(job: TurnRequest) -> Any:
            asked.append(job)
            return request_turn(job)

        monkeypatch.setattr(world.turns, "request_turn", spy)
        fresh, again = world.submit(), world.submit()
        die(world, again)
        for job_id in (fresh, again):
            world.run(job_id)
        assert [one.has_begun for one in asked] == [False, True]
        assert [one.priority for one in asked] == [Priority.INTERACTIVE] * 2
        assert asked[0].suspicion < asked[1].suspicion

    def test_job_that_is_cancelled_while_it_waits_ends_without_an_attempt(self) -> None:
        with JobWorld({"hi": ANSWER}, slots=1) as world:
            world.engine.pause()
            first, second = world.submit(), world.submit()
            results = dict[JobId, RunResult]()

            def run(job_id: JobId) -> None:
                results[job_id] = world.run(job_id)

            threads = [threading.Thread(target=run, args=(one,)) for one in (first, second)]
            threads[0].start()
            wait_until(lambda: world.job(first).attempt == 1)
            threads[1].start()
            wait_until(lambda: second in world.active.jobs())
            commit(second, JobCancelRequested(reason="api"), log=world.log, ids=world.ids)
            # The signal may come before the job waits for its turn: it is then in the log.
            world.nudge(second)
            threads[1].join(scaled(60))
            world.engine.resume()
            for thread in threads:
                thread.join(scaled(60))
            assert results[second] is RunResult.ENDED
            assert world.types(second)[-1] == "JobCancelled"
            assert "AttemptStarted" not in world.types(second)

    def test_job_bound_to_a_lane_runs_there(self, world: JobWorld) -> None:
        lane = replace(world.runner, worker=WorkerId("lane-1"))
        world.runner = replace(world.runner, lanes={"vectors": lane})
        job_id = world.accept("hi", command={"bound_model": "vectors"}).job_id
        world.run(job_id)
        assert data_of(world, job_id, "AttemptStarted")["worker"] == "lane-1"


def test_job_that_ends_while_it_is_prepared_gets_its_terminal_item(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, request_turn = world.submit(), world.turns.request_turn

    def cancelled_meanwhile(job: TurnRequest) -> Any:
        for command in (JobCancelRequested(reason="api"), JobCancelled(attempt=0, usage=Usage())):
            commit(job.id, command, log=world.log, ids=world.ids)
        return request_turn(job)

    monkeypatch.setattr(world.turns, "request_turn", cancelled_meanwhile)
    assert world.run(job_id) is RunResult.SUPERSEDED
    (item,) = world.items(job_id)
    assert isinstance(item.body, Finished)
    assert item.body.stop_reason is StopReason.CANCELLED
