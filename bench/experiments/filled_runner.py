"""A runner on a model of 50 million parameters whose contexts fill the memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from domain.values import Sampling
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.tiny_models import make_tiny_llama
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.model.loaded_weights import LoadedWeights
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admission

CONTEXTS, CONTEXT_TOKENS = 4, 128
KV_BUDGET_BYTES = 1 << 30


def make_model(directory: Path) -> Path:
    """Write a random model with the widths of SmolLM2-135M and 6 layers."""
    return make_tiny_llama(directory, hidden=576, layers=6, vocabulary=49_152, context=8192)


def rss_mb() -> float:
    """Return the resident memory of this process, in MB."""
    return float(psutil.Process().memory_info().rss) / 1e6


def load(model: Path) -> LoadedWeights:
    """Load the weights."""
    return load_weights(ModelSource(id=str(model)))


def new_runner(
    weights: LoadedWeights, *, budget_bytes: int = KV_BUDGET_BYTES, tier: DiskTier | None = None
) -> BatchRunner:
    """Return a runner on loaded weights, ready to compute."""
    runner = BatchRunner(
        load_weights=lambda: weights,
        prefill_step_tokens=None,
        kv_budget_bytes=budget_bytes,
        tier=tier,
    )
    runner.load()
    return runner


def fill(runner: BatchRunner, *, contexts: int = CONTEXTS, tokens: int = CONTEXT_TOKENS) -> None:
    """Compute contexts, which stay in memory."""
    for seed in range(contexts):
        admission = Admission(
            tokens=tuple(random_tokens(tokens, seed)),
            first_index=0,
            max_new_tokens=2,
            sampling=Sampling(temperature=0),
        )
        admitted = runner.insert(admission)
        assert admitted is not None, "the budget holds the contexts"
        while not any(finish for _, _, finish in runner.step().tokens):
            pass
