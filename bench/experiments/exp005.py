"""EXP-005: how many tokens per second do several agents get?

``python -m bench.experiments.exp005 [--model DIR]``: the service and mlx-lm's bare generator take
turns at the same requests, on one BLAS, in float32. The plan asks for 80 % of the possible at 1, 3,
5, 7 and 10 agents, and for twice one agent's rate at three.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.demo_model.render import MODEL_DIR
from bench.experiments.report import log_to_stderr, print_conditions, print_table, print_verdict
from bench.figures import figures_of
from bench.together.__main__ import in_float32, start_contenders
from bench.together.cells import AGENTS, AGENTS_MIN, US
from bench.together.contenders import RAW, Contender
from bench.together.workloads import make_bodies

STREAMS: Final = (1, 3, 5, 7, 10)
SHARE_MIN: Final = 0.8
TOKENS: Final = 96


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    log_to_stderr()
    # SIGTERM to the experiment also stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started_s = time.monotonic()
    rates: dict[tuple[int, str], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = in_float32(given.model.absolute(), folder / "model")
        contenders = list(start_contenders(stack, model, folder, names=(US, RAW)))
        for number in range(given.rounds):
            for streams in STREAMS:
                bodies = make_bodies(
                    "prose", model=str(model), streams=streams, tokens=TOKENS, name=str(number)
                )
                for contender in contenders[:: 1 if number % 2 else -1]:
                    rate = _rate(contender, bodies)
                    rates.setdefault((streams, contender.name), []).append(rate)
    shares = {
        streams: statistics.median(
            one / raw for one, raw in zip(rates[streams, US], rates[streams, RAW], strict=True)
        )
        for streams in STREAMS
    }
    middle = {key: statistics.median(found) for key, found in rates.items()}
    gains = {streams: middle[streams, US] / middle[1, US] for streams in STREAMS}
    print_table(
        (">agents", ">service tok/s", ">raw tok/s", ">of raw", ">over one agent"),
        [
            (
                streams,
                f"{middle[streams, US]:.1f}",
                f"{middle[streams, RAW]:.1f}",
                f"{shares[streams]:.0%}",
                f"{gains[streams]:.2f}",
            )
            for streams in STREAMS
        ],
    )
    print_verdict(
        reached=min(shares.values()) >= SHARE_MIN and gains[AGENTS] >= AGENTS_MIN,
        why=f"{min(shares.values()):.0%} of the bare generator at worst (goal: {SHARE_MIN:.0%});"
        f" {AGENTS} agents get {gains[AGENTS]:.2f} times one (goal: {AGENTS_MIN:.0f}).",
    )
    print_conditions(started_s)


def _rate(contender: Contender, bodies: list[dict[str, object]]) -> float:
    """Return tokens a second of whole requests that are sent at once."""
    found = figures_of(*contender.run(bodies))
    return found.tokens / found.total_s


if __name__ == "__main__":
    main()
