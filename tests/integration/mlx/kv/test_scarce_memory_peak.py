"""The memory in use never exceeds the budget and one step, on networks with large checkpoints."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import falcon_h1, gemma3_text

from tests.integration.mlx.kv.test_scarce_memory import STEP_TOKENS, TURNS, Agent
from tests.support.day_and_night import in_turn
from tests.support.models.disk_bench import DiskBench
from tests.support.models.runner_probe import STEPS_MAX
from tests.support.models.tiny_architectures import LLAMA, VOCABULARY, random_network

AGENTS = 3

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
_WINDOWS = random_network(
    gemma3_text,
    _COMMON
    | {
        "num_hidden_layers": 6,
        "sliding_window": 64,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 8.0,
    },
)
_STATES = random_network(
    falcon_h1,
    _COMMON
    | {
        "num_hidden_layers": 3,
        "mamba_d_ssm": 64,
        "mamba_d_head": 8,
        "mamba_n_heads": 8,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 16,
    },
)
NETWORKS = {"windows": _WINDOWS, "states": _STATES}


@pytest.fixture(autouse=True)
def _exact_memory() -> Iterator[None]:
    """Let MLX recycle no buffer, since a recycled one may be larger than what is asked for."""
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


@cache
def made(network: Any) -> Any:
    return network(mx.float32)


class Measured:
    """Agents that take turns, and the bytes beyond the weights that they take.

    Attributes:
        peak: The most at once.
        step: The most that a step took beside the contexts.
        used: The most that the accounts held.
    """

    def __init__(self, network: Any, directory: Path, budget_bytes: int) -> None:
        self.bench = DiskBench(
            LLAMA,  # replaced by the network
            directory,
            network=made(network),
            budget_bytes=budget_bytes,
            step_tokens=STEP_TOKENS,
        )
        gc.collect()
        mx.clear_cache()
        self.peak = self.step = self.used = 0
        self._weights = mx.get_active_memory()
        mx.reset_peak_memory()

    def run(self, *, at_once: bool) -> None:
        agents = [Agent(number) for number in range(AGENTS)]
        for _ in range(TURNS):
            for group in [agents] if at_once else [[agent] for agent in agents]:
                for agent in group:
                    agent.wait(self.bench)
                self._drain()
                for agent in group:
                    agent.record()
        self.bench.settle()
        self._record_peak()
        self.bench.close()

    def _drain(self) -> None:
        for _ in range(STEPS_MAX):
            self._record_peak()
            before = self._held()
            if not self.bench.go_on():
                return
            self.step = max(self.step, self._record_peak() - max(before, self._held()))
        pytest.fail("the agents do not end")

    def _held(self) -> int:
        """Return the bytes of contexts, without the pass that is being computed."""
        used = self.bench.reuse.used_bytes()
        self.used = max(self.used, used)
        return min(used, mx.get_active_memory() - self._weights)

    def _record_peak(self) -> int:
        peak = mx.get_peak_memory() - self._weights
        self.peak = max(self.peak, peak)
        mx.reset_peak_memory()
        return peak


@in_turn("network, at_once", list(NETWORKS), {"at once": True, "in turn": False})
def test_memory_stays_within_the_budget_and_one_step(
    network: str,
    at_once: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
) -> None:
    weights = NETWORKS[network]
    free = Measured(weights, tmp_path / "free", 1 << 30)
    free.run(at_once=at_once)
    budget_bytes = free.used * 6 // 10
    scarce = Measured(weights, tmp_path / "scarce", budget_bytes)
    scarce.run(at_once=at_once)
    assert scarce.used <= budget_bytes
    # Threads free the buffers of a step: its size varies.
    assert scarce.peak <= budget_bytes + free.step * 11 // 10
