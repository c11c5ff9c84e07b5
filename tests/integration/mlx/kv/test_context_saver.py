"""Contexts on their way to a disk that is slow, full or broken: delayed, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from domain.kv.checkpoints import CheckpointKind
from domain.kv.contexts import Context
from domain.kv.hashing import BlockHash, pack_ids
from domain.kv.spec import IN_FLIGHT_PARTS
from ops.blockstore.blocks import NewBlock
from tests.support.builders.blocks import FailingDisk
from tests.support.models.disk_bench import WAIT_S, DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, Run, shed
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    QWEN3_8_BITS,
    Architecture,
)
from tests.support.polling import scaled
from worker.cachestore.reports import ContextSaved
from worker.cachestore.writer import WriterLimits, WriteState

PROMPTS = [random_tokens(10 * BLOCK + 5, seed) for seed in (1, 2)]
QUICK = WriterLimits(retry_min_s=0.01, retry_max_s=0.01)
#: A checkpoint inside the second block.
POSITION = BLOCK + 5
LONG_PAUSE = WriterLimits(retry_min_s=60.0)

few = pytest.mark.parametrize(
    "architecture", [LLAMA, GPT_OSS, FALCON_H1, QWEN3_8_BITS], ids=lambda a: a.name
)

MakeBench = Callable[..., DiskBench]


def saved(bench: DiskBench) -> list[ContextSaved]:
    return [one for one in bench.reports if isinstance(one, ContextSaved)]


def names_of(bench: DiskBench, tokens: list[int]) -> list[BlockHash]:
    return list(bench.reuse.pool.hasher.chain(pack_ids(tokens), BLOCK))


def on_disk(bench: DiskBench, tokens: list[int]) -> int:
    """Return how many whole blocks of a context the disk has."""
    return sum(bench.tier.contains(name) for name in names_of(bench, tokens))


def context_of(bench: DiskBench, run: Run) -> Context:
    """Return the parked context of a run."""
    (found,) = (
        one for one in bench.reuse.pool.contexts() if one.token_ids[: len(run.prompt)] == run.prompt
    )
    return found


def pumped(bench: DiskBench) -> None:
    """Submit all that the writer takes now."""
    for _ in range(20):
        bench.runner.background()


def assert_whole(bench: DiskBench, *runs: Run) -> None:
    """Assert that the disk has all of these runs, and one manifest of each says so."""
    found = {one.manifest.blocks: one.manifest for one in saved(bench)}
    for run in runs:
        held = run.prompt + run.tokens
        manifest = found[tuple(names_of(bench, held[:-1]))]
        assert manifest.tail is not None
        assert all(bench.tier.contains(name) for name in manifest.hashes)


@few
def test_a_slow_disk_delays_contexts_and_takes_no_more_memory_than_allowed(
    process: MakeBench, architecture: Architecture
) -> None:
    spec = process(architecture).reuse._spec
    blocks = 4 * IN_FLIGHT_PARTS  # of which four may be in flight
    budget_bytes = blocks * spec.stored_bytes(BLOCK) + spec.checkpoint_bytes
    bench = process(architecture, budget_bytes=budget_bytes)
    bench.hold_writes()
    limit_bytes = max(spec.full_bytes(BLOCK), budget_bytes // IN_FLIGHT_PARTS)
    runs = [bench.join(prompt, 4) for prompt in PROMPTS]
    while not all(run.ended for run in runs):
        bench.step()
        pumped(bench)
        assert bench.tier.write_bytes() <= max(limit_bytes, spec.stored_bytes(BLOCK))
        assert bench.reuse.used_bytes() <= budget_bytes
    assert bench.tier.write_bytes()
    assert on_disk(bench, PROMPTS[0]) + on_disk(bench, PROMPTS[1]) == 0
    assert not saved(bench)
    bench.let_write()
    bench.settle()
    assert_whole(bench, *runs)


@few
@pytest.mark.parametrize("writes", [0, 3, 9])
def test_a_disk_that_comes_back_receives_what_it_refused(
    process: MakeBench, architecture: Architecture, writes: int
) -> None:
    disk = FailingDisk()
    disk.writes_left = writes
    bench = process(architecture, disk=disk, limits=QUICK)
    run = bench.run_alone(PROMPTS[0], 4)
    for _ in range(5):
        pumped(bench)
        bench.tier.flush(WAIT_S)
    assert not saved(bench)
    assert on_disk(bench, PROMPTS[0]) <= writes
    disk.writes_left = None
    bench.wait_until_it_writes()
    bench.settle()
    assert_whole(bench, run)
    assert context_of(bench, run).is_saved


@few
def test_a_context_that_is_evicted_unsaved_reports_only_what_the_disk_has(
    process: MakeBench, architecture: Architecture
) -> None:
    disk = FailingDisk()
    bench = process(architecture, disk=disk, limits=LONG_PAUSE)
    disk.writes_left = 3
    run = bench.run_alone(PROMPTS[0], 4)
    pumped(bench)
    bench.tier.flush(WAIT_S)
    assert bench.tier.write_state() is WriteState.PAUSED
    pool = bench.reuse.pool
    assert pool.make_room(pool.context_limit_bytes)
    assert not pool.contexts()
    bench.check()
    (report,) = saved(bench)
    assert report.manifest.tail is None
    assert all(bench.tier.contains(name) for name in report.manifest.hashes)
    assert report.tokens == len(report.manifest.blocks) * BLOCK < len(run.prompt)


@few
def test_a_dead_disk_keeps_no_context_out(process: MakeBench, architecture: Architecture) -> None:
    """Checkpoints that wait for the disk give way with the context that they belong to."""
    spec = process(architecture).reuse._spec
    row_bytes = process(architecture).reuse.row_bytes(len(PROMPTS[0]) + 4)
    budget_bytes = row_bytes + spec.checkpoint_bytes + spec.full_bytes(BLOCK)
    budget_bytes += budget_bytes // (IN_FLIGHT_PARTS - 1) + 1
    disk = FailingDisk()
    disk.writes_left = 0
    bench = process(architecture, disk=disk, limits=LONG_PAUSE, budget_bytes=budget_bytes)
    for prompt in PROMPTS:
        run = bench.wait(prompt, 4)
        bench.drain()
        assert run.ended
        pumped(bench)
        bench.tier.flush(WAIT_S)
        assert bench.tier.write_state() is WriteState.PAUSED


@few
def test_an_unsaved_context_that_runs_again_is_saved_with_both_turns(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    bench.hold_writes()
    first = bench.run_alone(PROMPTS[0], 4)
    following = first.prompt + first.tokens + random_tokens(40, 9)
    second = bench.run_alone(following, 4)
    assert second.cached >= len(first.prompt)
    assert len(bench.reuse.pool.contexts()) == 1
    bench.let_write()
    bench.settle()
    assert_whole(bench, second)
    reports = saved(bench)
    assert len(reports) == 2
    assert all(bench.tier.contains(name) for one in reports for name in one.manifest.blocks)


@few
def test_a_context_that_is_deleted_unsaved_is_not_saved(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    bench.hold_writes()
    run = bench.run_alone(PROMPTS[0], 4)
    deleted = bench.reuse.forget(names_of(bench, run.prompt))
    other = bench.run_alone(PROMPTS[1], 4)
    bench.let_write()
    bench.settle()
    assert deleted is not None
    deleted.result(scaled(WAIT_S))
    assert on_disk(bench, run.prompt) == 0
    assert_whole(bench, other)
    bench.check()
    assert [one.token_ids[:5] for one in bench.reuse.pool.contexts()] == [other.prompt[:5]]


def test_a_checkpoint_is_saved_whole_after_its_context_lost_a_shared_beginning(
    process: MakeBench,
) -> None:
    """The tokens before the checkpoint are then read from the context that still has them."""
    system = random_tokens(3 * BLOCK + 5, 5)
    bench = process(GEMMA3)
    bench.hold_writes()
    for seed in (6, 7):
        prompt = system + random_tokens(40, seed)
        run = bench.join_as(replace(bench.admission(prompt, 4), checkpoints=(POSITION,)))
        bench.finish(run)
    pool = bench.reuse.pool
    (system_end,) = (one for one in pool.checkpoints if one.kind is CheckpointKind.SYSTEM)
    assert not system_end.is_saved
    shed(pool, 1)
    assert any(one.start for one in pool.contexts())
    bench.let_write()
    bench.settle()
    assert bench.tier.contains(system_end.name)
    # Another process starts there, and says what a cold one says.
    other = system[:POSITION] + random_tokens(30, 8)
    fresh = process(GEMMA3)
    again = fresh.run_alone(other, 8)
    assert again.cached == POSITION
    assert again.tokens == Bench(GEMMA3, budget_bytes=None).run_alone(other, 8).tokens


@pytest.mark.parametrize("architecture", [GPT_OSS, FALCON_H1], ids=lambda a: a.name)
def test_a_context_is_adopted_while_its_end_is_being_written(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    bench.hold_writes()
    first = bench.run_alone(PROMPTS[0], 4)
    following = [*first.prompt, *first.tokens, *random_tokens(20, 9)]
    turn = bench.run_alone(following, 4)
    bench.let_write()
    bench.settle()
    reports = saved(bench)
    assert len(reports) == 2
    # The end of the first turn is deleted with the end of the second.
    assert all(bench.tier.contains(name) for name in reports[0].manifest.blocks)
    assert all(bench.tier.contains(name) for name in reports[1].manifest.hashes)
    assert reports[1].manifest.tail is not None
    assert turn.tokens == Bench(architecture, budget_bytes=None).run_alone(following, 4).tokens


@few
def test_at_the_end_the_most_recently_used_context_is_saved_first(
    process: MakeBench, architecture: Architecture
) -> None:
    bench = process(architecture)
    can_write, write = bench.tier.can_write, bench.tier.write
    order: list[BlockHash] = []

    def recorded(block: NewBlock, *more: int) -> Any:
        order.append(block.hash)
        return write(block, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.tier, "can_write", lambda *_: False)
        patch.setattr(bench.tier, "write", recorded)
        first, second = (bench.run_alone(prompt, 4) for prompt in PROMPTS)
        assert not order
        patch.setattr(bench.tier, "can_write", can_write)
        assert bench.reuse.save_all(WAIT_S)
    hot, cold = (names_of(bench, run.prompt) for run in (second, first))
    late = [order.index(name) for name in cold if name in order]
    early = [order.index(name) for name in hot if name in order]
    assert len(early) == len(late) > 0
    # While the last block of one waits for those before it, the writer takes the other's.
    assert all(one < other for one, other in zip(early, late, strict=True))
