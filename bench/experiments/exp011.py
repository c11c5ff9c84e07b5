"""EXP-011: what gives the memory of a model back?  ``python -m bench.experiments.exp011``.

A process loads a model of 50 million parameters and fills 4 contexts of 128 tokens. Then it
drops its references, collects garbage, and clears MLX's cache of buffers. The other way is the
worker's: the process ends, and another one takes its place without weights, started anew or kept as
a standby. Resident memory of each stage, with the allocator of the system and with the variables
that ``semantic serve`` sets for the worker.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.report.section import print_conditions, print_table, print_verdict
from domain.model.registry import ModelEntry
from ops.supervisor.parts import LARGE_ARRAYS, allocator_environment

if TYPE_CHECKING:  # MLX is what is measured
    from worker.engine.mlx.runner import BatchRunner

CONTEXTS, CONTEXT_TOKENS = 4, 128
KV_BUDGET_BYTES = 1 << 30
STAGES = ("imports", "loaded", "4 contexts", "del", "gc.collect()", "mx.clear_cache()")
UNLOADED = ("a new process without a model", "a standby without a model")
#: A process that has given a model back holds at most this more than one that never had it, in MB.
REST_MB_MAX = 50.0


def main() -> None:
    """Print the table, or measure in a child process of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=("model", "worker", "standby"))
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(_measure(given.child, given.model)))
        return
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        from tests.support.models.tiny_models import make_tiny_llama  # noqa: PLC0415 - imports MLX

        # The widths of SmolLM2-135M, and 6 layers.
        model = make_tiny_llama(
            Path(directory) / "model", hidden=576, layers=6, vocabulary=49_152, context=8192
        )
        columns = [_column(model, {}), _column(model, allocator_environment(LARGE_ARRAYS, {}))]
    names = (*STAGES, *UNLOADED)
    rows = [(name, *(f"{column[name]:.0f}" for column in columns)) for name in names]
    print_table(("stage", ">RSS MB, system", ">RSS MB, worker's variables"), rows)
    kept = [column[STAGES[-1]] - column["imports"] for column in columns]
    print_verdict(
        reached=max(kept) <= REST_MB_MAX,
        why=f"a process that drops its model keeps {kept[0]:.0f} MB (system) and {kept[1]:.0f} MB"
        f" (worker's variables) more than before its load (goal: at most {REST_MB_MAX:.0f} MB).",
    )
    print_conditions(started_s)


def _column(model: Path, variables: dict[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    command = (sys.executable, "-m", "bench.experiments.exp011")
    for child in ("model", "worker", "standby"):
        done = subprocess.run(
            [*command, "--child", child, "--model", str(model)],
            check=True,
            stdout=subprocess.PIPE,
            env=os.environ | variables,
        )
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(child: str, model: Path) -> dict[str, float]:
    if child == "model":
        return _stages(model)
    if child == "worker":
        import worker.process  # noqa: F401, PLC0415 - what is measured
    else:
        from worker.main import preload  # noqa: PLC0415 - what is measured

        preload()
    return {UNLOADED[child == "standby"]: _rss_mb()}


def _stages(model: Path) -> dict[str, float]:
    import mlx.core as mx  # noqa: PLC0415 - what is measured

    from bench.report.section import log_to_stderr  # noqa: PLC0415 - what is measured
    from worker.engine.mlx.model.loader import load_weights  # noqa: PLC0415 - what is measured
    from worker.engine.mlx.runner import BatchRunner  # noqa: PLC0415 - what is measured

    log_to_stderr()
    sizes = [_rss_mb()]
    runner = BatchRunner(
        load_weights=lambda: load_weights(ModelEntry(name=str(model), source=str(model))),
        prefill_step_tokens=None,
        kv_budget_bytes=KV_BUDGET_BYTES,
    )
    runner.load()
    sizes.append(_rss_mb())
    _fill(runner)
    sizes.append(_rss_mb())
    del runner
    sizes.append(_rss_mb())
    gc.collect()
    sizes.append(_rss_mb())
    mx.clear_cache()
    sizes.append(_rss_mb())
    return dict(zip(STAGES, sizes, strict=True))


def _fill(runner: BatchRunner) -> None:
    """Compute contexts, which stay in memory."""
    from domain.values import Sampling  # noqa: PLC0415 - what is measured
    from tests.support.models.kv_sequences import random_tokens  # noqa: PLC0415 - what is measured
    from worker.engine.ports import Admission  # noqa: PLC0415 - what is measured

    for seed in range(CONTEXTS):
        admission = Admission(
            tokens=tuple(random_tokens(CONTEXT_TOKENS, seed)),
            first_index=0,
            max_new_tokens=2,
            sampling=Sampling(temperature=0),
        )
        admitted = runner.insert(admission)
        assert admitted is not None, "the budget holds the contexts"
        while not any(finish for _, _, finish in runner.step().tokens):
            pass


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


if __name__ == "__main__":
    main()
