from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.batch.driver import ROUND_LINES_MAX, file_of_part
from domain.batch.ports import BatchLine
from domain.batch.state import Batch, BatchState, job_of_line
from domain.chat.request import ChatRequest, Message
from domain.errors import (
    BatchNotEnded,
    BatchNotFound,
    DiskFull,
    InvalidRequest,
    LogUnavailable,
    ModelNotFound,
    NotRetryable,
    Overloaded,
)
from domain.events.batch import BatchEnded
from domain.job.submit import JobSubmission
from domain.log.codec import texts_of
from domain.log.trace import parse_traceparent
from domain.values import JobId, JobStatus, Owner, Priority, StreamName
from tests.support.builders.answered_jobs import answer_job
from tests.support.builders.batch_world import DAY_S, BatchWorld
from tests.support.fakes.batches import PlainLines

MANY = [f"line {number}" for number in range(100)]


class Crash(Exception):
    """The process died."""


def crash_after(lines: int) -> Callable[..., None]:
    """Return a ``Spread`` that dies in the middle, having done the last lines first."""
    left = lines

    def spread(
        action: Callable[[tuple[int, bytes]], None], elements: Sequence[tuple[int, bytes]]
    ) -> None:
        nonlocal left
        for element in reversed(elements):
            if not left:
                raise Crash
            left -= 1
            action(element)

    return spread


def test_every_line_becomes_one_job_and_the_batch_ends_once() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "two", "three")
        assert world.step() == 1
        assert len(world.work()) == 3
        assert world.step() == 0
        assert world.counts(batch_id) == BatchEnded(succeeded=3)
        assert world.step() == 0
        assert world.batch_types(batch_id) == ["BatchSubmitted", "BatchStarted", "BatchEnded"]
        assert world.batch(batch_id).usage.completion_tokens > 0


def test_each_line_has_a_trace_of_its_own_that_refers_to_the_batch() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "bad")
        world.step()
        (batch,) = world.log.read_all(types=["BatchSubmitted"])
        jobs = [one.data for one in world.log.read_all(types=["JobSubmitted"])]
        traces = [parse_traceparent(job["trace"]) for job in jobs]
        assert len({trace.trace_id for trace in traces if trace}) == 2
        assert [job["trace_link"] for job in jobs] == [batch.data["trace"]] * 2
        assert str(batch.stream) == batch_id


class EchoingLines(PlainLines):
    """Each line continues the answers of some jobs."""

    def __init__(self, *origins: str) -> None:
        super().__init__()
        self._origins = origins

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        line = super().read(batch, raw)
        assert isinstance(line.request, ChatRequest)
        turns = (Message(role="assistant", content="Hi", origin=one) for one in self._origins)
        return replace(
            line, request=replace(line.request, messages=(*turns, *line.request.messages))
        )


def test_lines_keep_the_origins_of_jobs_of_their_key_only() -> None:
    with BatchWorld() as world:
        answer_job(world.log, "job-1", "Hi", owner="mine")
        answer_job(world.log, "job-2", "Hi", owner="theirs")
        answer_job(world.log, "job-3", "Hi")
        world.use(protocol=EchoingLines("job-1", "job-2", "job-3", "job-4"))
        world.submit_batch("more", owner=Owner("mine"))
        world.step()
        (submitted,) = (
            one.data
            for one in world.log.read_all(types=["JobSubmitted"])
            if one.correlation_id.startswith("batch-")
        )
        request = ChatRequest.from_bytes(world.log.get(submitted["request"]))
        assert [turn.origin for turn in request.messages] == ["job-1", "", "", "", ""]


class RefusingLines(PlainLines):
    """Every line is refused with one error."""

    def __init__(self, error: InvalidRequest | ModelNotFound) -> None:
        super().__init__()
        self._error = error

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        del batch, raw
        return BatchLine(model="", request=self._error)


def test_line_that_is_no_request_is_an_errored_result() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "bad")
        world.step()
        assert len(world.work()) == 1
        world.step()
        assert world.counts(batch_id) == BatchEnded(succeeded=1, errored=1)
        view = world.views.line_jobs(batch_id, first=1, limit=1)[1]
        assert (view.error, view.error_message) == ("invalid_request", "messages: it is bad")


@pytest.mark.parametrize("error", [InvalidRequest("no"), ModelNotFound("m")])
def test_line_that_is_no_request_cannot_be_retried(error: InvalidRequest | ModelNotFound) -> None:
    """Its payload is the line: an attempt would fail with an internal error."""
    with BatchWorld() as world:
        batch_id = world.submit_batch("bad")
        world.use(protocol=RefusingLines(error))
        world.step()
        job_id = job_of_line(batch_id, 0)
        with pytest.raises(NotRetryable, match=error.message):
            world.cancellation.retry(job_id, reason="api")
        failed = world.log.load(StreamName(job_id))[-1]
        assert (failed.type, texts_of(failed)["message"]) == ("JobFailed", error.message)


def test_lines_wait_outside_the_queue_until_it_has_room() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        batch_id = world.submit_batch(*MANY)
        world.step()
        world.step()
        assert world.log.views.waiting(Priority.BATCH) == {None: 10}
        world.work(4)
        world.step()
        assert world.views.tally(batch_id).jobs == 14
        assert world.log.views.waiting(Priority.BATCH) == {None: 10}


def test_lines_that_wait_for_their_model_hold_no_place_of_others() -> None:
    with BatchWorld() as world:
        world.use(window=10, has_own_line=lambda model: model == "night")
        parked = world.submit_batch(*(f"night {number}" for number in range(30)))
        for _ in range(3):
            world.step()
        assert world.views.tally(parked).jobs == 10
        other = world.submit_batch(*MANY)
        world.step()
        assert world.views.tally(other).jobs == 10
        assert world.log.views.waiting(Priority.BATCH) == {"night": 10, None: 10}


def test_two_batches_share_the_room_in_the_queue() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        first, second = world.submit_batch(*MANY), world.submit_batch(*MANY)
        world.step()
        assert world.views.tally(first).jobs == world.views.tally(second).jobs == 5


@pytest.mark.parametrize(
    "done", [0, 1, ROUND_LINES_MAX - 2, ROUND_LINES_MAX - 1, ROUND_LINES_MAX + 5]
)
def test_crash_in_the_middle_of_a_round_leaves_no_gap_and_no_double(done: int) -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch(*MANY)
        whole = world.driver.spread
        world.use(spread=crash_after(done))
        with pytest.raises(Crash):
            world.step()
        world.use(spread=whole)
        while world.step():
            world.work()
        assert world.counts(batch_id) == BatchEnded(succeeded=100)
        started = [
            JobId(e.stream) for e in world.log.read_all(limit=10_000, types=("JobSubmitted",))
        ]
        assert sorted(started) == [job_of_line(batch_id, line) for line in range(100)]


def test_crash_leaves_no_gap_where_the_window_is_smaller_than_the_lines_before_it() -> None:
    with BatchWorld() as world:
        world.use(window=8)
        batch_id = world.submit_batch(*["bad"] * 10, *["one"] * 10)
        world.step()
        whole = world.driver.spread
        world.use(spread=crash_after(1))
        with pytest.raises(Crash):
            world.step()
        world.use(spread=whole)
        for _ in range(20):
            world.step()
            world.work()
        assert world.counts(batch_id) == BatchEnded(succeeded=10, errored=10)


def test_cancelled_batch_cancels_open_lines_and_those_that_never_were_jobs() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        batch_id = world.submit_batch(*MANY)
        world.step()
        world.work(4)
        world.batches.cancel(batch_id)
        assert world.batch(batch_id).state is BatchState.CANCELING
        assert world.step() == 0
        assert world.counts(batch_id) == BatchEnded(succeeded=4, canceled=96)
        world.batches.cancel(batch_id)
        assert world.batch_types(batch_id)[2:] == ["BatchCancelRequested", "BatchEnded"]


def test_window_of_a_day_expires_what_is_left() -> None:
    with BatchWorld() as world:
        world.use(window=10)
        batch_id = world.submit_batch(*MANY)
        world.step()
        world.work(4)
        world.clock.advance(DAY_S)
        while world.step():
            world.work()
        assert world.counts(batch_id) == BatchEnded(succeeded=4, expired=96)
        view = world.views.line_jobs(batch_id, first=5, limit=1)[5]
        assert view.status is JobStatus.EXPIRED


def test_lines_with_a_fault_fail_the_batch_before_any_job() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "fault", is_checked=False)
        assert world.step() == 0
        batch = world.batch(batch_id)
        assert batch.state is BatchState.FAILED
        assert batch.errors is not None
        assert world.log.get(batch.errors) == b'[{"line":2}]'
        assert not world.log.views.rows


def test_checked_lines_start_the_batch() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", is_checked=False)
        assert world.batch(batch_id).state is BatchState.VALIDATING
        assert world.step() == 1
        assert world.batch(batch_id).state is BatchState.IN_PROGRESS


def test_files_of_the_answers_are_there_before_the_batch_has_ended() -> None:
    with BatchWorld(sizes={"output": 12}) as world:
        batch_id = world.submit_batch("one")
        world.step()
        world.work()
        world.step()
        file_id = file_of_part(batch_id, "output")
        file = world.files.load(file_id)
        assert (file.facts.bytes, file.facts.purpose) == (12, "batch_output")
        types = [event.type for event in world.log.read_all(limit=100)]
        assert types[-3:] == ["BatchFinalizing", "FileCreated", "BatchEnded"]


def test_log_that_cannot_be_written_costs_nothing_but_time() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one", "two")
        world.log.unavailable = True
        with pytest.raises(LogUnavailable):
            world.step()
        world.log.unavailable = False
        while world.step():
            world.work()
        assert world.counts(batch_id) == BatchEnded(succeeded=2)


def test_lines_wait_for_space_and_hold_no_other_batch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with BatchWorld() as world:
        waiting, cancelled = world.submit_batch("one", "two"), world.submit_batch("three")

        def refuse(*_: object, **__: object) -> None:
            raise DiskFull("no space")

        with monkeypatch.context() as full:
            full.setattr(JobSubmission, "submit", refuse)
            assert world.step() == 2
            world.batches.cancel(cancelled)
            assert world.step() == 1
            assert world.counts(cancelled) == BatchEnded(canceled=1)
        while world.step():
            world.work()
        assert world.counts(waiting) == BatchEnded(succeeded=2)


def test_only_a_batch_that_has_ended_is_deleted_and_then_gone() -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch("one")
        with pytest.raises(BatchNotEnded):
            world.batches.delete(batch_id)
        while world.step():
            world.work()
        world.batches.delete(batch_id)
        for call in (world.batches.load, world.batches.delete):
            with pytest.raises(BatchNotFound):
                call(batch_id)
        page = world.batches.page(["anthropic"], limit=9)
        assert page.rows == ()


def test_pages_go_both_ways() -> None:
    with BatchWorld() as world:
        ids = [world.submit_batch("x") for _ in range(5)]

        def page(**cursor: object) -> tuple[list[int], bool]:
            found = world.batches.page(["anthropic"], limit=2, **cursor)  # type: ignore[arg-type]  # cursors
            return [ids.index(row.id) for row in found.rows], found.has_more

        assert page() == ([4, 3], True)
        assert page(after=ids[3]) == ([2, 1], True)
        assert page(after=ids[1]) == ([0], False)
        assert page(before=ids[1]) == ([3, 2], True)
        assert page(before=ids[3]) == ([4], False)
        assert page(after="batch-unknown") == ([], False)


def test_too_many_open_batches_are_refused() -> None:
    with BatchWorld() as world:
        world.submit_batch("one")
        world.batches.require_room(batches_max=2)
        with pytest.raises(Overloaded, match="1 open batches"):
            world.batches.require_room(batches_max=1)


@settings(max_examples=30, deadline=None)
@given(
    lines=st.lists(st.sampled_from(["a", "b", "bad"]), min_size=1, max_size=40),
    moves=st.lists(st.sampled_from(["step", "work", "crash", "cancel", "day"]), max_size=12),
    window=st.integers(1, 50),
)
def test_whatever_happens_every_line_has_one_result(
    lines: list[str], moves: list[str], window: int
) -> None:
    with BatchWorld() as world:
        batch_id = world.submit_batch(*lines)
        whole = world.driver.spread
        for index, move in enumerate(moves):
            world.use(window=window, spread=crash_after(index) if move == "crash" else whole)
            try:
                if move == "work":
                    world.work(3)
                elif move == "cancel":
                    world.batches.cancel(batch_id)
                elif move == "day":
                    world.clock.advance(DAY_S / 2)
                else:
                    world.step()
            except Crash:
                continue
        world.use(spread=whole)
        for _ in range(200):
            if not world.step():
                break
            world.work()
        counts = world.counts(batch_id)
        assert counts is not None
        assert counts.lines == len(lines)
        assert world.batch_types(batch_id).count("BatchEnded") == 1
        assert not world.views.tally(batch_id).open
