"""The first token is told as soon as it is drawn, once, and nothing else changes by that."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from domain.values import Sampling
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import Bench, MakeBench, Run
from tests.support.models.tiny_architectures import FALCON_H1, GEMMA3, LLAMA, Architecture
from worker.engine.ports import Finish

pytestmark = pytest.mark.skipif(
    mx.default_device() != mx.Device(mx.cpu), reason="only the CPU path emits the first token early"
)

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
PROMPT = random_tokens(37, 1)


@pytest.fixture
def late(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> MakeBench:
    """Make benches that tell every token once it is in the caches."""

    def make(*args: Any, **more: Any) -> Bench:
        made = bench(*args, **more)
        monkeypatch.setattr(made.runner, "_first_tokens", lambda _: [])
        return made

    return make


def step_to_first_token(bench: Bench, run: Run) -> None:
    for _ in range(20):
        bench.step()
        if run.tokens:
            return
    pytest.fail("no token came")


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("architecture", [LLAMA, GEMMA3, FALCON_H1], ids=lambda a: a.name)
def test_first_token_comes_before_it_is_in_the_caches_and_once(
    bench: MakeBench, late: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    expected = late(architecture).run_alone(PROMPT, 12, sampling).tokens
    early = bench(architecture)
    for _ in range(2):
        run = early.join(PROMPT, 12, sampling)
        step_to_first_token(early, run)
        assert run.tokens == expected[:1]
        assert early.runner.sequences.lengths == [len(PROMPT)]
        early.step()
        assert run.tokens == expected[:1]
        assert early.runner.sequences.lengths == [len(PROMPT) + 1]
        early.drain()
        assert run.tokens == expected


def test_those_that_run_get_a_token_at_least_every_second_step(
    bench: MakeBench, late: MakeBench
) -> None:
    stranger = random_tokens(20, 7)
    prompts = [random_tokens(5 + 9 * number, number) for number in range(5)]
    cold = late(LLAMA)
    expected = [cold.run_alone(prompt, 6, SAMPLED).tokens for prompt in prompts]
    said = cold.run_alone(stranger, 60).tokens
    early = bench(LLAMA)
    running = early.join(stranger, 60)
    step_to_first_token(early, running)
    early.step()
    joined = []
    for prompt in prompts:
        joined.append(early.join(prompt, 6, SAMPLED))
        for _ in range(2):
            before = len(running.tokens)
            early.step()
            early.step()
            assert len(running.tokens) > before
    early.drain()

    assert running.tokens == said
    assert [run.tokens for run in joined] == expected


def test_a_first_token_brings_the_drawn_tokens_of_those_that_run(bench: MakeBench) -> None:
    early = bench(LLAMA)
    running = early.join(random_tokens(20, 7), 60)
    step_to_first_token(early, running)
    for _ in range(4):
        early.step()
    joined = early.join(PROMPT, 6)
    before = len(running.tokens)
    while not joined.tokens:
        before = len(running.tokens)
        early.step()
    assert len(running.tokens) == before + 1


def test_cancel_right_after_the_first_token_lets_the_next_attempt_go_on(
    bench: MakeBench, late: MakeBench
) -> None:
    cold = late(LLAMA)
    expected = cold.run_alone(PROMPT, 12, SAMPLED).tokens
    early = bench(LLAMA)
    other = early.join(random_tokens(15, 3), 12)
    run = early.join(PROMPT, 12, SAMPLED)
    step_to_first_token(early, run)
    early.runner.remove(run.uid)
    early.check()
    del early.runs[run.uid]
    resumed = early.join([*PROMPT, *run.tokens], 11, SAMPLED, first_index=1)
    early.drain()

    assert run.tokens + resumed.tokens == expected
    assert resumed.cached == len(PROMPT)
    assert other.tokens == cold.run_alone(other.prompt, 12).tokens


def test_pause_right_after_the_first_token_loses_and_repeats_nothing(
    bench: MakeBench, late: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = late(LLAMA).run_alone(PROMPT, 12, SAMPLED).tokens
    early = bench(LLAMA)
    run = early.wait(PROMPT, 12, SAMPLED)
    early.let_in()
    step_to_first_token(early, run)
    memory = early.runner._memory
    reserve, answers = memory.reserve, iter([False])
    monkeypatch.setattr(memory, "reserve", lambda *args: next(answers, True) and reserve(*args))
    early.step()
    assert (run.paused, run.tokens) == (1, expected[:1])
    early.drain()

    assert run.tokens == expected


def test_batch_that_is_dropped_after_a_first_token_owes_nothing(
    bench: MakeBench, late: MakeBench
) -> None:
    early = bench(LLAMA)
    step_to_first_token(early, early.join(PROMPT))
    early.runner.reset()
    early.runs.clear()
    again = early.run_alone(PROMPT, 12, SAMPLED)

    assert again.tokens == late(LLAMA).run_alone(PROMPT, 12, SAMPLED).tokens


def test_only_token_and_end_token_are_told_when_they_are_kept(
    bench: MakeBench, late: MakeBench
) -> None:
    (first,) = late(LLAMA).run_alone(PROMPT, 1).tokens
    only = bench(LLAMA).run_alone(PROMPT, 1)
    ended = bench(LLAMA, ends=frozenset({first})).run_alone(PROMPT, 12)

    assert (only.tokens, only.finish) == ([first], Finish.LENGTH)
    assert (ended.tokens, ended.finish) == ([first], Finish.END)


def test_token_that_could_not_be_drawn_is_not_told(bench: MakeBench) -> None:
    early = bench(LLAMA)
    other = early.join(random_tokens(15, 3), 12)
    faulty = early.join(PROMPT, 12, Sampling(temperature=1, seed=1 << 70))
    early.drain()

    assert faulty.tokens == []
    assert faulty.fault is not None
    assert len(other.tokens) == 12


def test_elsewhere_the_first_token_comes_when_the_next_is_begun(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = bench(LLAMA)
    run = early.join(PROMPT)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    step_to_first_token(early, run)

    assert early.runner.sequences.lengths == [len(PROMPT) + 1]
