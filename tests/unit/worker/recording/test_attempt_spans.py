"""The spans of attempts: their tree, their links, and what they say of failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.chat.request import ChatRequest, Message, ToolCall
from domain.errors import EngineFailure
from domain.events.worker import WorkerLost
from domain.job.commit import AttemptReport, commit
from domain.log.record import Draft
from domain.log.trace import new_trace, trace_id_of
from domain.values import JobId, StreamName, Timings, WorkerId
from ops.observe.span import Span, SpanSink
from tests.support.builders.job_events import start_command
from tests.support.builders.job_world import JobWorld
from worker.recording.attempt_spans import (
    TEXT_CHARS_MAX,
    JobObserver,
    attempt_span,
    spans_of,
    texts_of,
)

TRACE = new_trace(sampled=True)


class Spans(SpanSink):
    """Keeps what it is given."""

    is_on = True

    def __init__(self) -> None:
        self.all: list[Span] = []

    def put(self, span: Span) -> None:
        self.all.append(span)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.all if span.name.split(" ")[0] == name]


class Recorder(JobObserver):
    """Also keeps the reports."""

    def __init__(self, spans: Spans, world: JobWorld) -> None:
        super().__init__(spans, world.log)
        self.reports: list[AttemptReport] = []

    def ended(self, report: AttemptReport) -> None:
        self.reports.append(report)
        super().ended(report)


def observed(world: JobWorld) -> tuple[Spans, Recorder]:
    spans = Spans()
    recorder = Recorder(spans, world)
    world.runner = replace(world.runner, observer=recorder)
    return spans, recorder


def die_during(job_id: JobId, world: JobWorld, worker: str) -> None:
    """Record an attempt that never ends."""
    card = world.engine.card()
    dead = start_command(
        worker, model=card.id, fingerprint=card.fingerprint, prompt_tokens=2, cached_tokens=0
    )
    commit(job_id, dead, log=world.log, ids=world.ids)


def submit(world: JobWorld, **command: Any) -> JobId:
    return world.accept("hi", command={"trace": str(TRACE)} | command).job_id


def test_an_attempt_is_a_child_of_its_request() -> None:
    with JobWorld() as world:
        spans, _ = observed(world)
        job_id = submit(world)
        world.run(job_id)
    (queue,), (attempt,) = spans.named("queue"), spans.named("chat")
    assert queue.parent_id == attempt.parent_id == TRACE.span_id
    assert attempt.context == attempt_span(TRACE, job_id, 1)
    assert attempt.error is None
    assert attempt.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attempt.attributes["gen_ai.response.id"] == job_id
    assert queue.end_ns <= attempt.start_ns <= attempt.end_ns


def test_the_phases_lie_behind_one_another() -> None:
    with JobWorld() as world:
        _, recorder = observed(world)
        world.run(submit(world))
        (report,) = recorder.reports
    assert report.run is not None
    timings = Timings(
        queued_ms=9, admission_ms=10, restore_ms=20, prefill_ms=50, first_token_ms=61, decode_ms=100
    )
    run = replace(report.run, outcome=replace(report.run.outcome, timings=timings))
    spans = list(spans_of(replace(report, run=run), world.log, has_texts=False))
    begin = next(one.start_ns for one in spans if one.name.startswith("chat"))
    phases = {one.name: one for one in spans[-4:]}
    ms = {
        name: ((one.start_ns - begin) / 1e6, (one.end_ns - begin) / 1e6)
        for name, one in phases.items()
    }
    assert ms == {
        "admission": (0, 10),
        "restore": (10, 30),
        "prefill": (30, 60),
        "decode": (61, 161),
    }
    assert len({one.parent_id for one in phases.values()}) == 1


@pytest.mark.parametrize(
    "trace", [None, "rubbish", str(new_trace())], ids=["none", "rubbish", "unsampled"]
)
def test_a_job_whose_trace_is_not_sampled_has_no_spans(trace: str | None) -> None:
    with JobWorld() as world:
        spans, _ = observed(world)
        world.run(submit(world, trace=trace))
    assert spans.all == []


def test_an_attempt_that_fails_is_linked_to_by_the_next() -> None:
    with JobWorld() as world:
        spans, _ = observed(world)
        world.engine.runner.step_error = RuntimeError("a kernel failed")
        job_id = submit(world)
        world.run(job_id)
        world.run(job_id)
    first, second = spans.named("chat")
    assert (first.error, second.error) == (EngineFailure.code, None)
    assert first.attributes["gen_ai.response.finish_reasons"] is None
    assert second.links == (first.context,)
    queues = spans.named("queue")
    assert len({one.context.span_id for one in queues}) == 2


def test_the_worker_that_follows_exports_the_attempts_that_died() -> None:
    with JobWorld() as world:
        spans, _ = observed(world)
        job_id = submit(world, worker_deaths_max=5, attempts_max=5)
        for worker in ("worker-1", "worker-2"):
            die_during(job_id, world, worker)
            lost = Draft(
                event_id=world.ids.event_id(),
                event=WorkerLost(worker=WorkerId(worker), pid=1),
                correlation_id=worker,
            )
            version = len(world.log.load(StreamName(worker)))
            world.log.append(StreamName(worker), [lost], expected_version=version)
            world.runner = replace(
                world.new_worker(f"{worker}-next"), observer=world.runner.observer
            )
        world.run(job_id)
    first, second, third = spans.named("chat")
    assert [one.error for one in (first, second, third)] == ["worker_lost", "worker_lost", None]
    assert second.links == (first.context,)
    assert third.links == (first.context, second.context)


def test_a_job_that_is_given_up_shows_its_deaths() -> None:
    with JobWorld() as world:
        spans, _ = observed(world)
        job_id = submit(world, worker_deaths_max=1)
        die_during(job_id, world, "worker-0")
        world.run(job_id)
    (attempt,), (queue,) = spans.named("chat"), spans.named("queue")
    assert (attempt.error, queue.error) == ("worker_lost", EngineFailure.code)


def test_a_line_of_a_batch_begins_a_trace_that_refers_to_the_batch() -> None:
    batch = new_trace(sampled=True)
    with JobWorld() as world:
        spans, _ = observed(world)
        world.run(submit(world, trace_link=str(batch)))
    (root,) = spans.named("submit")
    assert (root.parent_id, root.context, root.links) == (None, TRACE, (batch,))
    assert spans.named("chat")[0].links == (batch,)


def test_a_job_that_is_cancelled_in_the_queue_ends_its_queue_span() -> None:
    with JobWorld() as world:
        spans, _ = observed(world)
        job_id = submit(world)
        world.cancel(job_id)
        world.run(job_id)
    assert spans.named("chat") == []


def test_texts_are_carried_only_where_they_are_allowed() -> None:
    with JobWorld({"hi": "secret answer"}) as world:
        spans, _ = observed(world)
        world.run(submit(world))
        assert "secret" not in repr(spans.all)
        spans.has_texts = True
        world.run(submit(world))
    attributes = spans.named("chat")[-1].attributes
    assert '"content":"hi"' in str(attributes["gen_ai.input.messages"])
    assert "secret answer" in str(attributes["gen_ai.output.messages"])


def test_a_long_prompt_loses_its_oldest_messages() -> None:
    with JobWorld() as world:
        _, recorder = observed(world)
        world.run(submit(world))
        (report,) = recorder.reports
    assert report.run is not None
    call = ToolCall(id="c", name="look", arguments={"at": "x" * 20_000})
    messages = (
        *(Message(role="user", content=f"{n} " + "y" * 9000) for n in range(20)),
        Message(role="assistant", content="\ud83d", reasoning="hm", tool_calls=(call,)),
        Message(role="tool", content="seen", tool_call_id="c"),
    )
    request: ChatRequest = replace(report.run.request, messages=messages)
    texts = texts_of(replace(report.run, request=request))
    shown = str(texts["gen_ai.input.messages"])
    assert len(shown) <= TEXT_CHARS_MAX
    assert '"response":"seen"' in shown
    assert '"0 ' not in shown
    left_out = texts["semantic.messages_left_out"]
    assert isinstance(left_out, int)
    assert 0 < left_out < 20
    shown.encode()


def test_a_defect_in_the_spans_does_not_reach_the_job() -> None:
    class Broken(Spans):
        def put(self, span: Span) -> None:
            raise RuntimeError(span.name)

    with JobWorld() as world:
        world.runner = replace(world.runner, observer=JobObserver(Broken(), world.log))
        job_id = submit(world)
        world.run(job_id)
        assert world.job(job_id).status.value == "completed"
        assert trace_id_of(world.log.views.rows[job_id].submitted.trace) == TRACE.trace_id
