"""Contexts that outlive the process: out to the disk, and back when another process asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from domain.kv.checkpoints import checkpoint_fingerprint
from domain.values import Sampling
from ops.blockstore.blocks import model_of
from ops.blockstore.disk import RegularFile
from tests.support.models.disk_bench import WAIT_S, DiskBench
from tests.support.models.families import every_architecture_and
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GPT_OSS,
    LLAMA,
    QWEN3_8_BITS,
    Architecture,
)
from tests.support.polling import scaled
from worker.cachestore.reports import ContextSaved
from worker.engine.mlx.kv.row_opening import STALLED_S_MAX
from worker.engine.mlx.kv.window_cache import leaves

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)

few = pytest.mark.parametrize(
    "architecture", [LLAMA, GPT_OSS, FALCON_H1, QWEN3_8_BITS], ids=lambda a: a.name
)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}

MakeBench = Callable[..., DiskBench]


@every_architecture_and("sampling", SAMPLINGS)
def test_after_a_restart_an_identical_prompt_and_the_next_turn_are_not_read_again(
    process: MakeBench, architecture: Architecture, sampling: Sampling
) -> None:
    cold = Bench(architecture, budget_bytes=None)
    prompt = random_tokens(5 * BLOCK + 7, 3)
    said = cold.run_alone(prompt, 12, sampling).tokens
    following = prompt + said + random_tokens(9, 4)
    then = cold.run_alone(following, 12, sampling).tokens
    assert process(architecture).run_alone(prompt, 12, sampling).tokens == said

    second = process(architecture)
    assert second.model.cached_prefix(tuple(prompt)).source == "disk"
    again = second.run_alone(prompt, 12, sampling)
    assert (again.tokens, again.cached, second.computed) == (said, len(prompt) - 1, 0)

    third = process(architecture)
    turn = third.run_alone(following, 12, sampling)
    assert turn.tokens == then
    assert turn.cached == len(prompt) + len(said)
    assert third.computed == 8


@few
def test_a_prompt_that_leaves_what_is_on_disk_starts_from_what_they_share(
    process: MakeBench, architecture: Architecture
) -> None:
    shared = random_tokens(3 * BLOCK + 5, 5)
    process(architecture).run_alone(shared + random_tokens(40, 6), 4)
    other = shared + random_tokens(30, 7)
    second = process(architecture)
    run = second.run_alone(other, 8)
    expected = Bench(architecture, budget_bytes=None).run_alone(other, 8).tokens
    assert run.tokens == expected
    # Windows and states go on only from a checkpoint, and here is none before they part.
    assert run.cached == (0 if second.reuse._spec.has_ends else len(shared))


@pytest.mark.parametrize("architecture", [GPT_OSS, FALCON_H1], ids=lambda a: a.name)
def test_prompts_part_at_the_checkpoint_after_the_system_prompt(
    process: MakeBench, architecture: Architecture
) -> None:
    system = random_tokens(2 * BLOCK + 5, 5)
    first = process(architecture)
    run = first.join_as(
        replace(first.admission(system + random_tokens(40, 6), 4), checkpoints=(len(system),))
    )
    first.finish(run)
    other = system + random_tokens(30, 7)
    second = process(architecture)
    known = second.model.cached_prefix((*system, *run.prompt[len(system) :][:BLOCK], 1, 2, 3))
    assert known.tokens == len(system)
    assert known.known > known.tokens
    run = second.run_alone(other, 8)
    assert run.tokens == Bench(architecture, budget_bytes=None).run_alone(other, 8).tokens
    assert run.cached == len(system)


@pytest.mark.parametrize("architecture", [GPT_OSS, FALCON_H1], ids=lambda a: a.name)
def test_the_manifest_names_every_checkpoint_on_the_disk(
    process: MakeBench, architecture: Architecture
) -> None:
    system = random_tokens(2 * BLOCK + 5, 5)
    bench = process(architecture)
    prompt = system + random_tokens(40, 6)
    run = bench.join_as(replace(bench.admission(prompt, 4), checkpoints=(len(system),)))
    bench.finish(run)
    bench.settle()
    (manifest,) = (one.manifest for one in bench.reports if isinstance(one, ContextSaved))
    directory = model_of(checkpoint_fingerprint(bench.reuse.fingerprint))
    stored = {block.hash for block in bench.store.blocks() if block.model == directory}
    assert len(stored) >= 3
    assert {manifest.tail, *manifest.checkpoints} == stored


@few
def test_a_context_that_barely_fits_the_memory_is_restored_whole(
    process: MakeBench, architecture: Architecture
) -> None:
    prompt = random_tokens(12 * BLOCK + 3, 8)
    first = process(architecture)
    expected = first.run_alone(prompt, 8).tokens
    spec = first.reuse._spec
    live_bytes = first.reuse.row_bytes(len(prompt) + 8) + spec.checkpoint_bytes
    budget_bytes = live_bytes + max(spec.full_bytes(BLOCK), live_bytes // 20)
    small = process(architecture, budget_bytes=budget_bytes)
    run = small.run_alone(prompt, 8)
    assert run.tokens == expected
    assert run.cached == len(prompt) - 1
    assert small.reuse.used_bytes() <= budget_bytes


def test_a_prompt_that_shares_a_beginning_takes_no_context_that_is_not_saved(
    process: MakeBench,
) -> None:
    system = random_tokens(3 * BLOCK, 40)
    first, other = (system + random_tokens(5 * BLOCK + 3, seed) for seed in (41, 42))
    spec = process(LLAMA).reuse._spec
    bench = process(LLAMA, budget_bytes=spec.full_bytes(BLOCK) * 14)
    bench.hold_writes()
    following = first + bench.run_alone(first, 8).tokens + random_tokens(5, 43)
    assert bench.runner.insert(bench.admission(other)) is None
    bench.let_write()
    bench.settle()
    bench.run_alone(other, 8)
    bench.settle()
    turn = bench.run_alone(following, 8)
    assert turn.cached == len(following) - 5
    assert turn.tokens == Bench(LLAMA, budget_bytes=None).run_alone(following, 8).tokens


@pytest.mark.parametrize("architecture", [GPT_OSS, FALCON_H1], ids=lambda a: a.name)
def test_an_answer_gets_its_checkpoint_although_memory_is_full_of_others(
    process: MakeBench, architecture: Architecture
) -> None:
    prompts = [random_tokens(20 * BLOCK + 3, seed) for seed in (51, 52)]
    first = process(architecture)
    spec = first.reuse._spec
    # One row, the checkpoints of prompt and answer, and what is on its way to the disk.
    live_bytes = first.reuse.row_bytes(len(prompts[0]) + 8) + 2 * spec.checkpoint_bytes
    small = process(architecture, budget_bytes=live_bytes * 26 // 25 + spec.full_bytes(BLOCK))
    following = []
    for prompt in prompts:
        following.append(prompt + small.run_alone(prompt, 8).tokens + random_tokens(1, 53))
        small.settle()
    for prompt in following:
        assert small.run_alone(prompt, 1).cached == len(prompt) - 1
        small.settle()


def test_blocks_that_are_on_disk_are_not_written_again(process: MakeBench) -> None:
    prompt = random_tokens(4 * BLOCK + 7, 9)
    process(LLAMA).run_alone(prompt, 8)
    second = process(LLAMA)
    second.run_alone(prompt, 8)
    second.settle()
    assert second.tier.stats().stored <= 1
    second.run_alone(prompt, 8)
    second.settle()
    assert second.tier.stats().present == 0


def test_while_one_waits_for_the_disk_others_go_on(process: MakeBench) -> None:
    prompt = random_tokens(6 * BLOCK, 10)
    expected = process(LLAMA).run_alone(prompt, 8).tokens
    second = process(LLAMA)
    other = second.join(random_tokens(20, 11), 60)
    second.step()
    second.hold_reads()
    run = second.join(prompt, 8)
    # The steps of its own start take the disk's time; after them it decodes at every step.
    for _ in range(1000):
        if len(other.tokens) >= 8:
            break
        second.step()
    assert (len(other.tokens) >= 8, run.tokens) == (True, [])
    second.let_read()
    second.finish(run)
    assert (run.tokens, run.cached) == (expected, len(prompt) - 1)


def test_a_disk_that_hangs_is_waited_for_within_a_bound(
    process: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_tokens(6 * BLOCK, 12)
    expected = process(LLAMA).run_alone(prompt, 8).tokens
    second = process(LLAMA)
    monkeypatch.setattr("worker.engine.mlx.kv.row_opening.STALLED_S_MAX", 0.05)
    second.hold_reads()
    run = second.run_alone(prompt, 8)
    assert (run.tokens, run.cached) == (expected, 0)
    second.let_read()


def test_a_slow_disk_is_waited_for_as_long_as_bytes_come(
    process: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_tokens(6 * BLOCK, 12)
    expected = process(LLAMA).run_alone(prompt, 8).tokens
    second = process(LLAMA)
    now_s = [0.0]
    monkeypatch.setitem(second.reuse._opening.keywords, "now_s", lambda: now_s[0])
    second.hold_reads()
    run = second.join(prompt, 8)
    for _ in range(4):
        second.step()
        now_s[0] += 0.8 * STALLED_S_MAX
        second.tier._read_ahead.progress += 1
    second.let_read()
    second.finish(run)
    assert (run.tokens, run.cached) == (expected, len(prompt) - 1)


def test_a_disk_that_answers_too_late_changes_nothing_that_was_computed(
    process: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_tokens(6 * BLOCK, 12)
    expected = process(LLAMA).run_alone(prompt, 30).tokens
    second = process(LLAMA)
    held = threading.Event()
    read_into = RegularFile.read_into

    def late(file: RegularFile, buffers: Sequence[memoryview]) -> bool:
        assert held.wait(scaled(WAIT_S))
        found = read_into(file, buffers)
        for buffer in buffers:
            buffer[:] = bytes(buffer.nbytes)
        return found

    monkeypatch.setattr("ops.blockstore.format.PIECE_BYTES", 8 << 10)
    monkeypatch.setattr(RegularFile, "read_into", late)
    monkeypatch.setattr("worker.engine.mlx.kv.row_opening.STALLED_S_MAX", 0.05)
    run = second.join(prompt, 30)
    while len(run.tokens) < 10:
        second.step()
    assert run.cached < len(prompt) - 1
    held.set()
    second.finish(run)
    assert run.tokens == expected


def test_after_a_restore_nothing_holds_the_memory_of_the_row(process: MakeBench) -> None:
    prompt = random_tokens(6 * BLOCK, 12)
    process(LLAMA).run_alone(prompt, 8)
    second = process(LLAMA)
    placed = []
    get = second.store.get
    second.store.get = lambda *args: placed.append(get(*args)) or placed[-1]  # type: ignore[method-assign,func-returns-value]
    run = second.join(prompt, 40)
    while not run.tokens:
        second.step()
    assert [getattr(block, "is_placed", None) for block in placed] == [True] * 5 + [False]
    (row,) = second.runner.sequences._rows.rows
    before = [memory_of(leaf.keys) for leaf in leaves(row.caches)]
    second.step()
    second.step()
    assert [memory_of(leaf.keys) for leaf in leaves(row.caches)] == before


def memory_of(array: mx.array) -> int:
    """Return the address of an array's elements."""
    return int(np.asarray(array).ctypes.data)


def test_one_that_leaves_while_it_is_restored_gives_its_memory_back(process: MakeBench) -> None:
    prompt = random_tokens(6 * BLOCK, 13)
    process(LLAMA).run_alone(prompt, 8)
    second = process(LLAMA)
    second.hold_reads()
    run = second.join(prompt, 8)
    second.step()
    assert second.reuse.used_bytes() > 0
    second.leave(run)
    assert second.reuse.used_bytes() == 0
    second.let_read()
    assert second.run_alone(prompt, 8).cached == len(prompt) - 1


def test_forgotten_context_is_nowhere_any_more(process: MakeBench, tmp_path: Path) -> None:
    prompt = random_tokens(4 * BLOCK + 5, 14)
    bench = process(LLAMA)
    run = bench.run_alone(prompt, 8)
    bench.settle()
    kept = [report for report in bench.reports if isinstance(report, ContextSaved)]
    names = kept[-1].manifest.hashes
    assert len(names) == len(list(tmp_path.rglob("*.kv"))) == 5
    deleted = bench.reuse.forget(names)
    assert deleted is not None
    assert deleted.result(scaled(60)) == len(names)
    assert list(tmp_path.rglob("*.kv")) == []
    assert bench.model.cached_prefix(tuple(prompt)).tokens == 0
    again = bench.run_alone(prompt, 8)
    assert (again.tokens, again.cached) == (run.tokens, 0)


def test_manifest_names_what_is_on_disk_and_only_that(process: MakeBench) -> None:
    bench = process(LLAMA)
    prompt = random_tokens(4 * BLOCK + 5, 15)
    bench.run_alone(prompt, 8)
    bench.settle()
    (kept,) = [report for report in bench.reports if isinstance(report, ContextSaved)]
    assert kept.tokens == len(prompt) + 8
    assert all(bench.tier.contains(name) for name in kept.manifest.hashes)
    assert kept.manifest.tail is not None
