"""What does another budget for contexts cost?  ``python -m bench.experiments.budgets``.

Three ways to change the budget of a worker with 4 contexts of 128 tokens on a model of 50 million
parameters: free contexts in place; drop all contexts and open another runner on the same weights;
end the process and start another, cold or with its imports done. Times until a prompt can start,
and the contexts that are in memory then; the others are on the disk.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.experiments import filled_runner
from bench.experiments.report import log_to_stderr, print_conditions, print_table, print_verdict
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.runner import BatchRunner

STORE_BYTES = 1 << 33
SCAN_S_MAX = 60.0


def main() -> None:
    """Print the table, or load in a child process of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=Path, help="load this model and print how long it took")
    given = parser.parse_args()
    log_to_stderr()
    if given.child is not None:
        took_s = _took_s(lambda: filled_runner.new_runner(filled_runner.load(given.child)))
        print(took_s)
        return
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        rows = _rows(Path(directory))
    print_table(("way", ">ms", ">MB of contexts in memory"), rows)
    in_place, restart = float(rows[1][1]), float(rows[-1][1])
    print_verdict(
        reached=in_place < restart,
        why=f"in place {in_place:.1f} ms, a restart with a standby {restart:.0f} ms (no goal: a"
        " restart also gives memory back and changes every other value).",
    )
    print_conditions(started_s)


def _rows(directory: Path) -> list[tuple[str, str, str]]:
    model = filled_runner.make_model(directory / "model")
    clock = SystemClock()
    store = BlockStore(directory / "kv", budget_bytes=STORE_BYTES, clock=clock, disk=Disk())
    tier = DiskTier(store, clock=clock)
    tier.start()
    assert tier.wait_scanned(SCAN_S_MAX)
    weights = filled_runner.load(model)
    runner = filled_runner.new_runner(weights, tier=tier)
    filled_runner.fill(runner)
    rows: list[tuple[str, str, str]] = []

    def add(way: str, seconds: float, held_bytes: int) -> None:
        rows.append((way, f"{seconds * 1000:.1f}", f"{held_bytes / 1e6:.1f}"))

    add("before", 0.0, _held(runner))

    saved_s = _took_s(lambda: runner.save_all(SCAN_S_MAX))
    reuse = runner.prefix_cache
    assert reuse is not None
    contexts = reuse.store
    contexts.withheld_bytes = contexts.context_limit_bytes - contexts.used_bytes // 2
    shed_s = _took_s(contexts.fit)
    add("free half of the contexts in place", shed_s, _held(runner))

    def reopen() -> BatchRunner:
        runner.save_all(SCAN_S_MAX)
        reuse.close()
        half = filled_runner.KV_BUDGET_BYTES // 2
        return filled_runner.new_runner(weights, budget_bytes=half, tier=tier)

    began_s = time.perf_counter()
    second = reopen()
    add("another runner on the same weights", time.perf_counter() - began_s, _held(second))
    assert tier.close(SCAN_S_MAX)
    command = [sys.executable, "-m", "bench.experiments.budgets", "--child", str(model)]
    began_s = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    cold_s = time.perf_counter() - began_s
    add("a restart, cold", cold_s, 0)
    add("a restart, imports done", float(done.stdout.split()[-1]), 0)
    print(f"Saving the 4 contexts took {saved_s:.3f} s.\n")
    return rows


def _held(runner: BatchRunner) -> int:
    memory = runner.memory()
    return 0 if memory is None else memory.used_bytes


def _took_s(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
