"""The training loop: Muon and AdamW over batches, and the files of the result."""

import json
import operator
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import optimizers
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_map
from mlx_lm.models import llama
from tokenizers import Tokenizer

from bench.demo_model import network
from bench.demo_model.batches import Batch
from bench.demo_model.render import MODEL_DIR

_LOG_EVERY = 20
_WARM_UP = 20
#: Batches of a step; those of long prompts have prefixes of different lengths.
_PARTS = 2
_MUON_RATE = 0.008
_ADAM_RATE = 4e-3


Loss = Callable[[llama.Model, Any], tuple[mx.array, mx.array]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train in one stage.

    Attributes:
        seed: Seed of weights, corpus and noise.
        steps: Number of steps.
        rate: Factor of all learning rates.
        openings: Prompts from which long prefixes are drawn; 0 trains the whole model on
            conversations instead.
        rows: Number of rows of a batch.
        length: Tokens per row; rows with a long prompt are four times as long and as few.
        long_from: Share of the stage after which rows open with a long irrelevant text.
    """

    seed: int
    steps: int
    rate: float = 1.0
    openings: int = 0
    rows: int = 6
    length: int = 320
    long_from: float = 0.87


def loss_and_accuracy(model: llama.Model, batch: Batch) -> tuple[mx.array, mx.array]:
    """Return mean cross entropy and share of right guesses at the learned positions."""
    return score(model, model.model(mx.array(batch.inputs)), batch)


def score(model: llama.Model, hidden: mx.array, batch: Batch) -> tuple[mx.array, mx.array]:
    """Return both figures from the last hidden states."""
    learned = hidden.reshape(-1, network.HIDDEN)[mx.array(batch.positions)]
    logits = model.model.embed_tokens.as_linear(learned)
    targets = mx.array(batch.targets)
    loss = cross_entropy(logits, targets, reduction="mean")
    return loss, (mx.argmax(logits, axis=-1) == targets).mean()


def optimizer_of(plan: Plan) -> optimizers.MultiOptimizer:
    """Return Muon for the matrices, AdamW for embeddings and norms."""
    muon = optimizers.Muon(_rates(_MUON_RATE, plan), momentum=0.95, weight_decay=0.0)
    adam = optimizers.AdamW(_rates(_ADAM_RATE, plan), betas=[0.9, 0.98], weight_decay=0.0)
    return optimizers.MultiOptimizer([muon, adam], [_is_matrix])


def _rates(most: float, plan: Plan) -> Callable[[mx.array], mx.array]:
    """Return the learning rate at each step: short warm-up, half constant, then down."""
    rate, half = most * plan.rate, plan.steps // 2
    warm_up = optimizers.linear_schedule(rate / _WARM_UP, rate, _WARM_UP)
    down = optimizers.linear_schedule(rate, 0.02 * rate, max(1, plan.steps - half))
    return optimizers.join_schedules(
        [warm_up, lambda _: mx.array(rate), down], [_WARM_UP, max(_WARM_UP, half)]
    )


def _is_matrix(name: str, parameter: mx.array) -> bool:
    return parameter.ndim == 2 and "embed" not in name


def train(
    model: llama.Model,
    next_batch: Callable[[float], Batch],
    plan: Plan,
    loss_function: Loss,
) -> None:
    """Train `model` in place, and print the loss curve.

    Args:
        model: The model; frozen parts stay as they are.
        next_batch: Makes the next batch from the share of the training that is done.
        plan: How to train.
        loss_function: Returns loss and accuracy for a batch.
    """
    optimizer = optimizer_of(plan)
    gradient_of = value_and_grad(model, loss_function)
    start = time.monotonic()
    recent: list[tuple[float, float]] = []
    for step in range(plan.steps):
        progress = step / plan.steps
        batches = [next_batch(progress) for _ in range(_PARTS)]
        learned = sum(len(batch.targets) for batch in batches)
        gradient: Any = None
        for batch in batches:
            share = len(batch.targets) / learned
            (loss, accuracy), part = gradient_of(model, batch)
            part = tree_map(lambda one, share=share: share * one, part)
            gradient = part if gradient is None else tree_map(operator.add, gradient, part)
            mx.eval(loss, accuracy, gradient)
            recent.append((float(loss), float(accuracy)))
        optimizer.update(model, gradient)
        mx.eval(model.parameters(), optimizer.state)
        if (step + 1) % _LOG_EVERY == 0:
            mean = np.mean(recent, axis=0)
            recent.clear()
            minutes = (time.monotonic() - start) / 60
            print(
                f"step {step + 1} {minutes:.1f} min loss {mean[0]:.4f} accuracy {mean[1]:.4f}",
                flush=True,
            )


def save_weights(model: llama.Model, folder: Path) -> None:
    """Write the weights in half precision."""
    weights = {name: value.astype(mx.bfloat16) for name, value in network.named_parameters(model)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def prepare(plan: Plan, out: Path, start_from: Path | None) -> tuple[Tokenizer, llama.Model]:
    """Return the tokenizer, and a new model or that of an earlier training.

    Args:
        plan: How to train; its seed decides what a new model starts from.
        out: Gets the shipped tokenizer, template and configuration.
        start_from: Folder of the earlier training, if there was one.
    """
    if out.resolve() != MODEL_DIR:
        ignored = shutil.ignore_patterns("*.safetensors", "__pycache__", "*.py")
        shutil.copytree(MODEL_DIR, out, ignore=ignored, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    model = network.build(config, plan.seed)
    if start_from is not None:
        model.load_weights(str(start_from / "model.safetensors"))
        model.set_dtype(mx.float32)
    return tokenizer, model
