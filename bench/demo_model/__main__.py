"""Trains the demo model in six stages: ``python -m bench.demo_model --out DIR``.

The first two stages train the whole model on conversations, the others its upper layers on answers
after long prompts. Each starts from the weights of the one before. ``--stages`` runs some of them,
and ``--share`` a part of the steps and the prefixes of each, to try a change.
"""

import argparse
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models import llama
from tokenizers import Tokenizer

from bench.demo_model import distant, network
from bench.demo_model.batches import Batch, BatchStream
from bench.demo_model.training import (
    Plan,
    loss_and_accuracy,
    prepare,
    save_weights,
    train,
)
from worker.engine.mlx.cpu import use_openblas

_LONG: Final[dict[str, Any]] = {"rows": 3, "length": 256}
STAGES: Final = (
    Plan(seed=0, steps=460),
    Plan(seed=1, steps=700, rate=0.7),
    Plan(seed=2, steps=320, openings=100, rate=0.5, **_LONG),
    Plan(seed=6, steps=180, openings=80, rate=0.5, **_LONG),
    Plan(seed=7, steps=340, openings=60, rate=0.5, **_LONG),
    Plan(seed=8, steps=40, openings=12, rate=0.2, **_LONG),
)


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = range(1, len(STAGES) + 1)
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--start-from", type=Path, help="folder of a model to train further")
    parser.add_argument(
        "--stages", type=int, nargs="+", choices=numbers, default=[*numbers], help="default: all"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of each stage")
    given = parser.parse_args()
    mx.set_default_device(mx.cpu)
    use_openblas()
    start_from: Path | None = given.start_from
    for number in given.stages:
        whole = STAGES[number - 1]
        plan = replace(
            whole,
            steps=math.ceil(whole.steps * given.share),
            openings=math.ceil(whole.openings * given.share),
        )
        print(f"stage {number}: {plan}", flush=True)
        run(plan, given.out, start_from)
        start_from = given.out


def run(plan: Plan, out: Path, start_from: Path | None) -> None:
    """Train one stage, and write what serving needs into ``out``."""
    tokenizer, model = prepare(plan, out, start_from)
    stage = _lengthen if plan.openings else _chat
    stage(plan, tokenizer, model)
    save_weights(model, out)


def _chat(plan: Plan, tokenizer: Tokenizer, model: llama.Model) -> None:
    size = sum(value.size for _, value in network.named_parameters(model))
    print(f"{size:,} parameters", flush=True)
    stream = BatchStream(tokenizer, plan.seed)
    train(model, partial(_batch, stream, plan), plan, loss_and_accuracy)


def _batch(stream: BatchStream, plan: Plan, progress: float) -> Batch:
    """Return the next batch of the kind that is due at this point of the stage."""
    if progress < plan.long_from:
        return stream.conversations(plan.rows, plan.length)
    return stream.long_prompts(max(1, plan.rows // 4), plan.length * 4)


def _lengthen(plan: Plan, tokenizer: Tokenizer, model: llama.Model) -> None:
    """Train the layers from the full one upwards."""
    near = BatchStream(tokenizer, plan.seed, reminders=0.3)
    stream = distant.DistantStream(model, near, plan)
    distant.freeze_below_full_layer(model)
    train(model, stream.next, plan, distant.loss_and_accuracy)


if __name__ == "__main__":
    main()
