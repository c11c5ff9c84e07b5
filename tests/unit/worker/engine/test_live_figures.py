"""What an engine reports of its rows and of its work."""

from __future__ import annotations

from domain.engine.figures import RowPhase, WorkCounts
from tests.support.fakes.broker import FakeItems
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import ask, submit
from tests.support.polling import scaled, wait_until


def test_idle_engine_has_no_rows_and_has_done_nothing() -> None:
    with FakeEngine(FakeItems()) as engine:
        figures = engine.figures()
    assert (figures.rows, figures.counts, figures.slow_step) == ((), WorkCounts(), None)


def test_row_shows_its_phase_and_ends_with_its_job() -> None:
    with FakeEngine(FakeItems(), {"x": "abc"}) as engine:
        engine.pause()
        handle = submit(engine, "job-a", ask("x", max_tokens=7))
        (row,) = wait_until(lambda: engine.figures().rows)
        assert (row.job, row.generated_tokens, row.max_tokens) == ("job-a", 0, 7)
        assert row.phase is not RowPhase.DECODE
        assert row.read_tokens <= row.prompt_tokens
        engine.resume()
        outcome = handle.wait(scaled(60))
        assert outcome is not None
        counts = wait_until(engine.figures, lambda figures: not figures.rows).counts
    usage = outcome.usage
    assert counts.first_tokens == 1
    assert counts.prompt_tokens == usage.prompt_tokens
    assert counts.generated_tokens >= usage.completion_tokens
    assert counts.first_token_ms >= outcome.timings.first_token_ms - 1


def test_counts_never_go_back_over_a_failed_step() -> None:
    with FakeEngine(FakeItems(), {"x": "abc"}) as engine:
        submit(engine, "job-a", ask("x")).wait(scaled(60))
        before = engine.figures().counts
        engine.runner.step_error = RuntimeError("a defect")
        submit(engine, "job-b", ask("x")).wait(scaled(60))
        assert engine.figures().counts == before
        submit(engine, "job-c", ask("x")).wait(scaled(60))
        after = engine.figures().counts
    assert after.since(before).first_tokens == 1
    assert after.generated_tokens == 2 * before.generated_tokens
