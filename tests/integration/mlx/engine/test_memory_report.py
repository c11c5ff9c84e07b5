"""What the engine logs about its memory when a model has been loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import worker.demo_model
from domain.kv.plan import ContextCosts, DeviceMemory, StepMemory
from domain.model.registry import ModelEntry
from worker.engine.mlx.memory import at_load
from worker.engine.mlx.memory.at_load import DeviceBudget, measured_budget, report_memory
from worker.engine.mlx.memory.device import EmbeddingAccount, ProcessDevice
from worker.engine.mlx.memory.step import StepFile
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.model.sizing import size_model
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import ModelLoadError
from worker.plan import read_config

MB = 10**6
DEMO = Path(worker.demo_model.__file__).parent


def costs(context_length: int = 100_000) -> ContextCosts:
    """Return a model of 10 MB with 1 kB a token, so 20 MB for a context of 20,000 tokens."""
    return ContextCosts(
        weights_bytes=10 * MB,
        step=StepMemory(fixed_bytes=2 * MB, token_bytes=100),
        live_bytes=lambda tokens: 1000 * tokens,
        context_length=context_length,
    )


def device(size_mb: int) -> DeviceMemory:
    size = size_mb * MB
    return DeviceMemory(
        memory_bytes=2 * size, device_bytes=size, usable_bytes=size * 9 // 10, source="a test"
    )


def reported(
    budget_mb: int, context_length: int = 100_000, *, is_pinned: bool = True, device_mb: int = 1000
) -> list[Any]:
    with capture_logs() as lines:
        report_memory(
            costs(context_length),
            budget_bytes=budget_mb * MB,
            is_pinned=is_pinned,
            device=device(device_mb),
        )
    return lines


def test_contexts_that_fit_are_reported_without_a_warning() -> None:
    (line,) = reported(100)
    assert line == {
        "event": "memory_planned",
        "log_level": "info",
        "usable_gb": 0.9,
        "usable": "a test",
        "weights_gb": 0.01,
        "kv_budget_gb": 0.1,
        "kv_budget": "engine.kv_budget_mb",
        "context_tokens": 20_000,
        "context_gb": 0.02,
        "contexts_in_memory": "5 of 5",
    }


def test_a_measured_budget_is_named_with_its_terms() -> None:
    (line,) = reported(100, is_pinned=False)
    assert (line["kv_budget"], line["step_gb"]) == ("usable - weights - step", 0.0)


def test_contexts_that_do_not_fit_together_are_warned_of() -> None:
    line, warning = reported(99)
    assert line["contexts_in_memory"] == "4 of 5"
    assert (warning["event"], warning["log_level"]) == ("contexts_exceed_memory", "warning")
    assert warning["why"] == "4 of 5 contexts of 20000 tokens fit in the KV budget"


def test_contexts_are_at_most_as_long_as_the_service_accepts() -> None:
    (line,) = reported(5, context_length=1000)
    assert (line["context_tokens"], line["contexts_in_memory"]) == (1000, "5 of 5")


def test_a_budget_beyond_the_device_is_warned_of() -> None:
    assert len(reported(100, device_mb=114)) == 1
    assert reported(101, device_mb=114)[-1]["event"] == "budget_exceeds_device"


def test_a_measured_budget_is_what_weights_and_a_step_leave() -> None:
    expected = (90 * MB - 10 * MB - 4 * MB, (90 - 10 - 2) * MB // 1100)
    assert measured_budget(costs(), device(100), block_bytes=1) == expected


@pytest.mark.parametrize("size_mb", [1, 11, 13])
def test_a_device_without_room_for_a_block_is_refused_with_all_terms(size_mb: int) -> None:
    with pytest.raises(ModelLoadError) as refusal:
        measured_budget(costs(), device(size_mb), block_bytes=256_000)
    for term in (f"{0.9 * size_mb:.1f} MB are usable", "10.0 MB", "4.0 MB", "kv_budget_mb"):
        assert term in refusal.value.message


class SmallDevice(ProcessDevice):
    """A device of that size, whatever other tests hold in this process."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self.limits: list[tuple[int, int]] = []

    def memory(self) -> DeviceMemory:
        size = self._size_bytes
        return DeviceMemory(
            memory_bytes=size, device_bytes=size, usable_bytes=size, source="a test"
        )

    def limit(self, *, memory_bytes: int, cache_bytes: int) -> None:
        self.limits.append((memory_bytes, cache_bytes))


def loaded(budget: int | DeviceBudget, context_length: int = 1000) -> tuple[Any, int]:
    """Return the line about the memory of the demo model, and the length of its contexts."""
    lines, context_length = logged(budget, context_length)
    (line,) = [line for line in lines if line["event"] == "memory_planned"]
    return line, context_length


def logged(budget: int | DeviceBudget, context_length: int = 1000) -> tuple[list[Any], int]:
    """Return all lines of loading the demo model, and the length of its contexts."""
    source = ModelEntry(name="tiny", source=str(DEMO), context_length=context_length)
    runner = BatchRunner(
        load_weights=lambda: load_weights(source),
        prefill_step_tokens=64,
        kv_budget_bytes=budget,
    )
    with capture_logs() as lines:
        model = runner.load()
    return lines, model.card.context_length


def test_a_pinned_budget_is_reported_without_a_step() -> None:
    line, _ = loaded(2**30)
    assert line["kv_budget_gb"] == 1.07
    assert "usable_gb" not in line


def test_a_loaded_model_has_the_budget_that_it_leaves() -> None:
    small = SmallDevice(10**9)
    line, context = loaded(DeviceBudget(device=small, batch=4))
    planned = size_model(read_config(str(DEMO)), piece_tokens=64, batch=4)
    assert context == 1000
    assert line["weights_gb"] == round(planned.weights_bytes / 1e9, 2)
    # Weights and a step are a few MB.
    assert 0.97 <= line["kv_budget_gb"] <= 1.01
    ((memory_bytes, cache_bytes),) = small.limits
    assert memory_bytes == 10**9
    assert 0 < cache_bytes < 10**8


@pytest.mark.parametrize(
    ("disk_bytes", "warns"), [(None, False), (0, True), (10**6, True), (10**8, False)]
)
def test_a_disk_that_does_not_hold_the_usual_contexts_is_warned_of(
    disk_bytes: int | None, *, warns: bool
) -> None:
    # Five contexts of 1,000 tokens take a few MB.
    lines, _ = logged(DeviceBudget(device=SmallDevice(10**9), batch=4, disk_bytes=disk_bytes))
    found = [line for line in lines if line["event"] == "contexts_exceed_disk"]
    assert [line["log_level"] for line in found] == ["warning"] * warns
    assert all("5 contexts of 1000 tokens" in line["why"] for line in found)


def test_a_pinned_budget_stays_and_the_device_is_reported() -> None:
    budget = DeviceBudget(device=SmallDevice(10**9), batch=4, pinned_bytes=2**28)
    line, _ = loaded(budget)
    assert (line["kv_budget_gb"], line["kv_budget"]) == (0.27, "engine.kv_budget_mb")
    assert line["usable"] == "a test"


@pytest.mark.parametrize(
    ("device_mb", "reserve_mb", "is_granted"),
    [(1000, 100, True), (1000, 995, False), (30, 2, True), (30, 10, False), (30, 0, True)],
)
def test_memory_is_set_aside_where_the_model_keeps_most_of_its_context(
    device_mb: int, reserve_mb: int, monkeypatch: pytest.MonkeyPatch, *, is_granted: bool
) -> None:
    # Weights of 12 MB, contexts of 1.8 kB a token.
    step = StepMemory(fixed_bytes=5 * MB, token_bytes=7)
    monkeypatch.setattr(at_load, "estimated_step", lambda *_, **__: step)
    small = SmallDevice(device_mb * MB)
    alone, longest = loaded(DeviceBudget(device=small, batch=1), context_length=16_000)
    account = EmbeddingAccount(small, reserve_mb * MB)
    budget = DeviceBudget(device=account, batch=1, reserve=account)
    lines, beside = logged(budget, context_length=16_000)
    (line,) = [line for line in lines if line["event"] == "memory_planned"]
    refused = [line for line in lines if line["event"] == "embeddings_have_no_room"]
    assert account.is_granted is is_granted
    assert len(refused) == (not is_granted)
    taken_mb = reserve_mb if is_granted else 0
    assert line["kv_budget_gb"] == pytest.approx(alone["kv_budget_gb"] - taken_mb / 1000, abs=0.011)
    assert longest / 2 <= beside <= longest
    assert (beside == longest) is (taken_mb == 0 or device_mb == 1000)


@pytest.mark.parametrize(("reserve_mb", "is_granted"), [(500, True), (800, False)])
def test_a_pinned_budget_stays_beside_what_is_set_aside(
    reserve_mb: int, *, is_granted: bool
) -> None:
    account = EmbeddingAccount(SmallDevice(10**9), reserve_mb * MB)
    budget = DeviceBudget(device=account, batch=4, pinned_bytes=2**28, reserve=account)
    line, _ = loaded(budget)
    assert line["kv_budget_gb"] == 0.27
    assert account.is_granted is is_granted


def test_a_remembered_step_wins_over_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates: list[int] = []

    def estimated(*_: object, batch: int, **__: object) -> StepMemory:
        estimates.append(batch)
        return StepMemory(fixed_bytes=5 * MB, token_bytes=7)

    monkeypatch.setattr(at_load, "estimated_step", estimated)
    kept: dict[str, StepMemory] = {}

    class OneKey(StepFile):
        def get(self, key: str) -> StepMemory | None:
            kept.setdefault(key, StepMemory(fixed_bytes=30 * MB))
            return kept[key] if " 2 " in key else None

    steps = OneKey(tmp_path / "steps.json")
    lines = [
        loaded(DeviceBudget(device=SmallDevice(10**9), batch=batch, steps=steps))[0]
        for batch in (2, 3)
    ]
    assert estimates == [3]
    assert [line["step_gb"] for line in lines] == [0.03, 0.01]


@pytest.mark.parametrize("content", ["", "[1]", '{"key": 1}', '{"key": {"other": 1}}'])
def test_a_garbled_file_of_steps_is_empty(tmp_path: Path, content: str) -> None:
    file = tmp_path / "steps.json"
    file.write_text(content)
    assert StepFile(file).get("key") is None
    StepFile(file).put("key", StepMemory(fixed_bytes=1))
    assert StepFile(file).get("key") == StepMemory(fixed_bytes=1)
    assert StepFile(tmp_path / "none" / "steps.json").get("key") is None


def test_a_context_is_lowered_to_what_the_device_holds() -> None:
    # Weights of 12 MB, contexts of 1.8 kB a token, and steps.
    budget = DeviceBudget(device=SmallDevice(30 * MB), batch=1)
    _, lowered = loaded(budget, context_length=8192)
    assert 0 < lowered < 8192


def test_weights_beyond_the_device_are_refused_before_they_are_read() -> None:
    budget = DeviceBudget(device=SmallDevice(MB), batch=1)
    with pytest.raises(ModelLoadError, match=r"its weights take .* 1\.0 MB are usable \(a test\)"):
        load_weights(ModelEntry(name="tiny", source=str(DEMO)), check_dir=budget.check_weights)
