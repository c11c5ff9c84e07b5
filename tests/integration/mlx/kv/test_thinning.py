"""Checkpoints of earlier turns leave the disk, and not before the disk has later ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from domain.kv.checkpoints import checkpoint_fingerprint
from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import model_of
from tests.support.models.disk_bench import WAIT_S, DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Run, shed
from tests.support.models.tiny_architectures import FALCON_H1, GEMMA3, GPT_OSS, Architecture
from tests.support.polling import scaled

MakeBench: TypeAlias = Callable[..., DiskBench]
SYSTEM = random_tokens(3 * BLOCK + 5, 1)
AGENTS = 3

architectures = pytest.mark.parametrize(
    "architecture", [GEMMA3, GPT_OSS, FALCON_H1], ids=lambda each: each.name
)


def each(architecture: Architecture) -> int:
    """Return the checkpoints of a turn: at the ends of prompt and answer, and on the way."""
    return 3 if architecture is FALCON_H1 else 2


def checkpoints(bench: DiskBench) -> set[BlockHash]:
    """Return the names of all checkpoints on the disk."""
    bench.settle()
    bench.tier.forget([]).result(scaled(WAIT_S))  # after all deletions
    model = model_of(checkpoint_fingerprint(bench.reuse.fingerprint))
    return {one.hash for one in bench.store.blocks() if one.model == model}


def turn(bench: DiskBench, prompt: list[int]) -> Run:
    run = bench.join_as(replace(bench.admission(prompt, 4), checkpoints=(len(SYSTEM),)))
    bench.finish(run)
    return run


def following(run: Run, seed: int) -> list[int]:
    return [*run.prompt, *run.tokens, *random_tokens(30, seed)]


@architectures
@pytest.mark.parametrize("freed", ["nothing", "beginnings", "all"])
def test_turns_of_agents_with_one_system_prompt_leave_as_many_checkpoints(
    process: MakeBench, architecture: Architecture, freed: str
) -> None:
    bench = process(architecture)
    prompts = [SYSTEM + random_tokens(40, 10 + number) for number in range(AGENTS)]
    kept = AGENTS * each(architecture) + 1  # and the end of the system prompt
    for number in range(4):
        runs = [turn(bench, prompt) for prompt in prompts]
        found = checkpoints(bench)
        # A fork stands where the first prompts part, if that is not the end of the system prompt.
        assert len(found) <= kept + (number > 0), number
        pool = bench.reuse.pool
        if freed == "beginnings":
            shed(pool, 1)
        elif freed == "all":
            shed(pool, pool.used_bytes)
        prompts = [following(run, 100 * number + run.uid) for run in runs]
        for prompt, run in zip(prompts, runs, strict=True):
            known = bench.reuse.cached_prefix(prompt).tokens
            assert known >= len(run.prompt) + len(run.tokens) - 1


@architectures
def test_an_earlier_process_left_checkpoints_that_are_thinned(
    process: MakeBench, architecture: Architecture, tmp_path: Path
) -> None:
    """It was killed after it had saved the end of a turn, and before it deleted the earlier one."""
    bench = process(architecture)
    first = turn(bench, SYSTEM + random_tokens(40, 2))
    bench.settle()
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    second = turn(bench, following(first, 3))
    assert len(checkpoints(bench)) <= 1 + each(architecture)
    bench.close()
    shutil.copytree(tmp_path / "before", tmp_path / "store", dirs_exist_ok=True)
    again = process(architecture)
    assert len(checkpoints(again)) > 1 + each(architecture)
    third = turn(again, following(second, 4))
    assert third.cached >= len(second.prompt) + len(second.tokens) - 1
    assert len(checkpoints(again)) <= 1 + each(architecture)


@architectures
def test_the_disk_keeps_the_end_of_a_turn_until_it_has_that_of_the_next(
    process: MakeBench, architecture: Architecture, tmp_path: Path
) -> None:
    bench = process(architecture)
    first = turn(bench, SYSTEM + random_tokens(40, 2))
    before = checkpoints(bench)
    bench.hold_writes()
    second = turn(bench, following(first, 3))
    for _ in range(20):
        bench.runner.background()
    # What a kill leaves now.
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    bench.let_write()
    assert len(checkpoints(bench)) == len(before)
    bench.close()
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "killed", tmp_path / "store")
    again = process(architecture)
    third = turn(again, second.prompt)
    assert third.cached >= len(first.prompt) + len(first.tokens) - 1
