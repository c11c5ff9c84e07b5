"""What a sequence starts from: a context that it adopts or copies, the disk, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind
from domain.kv.contexts import Context, Piece
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, Run, shed
from tests.support.models.tiny_architectures import FALCON_H1, GPT_OSS, LLAMA, Architecture
from worker.engine.mlx.kv import start_plan
from worker.engine.mlx.kv.start_plan import DiskEnd, StartPlan

#: Longer than a window and what is kept behind it.
PROMPT = random_tokens(12 * BLOCK + 5, 1)
SYSTEM = 2 * BLOCK + 5

few = pytest.mark.parametrize("architecture", [LLAMA, GPT_OSS, FALCON_H1], ids=lambda a: a.name)
with_ends = pytest.mark.parametrize("architecture", [GPT_OSS, FALCON_H1], ids=lambda a: a.name)

MakeBench = Callable[..., DiskBench]


@cache
def cold(architecture: Architecture) -> Bench:
    return Bench(architecture, budget_bytes=None)


def planned(bench: Bench, prompt: list[int], *, adopts: bool = False) -> StartPlan:
    return bench.reuse._planner.plan(prompt[:-1], adopts=adopts)


def with_system(bench: Bench, prompt: list[int] = PROMPT) -> Run:
    """Run a prompt with a checkpoint after its system part."""
    run = bench.join_as(replace(bench.admission(prompt, 4), checkpoints=(SYSTEM,)))
    bench.finish(run)
    return run


def only_context(bench: Bench) -> Context:
    (context,) = bench.reuse.pool.contexts()
    return context


def assert_right(bench: DiskBench, prompt: list[int], cached: int) -> None:
    """Run a prompt; it starts from so many tokens and says what a cold one says."""
    run = bench.run_alone(prompt, 8)
    assert run.cached == cached
    assert run.tokens == cold(architecture_of(bench)).run_alone(prompt, 8).tokens


def architecture_of(bench: DiskBench) -> Architecture:
    return next(
        one for one in (LLAMA, GPT_OSS, FALCON_H1) if one.layers == bench.reuse._spec.layers
    )


def file_of(directory: Path, name: bytes) -> Path:
    return next(directory.rglob(f"{name.hex()}-*.kv"))


@few
def test_the_next_turn_adopts_the_context(process: MakeBench, architecture: Architecture) -> None:
    bench = process(architecture)
    run = bench.run_alone(PROMPT, 4)
    context, held = only_context(bench), len(PROMPT) + 4
    following = PROMPT + run.tokens + random_tokens(9, 2)
    plan = planned(bench, following)
    assert plan.adopted is context
    assert (plan.pieces, plan.sources) == ((Piece(0, plan.tokens, context),), ())
    assert (plan.end, plan.diverged_at) == (None, None)
    assert plan.tokens == held
    assert_right(bench, following, plan.tokens)
    assert only_context(bench) is context


@few
def test_a_prompt_that_shares_little_of_a_context_copies_it(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    with_system(bench)
    context = only_context(bench)
    other = PROMPT[:SYSTEM] + random_tokens(30, 3)
    plan = planned(bench, other)
    assert plan.adopted is None
    assert [one for one in plan.sources if isinstance(one, Context)] == [context]
    assert (plan.tokens, plan.diverged_at) == (SYSTEM, SYSTEM)
    if bench.reuse._spec.has_ends:
        assert isinstance(plan.end, CacheCheckpoint)
        assert (plan.end.kind, plan.end.position) == (CheckpointKind.SYSTEM, SYSTEM)
    assert planned(bench, other, adopts=True).adopted is None
    bench.settle()
    # Where there is no memory for a copy, it takes over what the disk has.
    assert planned(bench, other, adopts=True).adopted is context
    assert_right(bench, other, SYSTEM)
    assert len(bench.reuse.pool.contexts()) == 2
    assert context.token_ids[: len(PROMPT)] == PROMPT


@few
def test_a_running_context_lends_its_beginning(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    admission = replace(bench.admission(PROMPT, 40), checkpoints=(SYSTEM,))
    first = bench.join_as(admission)
    while len(first.tokens) < 3:
        bench.step()
    other = PROMPT[:SYSTEM] + random_tokens(30, 4)
    plan = planned(bench, other, adopts=True)
    assert (plan.adopted, plan.tokens) == (None, SYSTEM)
    contexts = [one for one in plan.sources if isinstance(one, Context)]
    assert contexts == [only_context(bench)]
    second = bench.join(other, 8)
    bench.finish()
    assert second.cached == SYSTEM
    assert second.tokens == cold(architecture).run_alone(other, 8).tokens
    assert first.tokens == cold(architecture).run_alone(PROMPT, 40).tokens


@few
def test_another_process_reads_the_disk(process: MakeBench, architecture: Architecture) -> None:
    run = process(architecture).run_alone(PROMPT, 4)
    following = PROMPT + run.tokens + random_tokens(9, 2)
    bench = process(architecture)
    plan = planned(bench, following)
    assert (plan.adopted, plan.sources) == (None, ())
    assert all(piece.context is None for piece in plan.pieces)
    if bench.reuse._spec.has_ends:
        assert isinstance(plan.end, DiskEnd)
        assert (plan.end.position, plan.tokens) == (len(PROMPT) + 4,) * 2
    else:
        assert plan.tail_on_disk
    assert_right(bench, following, len(PROMPT) + 4)


@few
def test_memory_continues_what_only_the_disk_has(
    process: MakeBench, architecture: Architecture
) -> None:
    """A trimmed context: its beginning is in memory, its end on the disk."""
    bench = process(architecture)
    run = bench.run_alone(PROMPT, 4)
    bench.settle()
    pool = bench.reuse.pool
    while not bench.reuse._spec.has_ends and pool.contexts()[0].token_ids[3 * BLOCK :]:
        shed(pool, 1)
    if bench.reuse._spec.has_ends:
        for checkpoint in list(pool.checkpoints):
            pool.free(checkpoint)
        shed(pool, pool.spec.full_bytes(2 * BLOCK))
    context = only_context(bench)
    assert 0 < len(context.token_ids) < len(PROMPT)
    following = PROMPT + run.tokens + random_tokens(9, 2)
    plan = planned(bench, following)
    assert [piece.context for piece in plan.pieces] == [context, None]
    assert_right(bench, following, len(PROMPT) + 4)


@with_ends
def test_a_prompt_that_parts_between_checkpoints_starts_from_the_one_before(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    with_system(bench)
    other = PROMPT[: SYSTEM + BLOCK] + random_tokens(30, 5)
    plan = planned(bench, other)
    assert (plan.tokens, plan.diverged_at) == (SYSTEM, SYSTEM + BLOCK)
    assert_right(bench, other, SYSTEM)


@with_ends
def test_checkpoints_of_memory_and_disk_are_found_beside_each_other(
    process: MakeBench, architecture: Architecture
) -> None:
    with_system(process(architecture))
    bench = process(architecture)
    # It reads the checkpoint after the system part, and makes none there itself.
    other = PROMPT[:SYSTEM] + random_tokens(12 * BLOCK, 6)
    assert with_system(bench, other).cached == SYSTEM
    following = planned(bench, other[:-1] + random_tokens(20, 7))
    assert not isinstance(following.end, DiskEnd)
    assert following.tokens >= len(other) - 1
    beginning = planned(bench, PROMPT[: SYSTEM + 3])
    assert isinstance(beginning.end, DiskEnd)
    assert beginning.tokens == SYSTEM


@with_ends
def test_an_end_whose_file_is_gone_falls_back_to_the_one_before(
    process: MakeBench, architecture: Architecture, tmp_path: Path
) -> None:
    run = with_system(process(architecture))
    following = PROMPT + run.tokens + random_tokens(9, 2)
    bench = process(architecture)
    plan = planned(bench, following)
    assert isinstance(plan.end, DiskEnd)
    file_of(tmp_path / "store", plan.end.name).unlink()
    fallback = bench.run_alone(following, 8)
    assert fallback.tokens == cold(architecture).run_alone(following, 8).tokens
    assert SYSTEM <= fallback.cached < plan.tokens


@with_ends
def test_a_start_without_any_end_left_computes_all(
    process: MakeBench, architecture: Architecture, tmp_path: Path
) -> None:
    run = with_system(process(architecture))
    following = PROMPT + run.tokens + random_tokens(9, 2)
    bench = process(architecture)
    planner = bench.reuse._planner
    names = planned(bench, following).names
    ends = planner.ends_on_path(following, names, len(PROMPT) + 4)
    assert len(ends) >= 3
    for _, name in ends:
        file_of(tmp_path / "store", name).unlink()
    assert_right(bench, following, 0)


@few
def test_a_block_whose_file_is_gone_ends_what_is_restored(
    process: MakeBench, architecture: Architecture, tmp_path: Path
) -> None:
    run = with_system(process(architecture))
    following = PROMPT + run.tokens + random_tokens(9, 2)
    bench = process(architecture)
    name = planned(bench, following).names[3]
    file_of(tmp_path / "store", name).unlink()
    cached = SYSTEM if bench.reuse._spec.has_ends else 3 * BLOCK
    assert_right(bench, following, cached)


def test_a_few_tokens_are_computed_and_not_restored(process: MakeBench) -> None:
    bench = process()
    bench.run_alone(PROMPT[:12], 2)
    assert planned(bench, PROMPT[:12]) == StartPlan()


def test_the_disk_has_more_of_a_block_than_the_context_of_another_agent(
    process: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_plan, "RESTORED_TOKENS_MIN", 8)
    bench, shared = process(GPT_OSS), random_tokens(3, 1)
    own = shared + random_tokens(9, 2)
    answer = bench.run_alone(own, 2).tokens  # with it less than a block
    following = own + answer + random_tokens(9, 4)
    bench.settle()
    shed(bench.reuse.pool, bench.reuse.pool.used_bytes)
    bench.run_alone(shared + random_tokens(6, 3), 2)  # its window still has every token
    plan = planned(bench, following)
    assert isinstance(plan.end, DiskEnd)
    assert plan.tokens >= len(own) - 1
    assert_right(bench, following, plan.tokens)


@few
def test_known_tokens_are_those_that_a_plan_restores(
    process: MakeBench, architecture: Architecture
) -> None:
    run = with_system(process(architecture))
    bench = process(architecture)
    following = PROMPT + run.tokens + random_tokens(9, 2)
    for prompt in (following, PROMPT, [*PROMPT[: SYSTEM + 1], 1, 2, 3]):
        in_memory, known, _ = bench.reuse._planner.known_tokens(prompt[:-1])
        assert in_memory == 0
        restored = planned(bench, prompt).tokens
        assert known >= restored
        assert known == restored or not bench.reuse._spec.has_ends


@few
def test_context_freed_while_another_thread_looks_is_unknown(
    process: MakeBench, architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine frees contexts while callers' threads prepare prompts."""
    bench = process(architecture)
    bench.run_alone(PROMPT, 4)
    bench.settle()
    pool, look = bench.reuse.pool, bench.reuse.pool.guarded

    def after_the_engine(lookup: Callable[[], object]) -> object:
        for context in pool.contexts():
            pool.free(context)
        return look(lookup)

    monkeypatch.setattr(pool, "guarded", after_the_engine)
    cached = bench.reuse.cached_prefix(PROMPT)
    assert cached.resident == 0
    assert cached.source == "disk"
