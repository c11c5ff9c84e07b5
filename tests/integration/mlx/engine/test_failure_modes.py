"""What can go wrong in the engine concerns whom it must and nobody else, and no token changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from domain.errors import PromptTooLong
from domain.model.registry import ModelEntry
from domain.values import Sampling, StopReason
from ops.clock import SystemClock
from tests.support.day_and_night import in_turn
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit, text_in
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, MakeBench
from tests.support.models.tiny_architectures import FALCON_H1, GEMMA3, LLAMA, Architecture
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.kv.row_opening import RowOpening, Steps
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.rows import decode_rows, running_sequences
from worker.engine.mlx.rows.ragged_cache import forward_rows
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admission, Admitted, ModelLoadError
from worker.engine.scheduling.waiting_queue import PASSES_MAX

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
#: Full attention alone, with windows, with states.
KINDS = (LLAMA, GEMMA3, FALCON_H1)

kinds = pytest.mark.parametrize("architecture", KINDS, ids=lambda a: a.name)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
samplings = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
kinds_and_samplings = in_turn("architecture, sampling", KINDS, SAMPLINGS)


#: By network, prompt, tokens and rules.
_said: dict[tuple[object, ...], list[int]] = {}


def alone(
    bench: MakeBench, architecture: Architecture, prompt: list[int], count: int, rules: Sampling
) -> list[int]:
    """Return the tokens of a sequence that runs alone, without limit and without reuse.

    It is the same in every test, so it is computed once.
    """
    asked = (architecture.name, tuple(prompt), count, rules)
    if asked not in _said:
        _said[asked] = bench(architecture, budget_bytes=None).run_alone(prompt, count, rules).tokens
    return _said[asked]


@kinds_and_samplings
def test_same_agent_race_two_requests_at_once_are_both_right(
    bench: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    context = random_tokens(70, 1)
    prompts = [context + random_tokens(9, 2), context + random_tokens(12, 3), context]
    expected = [alone(bench, architecture, prompt, 12, sampling) for prompt in prompts]
    both = bench(architecture)
    for _ in range(2):
        runs = [both.join(prompt, 12, sampling) for prompt in prompts]
        both.finish()
        assert [run.tokens for run in runs] == expected


@kinds_and_samplings
@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "no-reuse"])
def test_exhaustion_mid_decode_pauses_the_youngest_and_changes_no_token(
    bench: MakeBench, architecture: Architecture, sampling: Sampling, *, reuse: bool
) -> None:
    prompts = [random_tokens(40, 4), random_tokens(40, 5)]
    expected = [alone(bench, architecture, prompt, 70, sampling) for prompt in prompts]
    plain = bench(architecture).reuse
    budget_bytes = plain.row_bytes(40 + 70) * 3 // 2 + plain._spec.checkpoint_bytes
    tight = bench(architecture, budget_bytes=budget_bytes, reuse=reuse)
    older, younger = (tight.wait(prompt, 70, sampling) for prompt in prompts)
    tight.drain()
    assert [older.tokens, younger.tokens] == expected
    assert older.paused == 0
    # States do not grow: there may be room for both.
    assert younger.paused > 0 or architecture is not LLAMA


def test_exhaustion_with_many_beside_each_other_ends_with_all_of_them_right(
    bench: MakeBench,
) -> None:
    prompts = [random_tokens(10 + 7 * n, n) for n in range(6)]
    expected = [alone(bench, LLAMA, prompt, 60, SAMPLED) for prompt in prompts]
    tight = bench(LLAMA, budget_bytes=bench(LLAMA).reuse.row_bytes(45 + 60) * 2)
    runs = [tight.wait(prompt, 60, SAMPLED) for prompt in prompts]
    tight.drain()
    assert [run.tokens for run in runs] == expected
    assert any(run.paused for run in runs)


def test_paused_sequence_goes_on_out_of_its_blocks(bench: MakeBench) -> None:
    size = bench(LLAMA).reuse._spec.stored_bytes(BLOCK)
    tight = bench(LLAMA, budget_bytes=12 * size)
    older, younger = (tight.wait(random_tokens(30, n), 60) for n in (6, 7))
    while not younger.paused:
        tight.let_in()
        tight.step()
    before, held = tight.computed, len(younger.prompt) + len(younger.tokens)
    tight.drain()
    assert older.ended
    assert tight.computed - before < held, "all of it was computed again"


def test_very_small_budget_lowers_the_context_and_serves_within_it(bench: MakeBench) -> None:
    size = bench(LLAMA).reuse._spec.stored_bytes(BLOCK)
    small = bench(LLAMA, budget_bytes=3 * size + size // 2)
    context = small.model.card.context_length
    assert context == 2 * BLOCK  # and room for the next step
    prompt = random_tokens(context - 10, 8)
    run = small.wait(prompt, 10)
    small.drain()
    assert run.tokens == alone(bench, LLAMA, prompt, 10, GREEDY)


def test_budget_of_less_than_a_block_is_refused_at_the_start() -> None:
    with pytest.raises(ModelLoadError, match="kv_budget_mb"):
        Bench(LLAMA, budget_bytes=100)


def test_worker_exception_while_a_prompt_is_read_fails_that_one_alone(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, prompt = random_tokens(50, 9), random_tokens(40, 10)
    both = bench(LLAMA)
    compute = type(both.network).__call__

    def failing(network: Any, tokens: mx.array, **more: Any) -> mx.array:
        read: list[int] = tokens.flatten().tolist()  # type: ignore[assignment]  # one axis
        if any(read[at : at + 8] == poison[:8] for at in range(len(read))):
            raise RuntimeError("the device does not like these tokens")
        logits: mx.array = compute(network, tokens, **more)
        return logits

    monkeypatch.setattr(type(both.network), "__call__", failing)
    good, bad = both.join(prompt, 20), both.join(poison, 20)
    both.finish()
    assert isinstance(bad.fault, RuntimeError)
    assert good.tokens == alone(bench, LLAMA, prompt, 20, GREEDY)
    assert not any(one.is_running or one.users for one in both.reuse.pool.contexts())


@kinds
def test_prompt_that_failed_while_it_was_read_leaves_the_turns_before_it(
    bench: MakeBench, architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, pieces = forward_rows, []
    prompt, more = random_tokens(50, 9), random_tokens(40, 10)

    def failing(network: Any, rows: Any, piece: Any, *more: Any) -> None:
        compute(network, rows, piece, *more)
        pieces.append(piece)
        if len(pieces) > 1:
            raise RuntimeError("the device does not like these tokens")

    warm = bench(architecture)
    first = warm.run_alone(prompt)
    monkeypatch.setattr(decode_rows, "forward_rows", failing)
    failed = warm.run_alone(prompt + first.tokens + more)
    assert isinstance(failed.fault, RuntimeError)
    monkeypatch.undo()
    again = warm.run_alone(prompt)
    assert (again.cached, again.tokens) == (len(prompt) - 1, first.tokens)


def test_prompts_of_a_failed_pass_are_computed_again_alone(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = decode_rows.prefill
    prompts = [random_tokens(8, seed) for seed in (21, 22, 23)]
    poison = prompts[1]

    def failing(network: Any, rows: Any, pieces: Any, *more: Any) -> None:
        if any(piece == poison[:-1] for piece in pieces):
            raise RuntimeError("the device does not like these tokens")
        compute(network, rows, pieces, *more)

    monkeypatch.setattr(running_sequences, "prefill", failing)
    several = bench(LLAMA)
    for prompt in prompts:
        several.join(prompt)
    faults = several.runner.step().faults
    assert [fault.is_shared for fault in faults] == [True] * 3
    several.runs.clear()
    runs = [several.join_as(replace(several.admission(p), is_alone=True)) for p in prompts]
    several.finish()
    assert [run.fault is not None for run in runs] == [False, True, False]
    for run in (runs[0], runs[2]):
        assert run.tokens == alone(bench, LLAMA, run.prompt, 8, GREEDY)


class TestCancel:
    """Its place is free at once, and what it had read or said serves the next."""

    @pytest.mark.parametrize("steps", [0, 3, 12], ids=["queue", "prefill", "decode"])
    def test_cancel_anywhere_keeps_the_blocks(self, bench: MakeBench, steps: int) -> None:
        warm = bench(LLAMA)
        prompt = random_tokens(6 * BLOCK, 12)
        run = warm.join(prompt, 60)
        for _ in range(steps):
            warm.step()
        decoded, read = len(run.tokens), warm.computed
        warm.leave(run)
        again = warm.run_alone(prompt, 60)
        assert again.cached == (len(prompt) - 1 if decoded else read)
        assert again.tokens == alone(bench, LLAMA, prompt, 60, GREEDY)

    @kinds
    def test_cancel_before_the_first_step_keeps_the_turn_before(
        self, bench: MakeBench, architecture: Architecture
    ) -> None:
        warm = bench(architecture)
        first = warm.run_alone(random_tokens(3 * BLOCK + 5, 13), 12)
        following = [*first.prompt, *first.tokens, *random_tokens(9, 14)]
        cached = len(first.prompt) + len(first.tokens)
        warm.leave(warm.join(following))
        again = warm.run_alone(following)
        assert again.cached == cached
        assert again.tokens == alone(bench, architecture, following, 8, GREEDY)

    def test_cancel_of_a_paused_one_leaves_the_others(self, bench: MakeBench) -> None:
        tight = bench(LLAMA, budget_bytes=bench(LLAMA).reuse.row_bytes(110) * 3 // 2)
        older, younger = (tight.wait(random_tokens(40, n), 70) for n in (4, 5))
        while not younger.paused:
            tight.let_in()
            tight.step()
        tight.waiting.clear()
        tight.drain()
        assert older.tokens == alone(bench, LLAMA, older.prompt, 70, GREEDY)


class TestWholeEngine:
    """The same with threads and text."""

    @pytest.fixture
    def start(self, tmp_path: Path) -> Iterator[Callable[..., BatchEngine]]:
        source = ModelEntry(name="tiny", source=str(make_tiny_llama(tmp_path / "tiny")))
        started: list[BatchEngine] = []

        def start(sink: CollectingSink, budget_bytes: int | None = None) -> BatchEngine:
            engine = BatchEngine(
                runner_factory=lambda: BatchRunner(
                    load_weights=lambda: load_weights(source),
                    prefill_step_tokens=32,
                    kv_budget_bytes=budget_bytes,
                    block_tokens=32,
                ),
                sink=sink,
                clock=SystemClock(),
                max_batch_size=4,
            )
            engine.start()
            started.append(engine)
            return engine

        yield start
        for engine in started:
            engine.close(0)

    @samplings
    def test_preempted_stream_pauses_and_goes_on_without_a_seam(
        self, start: Callable[..., BatchEngine], sampling: Sampling
    ) -> None:
        request = ask("tell me", max_tokens=120, sampling=sampling)
        free = start(CollectingSink())
        whole = finished(submit(free, "job-whole", request))
        tokens = len(free.prepare(request).tokens) + 120
        sink = CollectingSink()
        # Two layers of two heads of 16, keys and values of 4 bytes: 512 bytes a token.
        tight = start(sink, budget_bytes=-(-tokens // 32) * 32 * 512 * 3 // 2)
        handles = [submit(tight, f"job-{n}", request) for n in range(3)]
        for number, handle in enumerate(handles):
            outcome = finished(handle)
            assert (outcome.failure, outcome.token_ids) == (None, whole.token_ids)
            items = sink.numbered(f"job-{number}")
            assert [item.n for item in items] == list(range(1, len(items) + 1))
            assert text_in(items) == whole.text

    @pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
    def test_prompt_whose_restore_fails_is_computed_instead(
        self, start: Callable[..., BatchEngine], monkeypatch: pytest.MonkeyPatch, *, always: bool
    ) -> None:
        engine, request = start(CollectingSink(), 1 << 24), ask("tell me", max_tokens=40)
        whole = finished(submit(engine, "job-whole", request))
        run = RowOpening.run

        def failing(opening: RowOpening) -> Steps:
            if always or opening.plan.tokens:
                yield True
                raise AssertionError("a window is incomplete")
            return (yield from run(opening))

        with monkeypatch.context() as patch:
            patch.setattr(RowOpening, "run", failing)
            cold = finished(submit(engine, "job-cold", request))
        if always:
            assert cold.failure is not None
            assert (cold.failure.error, cold.failure.retryable) == ("engine_failure", True)
        else:
            assert (cold.failure, cold.token_ids) == (None, whole.token_ids)
            assert cold.usage.cached_tokens == 0
        warm = finished(submit(engine, "job-warm", request))
        assert (warm.failure, warm.token_ids) == (None, whole.token_ids)
        assert warm.usage.cached_tokens > 0

    def test_prompt_that_can_never_fit_is_refused_and_named(
        self, start: Callable[..., BatchEngine]
    ) -> None:
        small = start(CollectingSink(), budget_bytes=4 * 32 * 512)
        with pytest.raises(PromptTooLong) as refusal:
            small.prepare(ask("word " * 400))
        assert refusal.value.maximum == 3 * 32 - 1  # and room for the next step
        outcome = finished(submit(small, "job-fits", ask("hi", max_tokens=2000)))
        assert outcome.usage.prompt_tokens + outcome.usage.completion_tokens <= 3 * 32
        assert outcome.stop_reason in {StopReason.CONTEXT_WINDOW, StopReason.END_TURN}


def test_long_generation_starves_no_other_job() -> None:
    answers = {"long": "x" * 900, "short": "Hi!"}
    with FakeEngine(CollectingSink(), answers, max_batch_size=2) as engine:
        long = submit(engine, "job-long", ask("long", max_tokens=900))
        shorts = [submit(engine, f"job-{n}", ask("short")) for n in range(20)]
        assert all(finished(short).text == "Hi!" for short in shorts)
        assert len(finished(long).token_ids) == 900


def test_long_prompt_among_a_stream_of_short_ones_gets_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeEngine(CollectingSink(), {"short": "Hi!"}, max_batch_size=1) as engine:
        joined: list[str] = []
        insert = engine.runner.insert

        def recording(admission: Admission) -> Admitted | None:
            joined.append(admission.label)
            return insert(admission)

        monkeypatch.setattr(engine.runner, "insert", recording)
        engine.pause()
        first = submit(engine, "job-first", ask("short"))
        long = submit(engine, "job-long", ask("long " * 40))
        shorts = [submit(engine, f"job-{n}", ask("short")) for n in range(40)]
        engine.resume()
        for handle in (first, long, *shorts):
            finished(handle)
    assert joined.index("job-long") <= PASSES_MAX + 1
