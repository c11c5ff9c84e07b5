"""Memory that the accounts do not know is taken from the contexts."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from domain.kv.plan import DeviceMemory, StepMemory
from tests.support.models.families import every_architecture_and
from tests.support.models.runner_probe import Bench
from tests.support.models.tiny_architectures import (
    LLAMA,
    VOCABULARY,
    Architecture,
)
from tests.support.models.unknown_memory import DeviceWithUnknownMemory
from worker.engine.mlx.memory import at_load
from worker.engine.mlx.memory.at_load import DeviceBudget
from worker.engine.mlx.memory.step import StepFile

MB = 1 << 20
#: Of the tiny network: 256 bytes a token.
BUDGET = 64 << 10


def test_contexts_are_shed_as_far_as_unknown_memory_takes_their_budget() -> None:
    device = DeviceWithUnknownMemory()
    bench = Bench(LLAMA, budget_bytes=DeviceBudget(device=device, batch=4, pinned_bytes=BUDGET))
    for n in range(4):
        bench.run_alone([(5 * n + i) % VOCABULARY for i in range(32)], 4)
    kept = bench.reuse.used_bytes()
    assert kept > BUDGET // 4
    # Far more than a step may take, and far more than the budget: nothing of it can stay.
    device.unknown_bytes = 100 * MB
    run = bench.run_alone([1, 2, 3], 4)
    assert len(run.tokens) == 4, "a lone sequence goes on"
    assert bench.reuse.used_bytes() < kept
    device.unknown_bytes = 0
    bench.close()


@pytest.mark.parametrize("reuse", [True, False], ids=["cache", "no cache"])
def test_younger_sequence_is_preempted_and_waits_while_unknown_memory_takes_the_budget(
    reuse: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    device = DeviceWithUnknownMemory()
    budget = DeviceBudget(device=device, batch=4, pinned_bytes=BUDGET)
    bench = Bench(LLAMA, budget_bytes=budget, reuse=reuse)
    older, younger = (bench.wait([n, *range(30)], 20) for n in (1, 2))
    while not younger.tokens:
        bench.go_on()
    device.unknown_bytes = 100 * MB
    bench.go_on()
    assert bench.waiting == [younger]
    while not older.ended:
        bench.go_on()
        assert bench.waiting == [younger] or older.ended
    bench.drain()
    assert (older.paused, younger.paused) == (0, 1)
    assert [len(run.tokens) for run in (older, younger)] == [20, 20]
    device.unknown_bytes = 0
    bench.close()


def test_memory_within_the_accounts_sheds_nothing() -> None:
    bench = Bench(
        LLAMA,
        budget_bytes=DeviceBudget(device=DeviceWithUnknownMemory(), batch=4, pinned_bytes=BUDGET),
    )
    for n in range(2):
        bench.run_alone([(5 * n + i) % VOCABULARY for i in range(32)], 4)
    kept = bench.reuse.pool.stats().evicted_blocks
    bench.run_alone([1, 2, 3], 4)
    assert bench.reuse.pool.stats().evicted_blocks == kept
    bench.close()


def peak_of_steps(bench: Bench, piece: int) -> int:
    """Compute prompts of several pieces together and return the largest working set of a step."""
    prompts = [[(7 * n + i) % VOCABULARY for i in range(3 * piece)] for n in range(4)]
    prompts += [[(5 * n + i) % VOCABULARY for i in range(piece - 1)] for n in range(4)]
    runs = [bench.join(prompt, 3) for prompt in prompts]
    most = 0
    while not all(run.ended for run in runs):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        bench.step()
        most = max(most, mx.get_peak_memory() - max(before, mx.get_active_memory()))
    return most


@every_architecture_and("piece", {"256": 256, "64": 64})
def test_estimated_step_covers_the_steps_that_are_run(
    architecture: Architecture, piece: int
) -> None:
    # A budget without a limit: all rows join.
    device = DeviceWithUnknownMemory()
    budget = DeviceBudget(device=device, batch=8)
    bench = Bench(architecture, budget_bytes=budget, step_tokens=piece)
    assert bench.runner._loaded is not None
    step_bytes = bench.runner._loaded.costs.step.bytes_at(3 * piece)
    assert 0 < peak_of_steps(bench, piece) <= step_bytes
    bench.close()


class DeviceOfSize(DeviceWithUnknownMemory):
    """A device of a size beside what this process holds already."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes

    def memory(self) -> DeviceMemory:
        size = self._size_bytes
        return DeviceMemory(
            memory_bytes=size, device_bytes=size, usable_bytes=size, source="a test"
        )


def test_a_step_beyond_its_estimate_takes_the_memory_of_contexts_and_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = StepMemory(fixed_bytes=1000)
    monkeypatch.setattr(at_load, "estimated_step", lambda *_, **__: low)
    # Room for the tiny weights and 6 MB of contexts; a step really takes some of these.
    device, steps = DeviceOfSize(6 * MB), StepFile(tmp_path / "steps.json")
    budget = DeviceBudget(device=device, batch=4, steps=steps)
    bench = Bench(LLAMA, budget_bytes=budget, step_tokens=256)
    loaded = bench.runner._loaded
    assert loaded is not None
    planned = loaded.kv_bytes or 0
    for n in range(30):
        bench.run_alone([(5 * n + i * i) % VOCABULARY for i in range(500)], 4)
    pool = bench.reuse.pool
    seen_bytes = pool.withheld_bytes
    assert seen_bytes > 100 * low.fixed_bytes
    assert pool.used_bytes + seen_bytes <= planned
    assert pool.stats().evicted_blocks > 0
    bench.close()
    again = Bench(LLAMA, budget_bytes=budget, step_tokens=256)
    assert again.runner._loaded is not None
    assert again.runner._loaded.costs.step.fixed_bytes > seen_bytes
    again.run_alone([(i * i) % VOCABULARY for i in range(500)], 4)
    assert again.reuse.pool.withheld_bytes < seen_bytes
    again.close()
