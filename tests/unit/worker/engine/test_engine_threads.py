"""The engine's threads and failures, on the scripted runner."""

from __future__ import annotations

import pytest

from domain.chat.generation import GenerationTask
from domain.chat.items import Failed
from domain.engine.control import EngineValues
from domain.errors import (
    DeviceFailed,
    Draining,
    EngineFailure,
    EngineLost,
    InvalidRequest,
    QueueUnavailable,
)
from domain.values import JobId, Sampling, StopReason, WaitingFor
from ops.clock import SystemClock
from tests.support.fakes.engine import FakeEngine, ScriptedRunner
from tests.support.fakes.time import FakeClock
from tests.support.models.engine_probe import (
    PATIENCE_S,
    CollectingSink,
    ask,
    finished,
    submit,
    text_in,
)
from tests.support.polling import scaled, wait_until
from worker.engine import emitter
from worker.engine.engine import BatchEngine
from worker.engine.ports import Admission, Admitted, ModelLoadError, StepResult
from worker.engine.scheduling.quarantine import CULPRITS_MAX
from worker.engine.text_assembler import ItemBody, TextAssembler

SCRIPT = {"long": "abcdefghij" * 50, "short": "Hi!", "quiet": ""}


def test_an_end_token_ends_the_turn_and_is_not_counted() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        outcome = finished(submit(engine, "job-a", ask("short")))
    assert (outcome.stop_reason, outcome.text) == (StopReason.END_TURN, "Hi!")
    assert outcome.usage.completion_tokens == 3


def test_an_empty_answer_ends_without_items() -> None:
    sink = CollectingSink()
    with FakeEngine(sink, SCRIPT) as engine:
        outcome = finished(submit(engine, "job-a", ask("quiet")))
    assert (outcome.next_item, outcome.text, sink.numbered("job-a")) == (1, "", [])


def test_the_context_limit_is_named_as_such() -> None:
    with FakeEngine(CollectingSink(), SCRIPT, context=60) as engine:
        outcome = finished(submit(engine, "job-a", ask("long", max_tokens=500)))
    assert outcome.stop_reason is StopReason.CONTEXT_WINDOW
    assert outcome.usage.prompt_tokens + outcome.usage.completion_tokens == 60


def test_batch_sizes_are_the_sequences_that_got_a_token_in_a_step() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handles = [submit(engine, f"job-{n}", ask("long", max_tokens=40)) for n in range(3)]
        engine.resume()
        assert {finished(handle).usage.completion_tokens for handle in handles} == {40}
        sizes = engine.counted()["batch_size"]
    # Every token of the three answers was given in one step or another, most of them together.
    assert sizes["sum"] == 120
    assert sizes["1.0"] <= sizes["3.0"] == sizes["+Inf"] < 120


def test_a_step_that_fails_once_strikes_no_generation() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handles = [submit(engine, f"job-{n}", ask("long")) for n in range(3)]
        engine.runner.stepped.clear()
        engine.resume()
        assert engine.runner.stepped.wait(scaled(PATIENCE_S))
        engine.runner.step_error = RuntimeError("once")
        for handle in handles:
            outcome = finished(handle)
            assert (outcome.failure, outcome.text) == (None, SCRIPT["long"][:100])


def test_a_generation_that_fails_alone_is_struck_and_the_engine_goes_on() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handle = submit(engine, "job-a", ask("long"))
        engine.runner.step_error = RuntimeError("nan")
        engine.resume()
        failure = finished(handle).failure
        assert failure is not None
        assert failure.retryable
        assert "nan" in failure.message
        assert finished(submit(engine, "job-after", ask("short"))).text == "Hi!"


def test_an_engine_that_fails_with_every_sequence_ends_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> StepResult:
        raise RuntimeError("nothing works")

    with FakeEngine(CollectingSink(), SCRIPT, max_batch_size=4) as engine:
        monkeypatch.setattr(engine.runner, "step", fail)
        handles = [submit(engine, f"job-{n}", ask("long")) for n in range(6)]
        failures = [finished(handle).failure for handle in handles]
        codes = [failure.error for failure in failures if failure is not None]
        assert len(codes) == len(handles)
        # Two jobs failed alone; the third shows that the engine is the cause.
        assert codes.count(EngineFailure.code) == CULPRITS_MAX - 1
        assert codes.count(EngineLost.code) == 1
        assert set(codes) <= {EngineFailure.code, EngineLost.code, Draining.code}
        engine._thread.join(scaled(PATIENCE_S))
        assert not engine.is_alive()


def test_values_change_while_the_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEngine(CollectingSink(), SCRIPT, max_batch_size=3) as engine:
        insert, beside = engine.runner.insert, {}

        def recording(admission: Admission) -> Admitted | None:
            beside[admission.label] = engine.runner.running
            return insert(admission)

        monkeypatch.setattr(engine.runner, "insert", recording)
        engine.pause()
        first = [submit(engine, f"job-{n}", ask("long")) for n in range(3)]
        wait_until(lambda: len(beside) == 3)
        engine.tune(EngineValues(batch_window_ms=0, max_batch_size=1, gap_max_ms=40))
        late = [submit(engine, f"job-late-{n}", ask("long")) for n in range(2)]
        engine.resume()
        for handle in first:
            assert finished(handle).text == SCRIPT["long"][:100], "a running one has lost its place"
        for handle in late:
            assert finished(handle).text == SCRIPT["long"][:100]
        assert [beside[f"job-late-{n}"] for n in range(2)] == [0, 0]
        assert engine.runner.gap_max_s == pytest.approx(0.04)


def test_prompts_that_failed_in_one_pass_are_inserted_again_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        insert, apart = engine.runner.insert, []

        def recording(admission: Admission) -> Admitted | None:
            apart.append(admission.is_alone)
            return insert(admission)

        monkeypatch.setattr(engine.runner, "insert", recording)
        engine.pause()
        handles = [submit(engine, f"job-{n}", ask("short")) for n in range(2)]
        engine.runner.shared_error = RuntimeError("one of them")
        engine.resume()
        assert [finished(handle).text for handle in handles] == ["Hi!", "Hi!"]
    assert apart.count(True) >= 1


def test_a_cancelled_suspect_lets_the_others_continue() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handles = [submit(engine, f"job-{n}", ask("long")) for n in range(3)]
        engine.runner.step_error = RuntimeError("once")
        handles[2].cancel()
        engine.resume()
        assert finished(handles[0]).text == finished(handles[1]).text == SCRIPT["long"][:100]


def test_a_failed_admission_affects_no_other_sequence() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        bad = submit(engine, "job-bad", ask("long", sampling=Sampling(seed=2**64)))
        good = submit(engine, "job-good", ask("short"))
        failure = finished(bad).failure
        assert failure is not None
        assert not failure.retryable
        assert finished(good).text == "Hi!"


def test_a_dead_engine_thread_frees_its_waiters_and_refuses_work() -> None:
    engine = FakeEngine(CollectingSink(), SCRIPT, max_batch_size=1)
    engine.pause()
    handles = [submit(engine, f"job-{n}", ask("long")) for n in range(3)]
    engine.runner.step_error = KeyboardInterrupt()
    engine.resume()
    for handle in handles:
        failure = finished(handle).failure
        assert failure is not None
        assert failure.retryable
    with pytest.raises(EngineFailure) as refusal:
        submit(engine, "job-late", ask("short"))
    assert refusal.value.retryable
    with pytest.raises(EngineFailure):
        engine.card()
    engine.close(0)
    assert not engine.is_alive()


def test_a_device_error_ends_the_engine_and_no_generation_is_to_blame() -> None:
    lost: list[str] = []
    engine = FakeEngine(
        CollectingSink(), SCRIPT, max_batch_size=1, on_device_failure=lambda: lost.append("device")
    )
    engine.pause()
    handles = [submit(engine, f"job-{n}", ask("long")) for n in range(2)]
    engine.runner.step_error = RuntimeError("[METAL] Command buffer execution failed: Timeout.")
    engine.resume()
    failures = [finished(handle).failure for handle in handles]
    # The second one waited: the device did not compute it.
    ends = [(one.error, one.retryable) for one in failures if one]
    assert ends == [("device_failed", True), ("draining", True)]
    with pytest.raises(DeviceFailed) as refusal:
        submit(engine, "job-late", ask("short"))
    assert refusal.value.retryable
    assert lost == ["device"]
    assert not engine.runner.closed, "a failed device computes nothing more"
    engine.close(0)
    assert not engine.is_alive()


def test_a_fault_of_the_device_ends_the_engine() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handle = submit(engine, "job-a", ask("long"))
        engine.runner.fault = RuntimeError("[malloc] Unable to allocate 8 bytes.")
        engine.resume()
        failure = finished(handle).failure
    assert failure is not None
    assert failure.error == "device_failed"


def test_a_sequence_that_the_model_cannot_follow_fails_as_an_invalid_request() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handle = submit(engine, "job-a", ask("long"))
        engine.runner.fault = InvalidRequest("logit_bias names the token 9", field="logit_bias")
        engine.resume()
        failure = finished(handle).failure
    assert failure == Failed(
        error="invalid_request", message="logit_bias names the token 9", retryable=False
    )


def test_a_cancelled_generation_that_waits_never_starts() -> None:
    sink = CollectingSink()
    with FakeEngine(sink, SCRIPT, max_batch_size=1) as engine:
        engine.pause()
        first = submit(engine, "job-first", ask("long", max_tokens=30))
        second = submit(engine, "job-second", ask("long", max_tokens=30))
        second.cancel()
        engine.resume()
        outcome = finished(second)
        assert (outcome.stop_reason, outcome.token_ids) == (StopReason.CANCELLED, ())
        assert len(finished(first).token_ids) == 30


def test_a_stop_text_frees_the_place_in_the_batch() -> None:
    with FakeEngine(CollectingSink(), SCRIPT, max_batch_size=1) as engine:
        outcome = finished(submit(engine, "job-a", ask("long", max_tokens=400, stop=("fg",))))
        assert (outcome.text, outcome.stop_sequence) == ("abcde", "fg")
        assert outcome.usage.completion_tokens == 7
        assert finished(submit(engine, "job-b", ask("short"))).text == "Hi!"
        assert engine.runner.running == 0


def test_a_sink_that_is_away_delays_items_and_loses_none() -> None:
    sink = CollectingSink()
    with FakeEngine(sink, SCRIPT) as engine:
        sink.away = True
        handle = submit(engine, "job-a", ask("long", max_tokens=40))
        sink.wait_for_refusals(2)
        sink.away = False
        outcome = finished(handle)
    assert text_in(sink.numbered("job-a")) == outcome.text == SCRIPT["long"][:40]


def test_a_sink_that_stays_away_fails_its_generations_retryably() -> None:
    sink, clock = CollectingSink(), FakeClock()
    sink.away = True
    with FakeEngine(sink, SCRIPT, clock=clock) as engine:
        handle = submit(engine, "job-a", ask("long", max_tokens=40))
        sink.wait_for_refusals(1)
        clock.advance(emitter.OUTAGE_S_MAX + 1)
        failure = finished(handle).failure
        assert failure is not None
        assert (failure.error, failure.retryable) == (QueueUnavailable.code, True)
        sink.away = False
        clock.advance(emitter.BACKOFF_S_MAX)
        assert finished(submit(engine, "job-b", ask("short"))).text == "Hi!"


def test_a_drain_lets_running_generations_finish() -> None:
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        handle = submit(engine, "job-a", ask("long", max_tokens=300))
        engine.close(drain_s=30)
        assert len(finished(handle).token_ids) == 300
        assert engine.runner.closed


def test_start_raises_for_a_model_that_cannot_be_loaded() -> None:
    runner = ScriptedRunner()
    runner.load_error = ModelLoadError("there is no directory /nowhere")
    engine = BatchEngine(
        runner_factory=lambda: runner,
        sink=CollectingSink(),
        clock=SystemClock(),
        max_batch_size=1,
    )
    with pytest.raises(ModelLoadError, match="/nowhere"):
        engine.start()
    assert not engine.is_alive()


def test_the_outcome_follows_the_last_item() -> None:
    sink = CollectingSink()
    with FakeEngine(sink, SCRIPT) as engine:
        for n in range(20):
            outcome = finished(submit(engine, f"job-{n}", ask("short")))
            assert len(sink.numbered(f"job-{n}")) == outcome.next_item - 1


def test_wait_that_is_reported_before_the_release_is_published_after_it() -> None:
    sink = CollectingSink()
    with FakeEngine(sink, SCRIPT, max_batch_size=1) as engine:
        engine.pause()
        submit(engine, "job-running", ask("long"))
        prompt = engine.prepare(ask("short"))
        task = GenerationTask(
            job_id=JobId("job-waiting"),
            attempt=1,
            prompt=prompt,
            emitted=(),
            first_item=1,
            stop=(),
        )
        waiting = engine.submit(task)
        engine.runner.stepped.clear()
        engine.resume()
        assert engine.runner.stepped.wait(scaled(PATIENCE_S))
        assert sink.progress("job-waiting") == []
        waiting.release()
        finished(waiting)
    (progress, *_) = sink.progress("job-waiting")
    assert (progress.phase, progress.total) == ("queued", 0)
    assert progress.waiting_for is WaitingFor.PLACE


def _flush_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, errors = TextAssembler.flush, [ValueError("half a character")]

    def failing(assembler: TextAssembler, *, cut: bool = False) -> tuple[ItemBody, ...]:
        if errors:
            raise errors.pop()
        return flush(assembler, cut=cut)

    monkeypatch.setattr(TextAssembler, "flush", failing)


def test_an_answer_whose_last_text_fails_ends_once_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _flush_fails_once(monkeypatch)
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        outcome = finished(submit(engine, "job-a", ask("short")))
        other = finished(submit(engine, "job-b", ask("short")))
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.retryable) == (EngineFailure.code, False)
    assert "half a character" in outcome.failure.message
    assert (other.failure, other.text) == (None, "Hi!")


def test_a_cancelled_answer_whose_last_text_fails_leaves_the_engine_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _flush_fails_once(monkeypatch)
    with FakeEngine(CollectingSink(), SCRIPT) as engine:
        engine.pause()
        handle = submit(engine, "job-a", ask("long"))
        handle.cancel()
        engine.resume()
        outcome = finished(handle)
        other = finished(submit(engine, "job-b", ask("short")))
    assert outcome.failure is not None
    assert "half a character" in outcome.failure.message
    assert (other.failure, other.text) == (None, "Hi!")
