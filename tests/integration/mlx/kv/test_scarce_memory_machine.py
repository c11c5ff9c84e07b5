"""Random histories of a runner with little memory and a disk that fails, checked at each step."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.builders.blocks import FailingDisk
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, Run, shed
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GPT_OSS,
    GPT_OSS_8_BITS,
    LLAMA,
    Architecture,
)
from tests.support.models.unknown_memory import DeviceWithUnknownMemory
from worker.cachestore.writer import WriterLimits
from worker.engine.mlx.memory.at_load import TOLERANCE_BYTES_MIN, DeviceBudget

#: Histories in a run; the variable makes longer ones.
EXAMPLES = int(os.environ.get("SCARCE_MEMORY_EXAMPLES", "4"))
ANSWER_TOKENS = 6
PROMPT_TOKENS_MAX = 14 * BLOCK
SYSTEM = tuple(random_tokens(2 * BLOCK + 3, 1))


@cache
def text(architecture: Architecture, prompt: tuple[int, ...]) -> list[int]:
    """Return the answer of an unlimited budget."""
    bench = Bench(architecture, budget_bytes=None, step_tokens=4 * BLOCK)
    return bench.run_alone(list(prompt), ANSWER_TOKENS).tokens


class ScarceMemory(RuleBasedStateMachine):
    @initialize(
        architecture=st.sampled_from([LLAMA, GPT_OSS, FALCON_H1, GPT_OSS_8_BITS]),
        share=st.sampled_from([1.05, 1.35, 2.5]),
    )
    def start(self, architecture: Architecture, share: float) -> None:
        self.architecture = architecture
        self.directory = TemporaryDirectory()
        self.disk, self.device = FailingDisk(), DeviceWithUnknownMemory()
        probe = Bench(architecture).reuse
        spec = probe._spec
        held = int(share * probe.row_bytes(PROMPT_TOKENS_MAX)) + spec.checkpoint_bytes
        held += spec.full_bytes(BLOCK)
        self.budget_bytes = held + max(spec.full_bytes(BLOCK), held // 24)
        self.seed = 10
        self.contexts: list[list[int]] = []
        self.open()

    def open(self) -> None:
        self.bench = DiskBench(
            self.architecture,
            Path(self.directory.name),
            budget_bytes=DeviceBudget(device=self.device, batch=1, pinned_bytes=self.budget_bytes),
            step_tokens=4 * BLOCK,
            disk=self.disk,
            limits=WriterLimits(retry_min_s=0.01, retry_max_s=0.01),
        )
        self.runs: list[Run] = []

    def fresh(self, count: int) -> list[int]:
        self.seed += 1
        return random_tokens(count, self.seed)

    def join(self, prompt: list[int]) -> None:
        prompt = prompt[: PROMPT_TOKENS_MAX - ANSWER_TOKENS]
        run = self.bench.wait(prompt, ANSWER_TOKENS, checkpoints=(len(SYSTEM),))
        self.runs.append(run)

    @rule(count=st.integers(20, 150), shares=st.booleans())
    def new(self, count: int, shares: bool) -> None:  # noqa: FBT001 - drawn
        self.join((list(SYSTEM) if shares else []) + self.fresh(count))

    @rule(at=st.integers(0, 99), count=st.integers(1, 20))
    def next_turn(self, at: int, count: int) -> None:
        if self.contexts:
            self.join(self.contexts[at % len(self.contexts)] + self.fresh(count))

    @rule(at=st.integers(0, 99), part=st.floats(0.1, 1.0))
    def fork(self, at: int, part: float) -> None:
        if self.contexts:
            context = self.contexts[at % len(self.contexts)]
            self.join(context[: int(part * len(context))] + self.fresh(5))

    @rule(at=st.integers(0, 99))
    def again(self, at: int) -> None:
        if self.contexts:
            self.join(list(self.contexts[at % len(self.contexts)]))

    @rule(count=st.integers(1, 30))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.bench.go_on()
        self.collect()

    @rule(at=st.integers(0, 99))
    def cancel(self, at: int) -> None:
        running = [run for run in self.runs if run.uid in self.bench.runs and not run.ended]
        if running:
            run = running[at % len(running)]
            self.bench.leave(run)
            self.runs.remove(run)

    @rule()
    def reset(self) -> None:
        self.bench.runner.reset()
        for run in [run for run in self.runs if run.uid in self.bench.runs]:
            del self.bench.runs[run.uid]
            self.runs.remove(run)

    @rule(at=st.integers(0, 99))
    def forget(self, at: int) -> None:
        contexts = self.bench.reuse.pool.contexts()
        if contexts:
            self.bench.reuse.forget(contexts[at % len(contexts)].names[1:3])

    @rule(left=st.sampled_from([None, 0, 2]))
    def fill_disk(self, left: int | None) -> None:
        self.disk.writes_left = left

    @rule(holds=st.booleans())
    def slow_disk(self, holds: bool) -> None:  # noqa: FBT001 - drawn
        (self.bench.hold_writes if holds else self.bench.let_write)()

    @rule(over=st.integers(1, 1 << 17))
    def shed(self, over: int) -> None:
        shed(self.bench.reuse.pool, over)

    @rule(share=st.sampled_from([0.0, 0.3, 2.0]))
    def take_elsewhere(self, share: float) -> None:
        unknown_bytes = TOLERANCE_BYTES_MIN + int(share * self.budget_bytes) if share else 0
        self.device.unknown_bytes = unknown_bytes

    @rule()
    def restart(self) -> None:
        self.bench.close()
        self.open()

    def collect(self) -> None:
        """Compare the texts of the runs that ended."""
        for run in [run for run in self.runs if run.ended]:
            assert run.fault is None
            assert run.tokens == text(self.architecture, tuple(run.prompt))
            self.contexts.append(run.prompt + run.tokens)
            self.runs.remove(run)
            self.bench.runs.pop(run.uid, None)

    @invariant()
    def accounts_hold(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()
            assert self.bench.reuse.used_bytes() <= self.budget_bytes

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.disk.writes_left = None
        self.bench.let_write()
        self.bench.drain()
        self.collect()
        self.bench.close()
        self.directory.cleanup()


TestScarceMemory = ScarceMemory.TestCase
TestScarceMemory.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
)
