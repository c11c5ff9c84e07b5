"""EXP-latency: does a longer batch window give more tokens per second?

``python -m bench.experiments.exp_latency [--model DIR]``: a service for each window; 1, 4 and 8
requests arrive at once, at one service after the other.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.client import Figures, figures_of
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
    found: dict[tuple[int, int], list[Figures]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = in_float32(given.model.absolute(), folder / "model")
        servers = {ms: stack.enter_context(_server(ms, model, folder)) for ms in given.windows}
        for number in range(given.rounds):
            for streams in STREAMS:
                bodies = make_bodies(
                    "prose", model=str(model), streams=streams, tokens=TOKENS, name=str(number)
                )
                for window, server in servers.items():
                    answered = figures_of(*server.run(bodies))
                    found.setdefault((window, streams), []).append(answered)
    rates = {key: median(one.tokens / one.total_s for one in of) for key, of in found.items()}
    firsts = {key: median(one.first_p50_s for one in of) for key, of in found.items()}
    titles = [f">{one}: {what}" for one in STREAMS for what in ("first text p50 s", "tok/s")]
    rows = (
        (ms, *(f"{of[ms, one]:.{n}f}" for one in STREAMS for of, n in ((firsts, 2), (rates, 1))))
        for ms in given.windows
    )
    print_table([">window, ms", *titles], rows)
    most = {ms: rates[ms, STREAMS[-1]] for ms in given.windows}
    best, shortest = max(most, key=lambda ms: most[ms]), min(most)
    gain = most[best] / most[shortest]
    print_verdict(
        reached=gain >= GAIN_MIN and best != shortest,
        why=f"at {STREAMS[-1]} requests a window of {best} ms has {gain:.2f} times the tokens per"
        f" second of {shortest} ms (goal of a longer window: {GAIN_MIN}).",
    )
    print_conditions(started_s)


def _server(window_ms: int, model: Path, folder: Path) -> Server:
    variables = {**SEMANTIC.variables, "SEMANTIC_ENGINE__BATCH_WINDOW_MS": str(window_ms)}
    adapter = replace(SEMANTIC, variables=variables)
    python, data_dir = Path(sys.executable), folder / str(window_ms)
    return Server(adapter, python=python, model=model, data_dir=data_dir)


if __name__ == "__main__":
    main()
