"""Reuse in the runner: what was read once is not read again, and nobody says anything else."""

from __future__ import annotations

import random
from functools import cache

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from domain.values import Sampling, WaitingFor
from tests.support.day_and_night import by_day, in_turn
from tests.support.models.families import every_architecture_and
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, MakeBench, Run
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    Architecture,
)
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.ports import Finish

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
FEW = (LLAMA, GEMMA3, GPT_OSS, FALCON_H1)

few = pytest.mark.parametrize("architecture", FEW, ids=lambda a: a.name)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
few_and_samplings = in_turn("architecture, sampling", FEW, SAMPLINGS)


def test_first_prompt_is_computed_whole(bench: MakeBench) -> None:
    warm = bench(LLAMA)
    run = warm.run_alone(random_tokens(50, 1))
    assert (run.cached, warm.computed, run.finish) == (0, 49, Finish.LENGTH)


@every_architecture_and("sampling", SAMPLINGS)
def test_identical_prompt_computes_its_last_token_and_says_the_same(
    bench: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture)
    for length in (33, 48, 74):
        prompt = random_tokens(length, length)
        expected = cold.run_alone(prompt, 4, sampling).tokens
        assert warm.run_alone(prompt, 4, sampling).tokens == expected
        before = warm.computed
        again = warm.run_alone(prompt, 4, sampling)
        assert again.tokens == expected
        assert again.cached == length - 1
        assert warm.computed == before


@every_architecture_and("sampling", SAMPLINGS)
def test_next_turn_starts_after_the_answer(
    bench: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture)
    context = random_tokens(40, 3)
    for turn in range(3):
        held = len(context)
        before = warm.computed
        run = warm.run_alone(context, 11, sampling)
        assert run.tokens == cold.run_alone(context, 11, sampling).tokens
        if turn:
            assert run.cached == held - 9
            assert warm.computed - before == 8
        context = context + run.tokens + random_tokens(9, turn)


@few_and_samplings
def test_restored_among_strangers_says_the_same(
    bench: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture)
    start = random_tokens(37, 5)
    prompts = [start + random_tokens(3 + 11 * n, 50 + n) for n in range(4)]
    expected = [cold.run_alone(prompt, 12, sampling).tokens for prompt in prompts]
    runs: list[Run] = []
    for _ in range(2):
        runs = []
        for number, prompt in enumerate(prompts):
            runs.append(warm.join(prompt, 12, sampling))
            warm.join(random_tokens(5 + 13 * number, 90 + number), 9)
            warm.step()
            warm.step()
        warm.finish()
        assert [run.tokens for run in runs] == expected
    # Where the prompts of a client part near their ends, no checkpoint is made at the end itself.
    spared = BLOCK if warm.reuse._spec.has_ends else 0
    assert all(run.cached >= len(run.prompt) - 1 - spared for run in runs)


@few
def test_what_is_shared_is_computed_once(bench: MakeBench, architecture: Architecture) -> None:
    warm = bench(architecture)
    shared = random_tokens(3 * BLOCK, 5)
    warm.run_alone(shared + random_tokens(20, 6))
    fork = warm.run_alone(shared + random_tokens(20, 7))
    # Windows and states go on from a checkpoint, which the first fork makes.
    assert fork.cached == 3 * BLOCK or warm.reuse._spec.has_ends
    assert warm.run_alone(shared + random_tokens(20, 8)).cached == 3 * BLOCK


@few
def test_end_token_ends_and_its_turn_is_kept(bench: MakeBench, architecture: Architecture) -> None:
    prompt = random_tokens(30, 8)
    free = bench(architecture, budget_bytes=None)
    end = free.run_alone(prompt, 10).tokens[5]
    ends = frozenset([end])
    cold = bench(architecture, budget_bytes=None, ends=ends)
    warm = bench(architecture, ends=ends)
    expected = cold.run_alone(prompt, 10)
    run = warm.run_alone(prompt, 10)
    assert (run.tokens, run.finish) == (expected.tokens, expected.finish)
    assert run.finish is Finish.END
    context = prompt + run.tokens
    assert warm.run_alone([*context, *random_tokens(5, 1)]).cached == len(context)


def test_limit_of_one_token_ends_at_once(bench: MakeBench) -> None:
    prompt = random_tokens(30, 8)
    run = bench(LLAMA).run_alone(prompt, 1)
    assert (run.finish, run.tokens) == (
        Finish.LENGTH,
        bench(LLAMA, budget_bytes=None).run_alone(prompt, 1).tokens,
    )


@few
def test_cancel_while_the_prompt_is_read_keeps_its_blocks(
    bench: MakeBench, architecture: Architecture
) -> None:
    warm = bench(architecture)
    prompt = random_tokens(100, 9)
    run = warm.join(prompt)
    for _ in range(3):
        warm.step()
    warm.leave(run)
    again = warm.run_alone(prompt)
    assert again.cached >= 3 * BLOCK - 8
    assert again.tokens == bench(architecture, budget_bytes=None).run_alone(prompt).tokens


def test_a_prompt_waits_for_a_second_one_where_the_first_is_cancelled(bench: MakeBench) -> None:
    warm = bench(LLAMA)
    shared = random_tokens(4 * BLOCK, 9)
    first = warm.join(shared + random_tokens(20, 1))
    warm.join(shared + random_tokens(20, 2))
    third = warm.admission(shared + random_tokens(20, 3))
    assert warm.runner.must_wait(third) is WaitingFor.PREFIX
    warm.leave(first)
    assert warm.runner.must_wait(third) is WaitingFor.PREFIX
    warm.finish()
    assert warm.runner.must_wait(third) is None


@few
def test_cancel_while_answering_keeps_what_was_said(
    bench: MakeBench, architecture: Architecture
) -> None:
    warm = bench(architecture)
    prompt = random_tokens(40, 9)
    run = warm.join(prompt, 60)
    while len(run.tokens) < 25:
        warm.step()
    said = list(run.tokens)
    warm.leave(run)
    # The row may be a token ahead of what was returned, and a window or a state ends before.
    assert warm.run_alone([*prompt, *said, 5]).cached >= 65 - 16


@few_and_samplings
def test_resumed_generation_goes_on_out_of_blocks(
    bench: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    warm = bench(architecture)
    prompt = random_tokens(40, 9)
    whole = bench(architecture, budget_bytes=None).run_alone(prompt, 40, sampling).tokens
    run = warm.join(prompt, 40, sampling)
    while len(run.tokens) < 30:
        warm.step()
    warm.runner.reset()
    del warm.runs[run.uid]
    again = warm.join(prompt + run.tokens, 10, sampling, first_index=30)
    warm.finish()
    assert again.cached >= 4 * BLOCK
    assert run.tokens + again.tokens == whole


#: Prompts and answers of up to six blocks.
PROMPTS = [random_tokens(20 + 15 * (n % 4), 70 + n % 5) for n in range(by_day(9, night=12))]


@cache
def answers(architecture: Architecture) -> list[list[int]]:
    """Return the answers to ``PROMPTS``, each computed whole and alone."""
    cold = Bench(architecture, budget_bytes=None)
    return [cold.run_alone(prompt, 20).tokens for prompt in PROMPTS]


@in_turn("architecture, blocks", FEW, {str(blocks): blocks for blocks in (6, 22, 14, 9)})
def test_small_budget_is_never_exceeded_and_changes_nothing(
    bench: MakeBench, architecture: Architecture, blocks: int
) -> None:
    spec = bench(architecture).reuse._spec
    # The longest sequence fits alone.
    longest_bytes = spec.live_bytes(7 * BLOCK) + spec.checkpoint_bytes
    budget_bytes = max(blocks * spec.stored_bytes(BLOCK), longest_bytes)
    warm = bench(architecture, budget_bytes=budget_bytes)
    runs: list[Run] = []
    for start in range(0, len(PROMPTS), 3):
        runs += [warm.wait(prompt, 20) for prompt in PROMPTS[start : start + 3]]
        warm.drain()
    assert [run.tokens for run in runs] == answers(architecture)


@few
def test_prompt_that_is_being_read_is_waited_for(
    bench: MakeBench, architecture: Architecture
) -> None:
    warm = bench(architecture)
    prompt = random_tokens(75, 9)
    admission = warm.admission(prompt)
    assert not warm.runner.must_wait(admission)
    first = warm.join(prompt)
    longer = warm.admission(prompt[: 3 * BLOCK] + random_tokens(30, 1))
    other = warm.admission(random_tokens(75, 2))
    assert warm.runner.must_wait(admission)
    # Windows and states can only go on from the checkpoint at the end of the prompt.
    shares_blocks = not warm.reuse._spec.has_ends
    assert (warm.runner.must_wait(longer) is not None) == shares_blocks
    assert not warm.runner.must_wait(other)
    steps = 0
    while warm.runner.must_wait(admission):
        warm.step()
        steps += 1
        assert (warm.runner.must_wait(longer) is not None) == (steps < 3 and shares_blocks)
    second = warm.join(prompt)
    warm.finish()
    assert second.cached == 74
    assert second.tokens == first.tokens
    assert warm.computed == 74


def test_closed_reuse_knows_nothing(bench: MakeBench) -> None:
    warm = bench(LLAMA)
    prompt = random_tokens(40, 9)
    warm.run_alone(prompt)
    warm.reuse.close()
    assert warm.reuse.used_bytes() == 0
    assert warm.model.cached_prefix(prompt).tokens == 0


def test_promises_of_one_that_leaves_are_void(bench: MakeBench) -> None:
    warm = bench(LLAMA)
    prompt = random_tokens(75, 9)
    run = warm.join(prompt)
    assert warm.runner.must_wait(warm.admission(prompt))
    warm.leave(run)
    assert not warm.runner.must_wait(warm.admission(prompt))


def test_other_threads_are_told_what_is_known(bench: MakeBench) -> None:
    warm = bench(LLAMA)
    prompt = tuple(random_tokens(75, 9))
    assert warm.model.cached_prefix(prompt).tokens == 0
    warm.run_alone(list(prompt))
    assert warm.model.cached_prefix(prompt).tokens == 74
    assert warm.model.cached_prefix(prompt[:1]).tokens == 0


def test_one_fault_in_a_restored_batch_is_one_fault(bench: MakeBench) -> None:
    warm = bench(LLAMA)
    prompt = random_tokens(40, 9)
    expected = warm.run_alone(prompt, 20).tokens
    good = warm.join(prompt, 20)
    bad = warm.join(random_tokens(30, 1), 20, Sampling(temperature=1, seed=2**70))
    warm.finish()
    assert bad.fault is not None
    assert (good.tokens, good.cached) == (expected, 39)


def test_blocks_that_cannot_be_put_together_are_let_go(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = bench(LLAMA)
    prompt = random_tokens(40, 9)
    warm.run_alone(prompt)

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ContextCaches, "reserve", broken)
    run = warm.join([*prompt, *random_tokens(40, 1)])
    warm.finish(run)
    assert str(run.fault) == "out of memory"
    monkeypatch.undo()
    assert not any(one.is_running or one.users for one in warm.reuse.pool.contexts())
    assert warm.run_alone(prompt).cached == 39


def test_model_with_unknown_caches_is_computed_whole(bench: MakeBench) -> None:
    class OtherCache(KVCache):  # type: ignore[misc]  # mlx-lm ships no types
        pass

    network = LLAMA.make(mx.float32)
    network.make_cache = lambda: [OtherCache() for _ in network.layers]
    warm = bench(LLAMA, network=network)
    prompt = random_tokens(40, 9)
    first = warm.run_alone(prompt)
    assert warm.runner.prefix_cache is None
    assert warm.run_alone(prompt).cached == 0
    assert first.tokens == bench(LLAMA, budget_bytes=None).run_alone(prompt).tokens


@few
def test_random_conversations_say_what_they_say_cold(
    bench: MakeBench, architecture: Architecture
) -> None:
    rng = random.Random(4)
    size = bench(architecture).reuse._spec.stored_bytes(BLOCK)
    warm = bench(architecture, budget_bytes=40 * size)
    contexts = [random_tokens(40, 1)]
    runs: list[Run] = []
    for number in range(by_day(12, night=18)):
        known = rng.choice(contexts)
        prompt = known[: rng.randint(1, len(known))] + random_tokens(rng.randint(1, 40), number)
        runs.append(warm.wait(prompt, rng.randint(1, 24), rng.choice([GREEDY, SAMPLED])))
        contexts.append(prompt)
        for _ in range(rng.randint(0, 18)):
            warm.let_in()
            warm.step()
            warm.check()
        contexts += [run.prompt + run.tokens for run in runs if run.ended]
        if rng.random() < 0.2 and runs[-1].uid in warm.runs and not runs[-1].ended:
            warm.leave(runs.pop())
    warm.drain()
    # Windows and states start only from checkpoints, which few random forks meet.
    assert sum(run.cached > 0 for run in runs) > (2 if warm.reuse._spec.has_ends else 5)
    cold = bench(architecture, budget_bytes=None)
    for run in runs:
        said = cold.join(run.prompt, len(run.tokens), run.sampling)
        cold.finish(said)
        assert run.tokens == said.tokens


def test_switched_off_nothing_is_kept(bench: MakeBench) -> None:
    off = bench(LLAMA, budget_bytes=None)
    prompt = random_tokens(40, 9)
    assert off.run_alone(prompt).tokens == off.run_alone(prompt).tokens
    assert off.computed == 2 * 39
    assert off.model.cached_prefix(prompt).tokens == 0
    assert not off.runner.must_wait(off.admission(prompt))


@pytest.mark.parametrize("step_tokens", [5, 3 * BLOCK])
def test_pieces_of_any_length_give_the_blocks(bench: MakeBench, step_tokens: int) -> None:
    for architecture in (LLAMA, GEMMA3, FALCON_H1):
        warm = bench(architecture, step_tokens=step_tokens)
        prompt = random_tokens(70, 9)
        expected = bench(architecture, budget_bytes=None).run_alone(prompt).tokens
        assert warm.run_alone(prompt).tokens == expected
        again = warm.run_alone(prompt)
        assert (again.cached, again.tokens) == (69, expected)
