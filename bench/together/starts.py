"""Time from the command of a server to its first answer: the service beside mlx_lm.server.

    python -m bench.together.starts [--model DIR] [--rounds 3]

One server runs at a time; they take turns. A *first* start has an empty directory for its data and
temporary files, where MLX keeps the kernels that it compiles for a CPU; a *later* one has what the
first has left.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.comparison.server import MLX_LM, SEMANTIC, Adapter, Server
from bench.demo_model.render import MODEL_DIR
from bench.together.__main__ import in_float32

_KINDS = ("first", "later")


def main() -> None:
    """Measure, and print each start, the medians and their ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.together.starts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="its directory")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        model = in_float32(options.model.absolute(), Path(folder) / "model")
        for number in range(options.rounds):
            for adapter in (SEMANTIC, MLX_LM)[:: -1 if number % 2 else 1]:
                data_dir = Path(folder) / f"{adapter.name}-{number}"
                for kind, took_s in zip(_KINDS, _starts(adapter, model, data_dir), strict=True):
                    found.setdefault((kind, adapter.name), []).append(took_s)
                    print(f"{kind:6} {adapter.name}: {took_s:.1f} s", flush=True)
    for kind in _KINDS:
        ours, theirs = (median(found[kind, one.name]) for one in (SEMANTIC, MLX_LM))
        print(f"{kind} start: {ours:.1f} s and {theirs:.1f} s, {ours / theirs:.2f} times")


def _starts(adapter: Adapter, model: Path, data_dir: Path) -> list[float]:
    """Return the seconds of a first and of a later start."""
    server = Server(adapter, python=Path(sys.executable), model=model, data_dir=data_dir)
    took_s = []
    for _ in _KINDS:
        began = time.monotonic()
        server.start()
        took_s.append(time.monotonic() - began)
        server.stop()
    return took_s


if __name__ == "__main__":
    main()
