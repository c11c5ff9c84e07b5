"""EXP-latency: does a longer batch window give more tokens per second?

``python -m bench.experiments.exp_latency [--model DIR]``: 1, 4 and 8 requests arrive at once in a
service with each window, started anew.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.client import figures_of
from bench.comparison.server import SEMANTIC, Server
from bench.demo_model.render import MODEL_DIR
from bench.report.section import log_to_stderr, print_conditions, print_table, print_verdict
from bench.together.__main__ import in_float32
from bench.together.workloads import make_bodies

WINDOWS_MS: Final = (0, 2, 10, 50, 100)
STREAMS: Final = (1, 4, 8)
TOKENS: Final = 48
#: A longer window has to give this much more tokens per second to be worth its wait.
GAIN_MIN: Final = 1.05


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS_MS), help="in ms")
    given = parser.parse_args()
    log_to_stderr()
    # SIGTERM to the experiment also stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started_s = time.monotonic()
    rates: dict[int, float] = {}
    titles = [">window, ms"]
    titles += [f">{one}: {what}" for one in STREAMS for what in ("first text p50 s", "tok/s")]
    with tempfile.TemporaryDirectory() as folder:
        model = in_float32(given.model.absolute(), Path(folder) / "model")
        windows = [*given.windows]
        print_table(titles, _rows(windows, model, Path(folder), given.rounds, rates))
    best = max(rates, key=lambda one: rates[one])
    shortest = min(rates)
    gain = rates[best] / rates[shortest]
    print_verdict(
        reached=gain >= GAIN_MIN and best != shortest,
        why=f"at {STREAMS[-1]} requests a window of {best} ms has {gain:.2f} times the tokens per"
        f" second of {shortest} ms (goal of a longer window: {GAIN_MIN}).",
    )
    print_conditions(started_s)


def _rows(
    windows: list[int], model: Path, folder: Path, rounds: int, rates: dict[int, float]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for each window; ``rates`` gets its tokens per second at the most requests."""
    for window in windows:
        variables = {**SEMANTIC.variables, "SEMANTIC_ENGINE__BATCH_WINDOW_MS": str(window)}
        adapter = replace(SEMANTIC, variables=variables)
        python, cells = Path(sys.executable), list[str]()
        with Server(adapter, python=python, model=model, data_dir=folder / str(window)) as served:
            for streams in STREAMS:
                found = [
                    figures_of(
                        *served.run(
                            make_bodies(
                                "prose",
                                model=str(model),
                                streams=streams,
                                tokens=TOKENS,
                                name=str(number),
                            )
                        )
                    )
                    for number in range(rounds)
                ]
                rates[window] = statistics.median(one.tokens / one.total_s for one in found)
                first_s = statistics.median(one.first_p50_s for one in found)
                cells += [f"{first_s:.2f}", f"{rates[window]:.1f}"]
        yield window, *cells


if __name__ == "__main__":
    main()
