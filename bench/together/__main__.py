"""Compare the service with mlx_lm.server and mlx-lm's bare generator on one model.

    python -m bench.together [--model DIR] [--quick] [--rounds 3] [--streams 1 2 4] [--json OUT]

All contenders run all the time and take turns at the same requests, in another order in each round,
so that other load hits all of them alike. All multiply with the same OpenBLAS and as many threads.
A model in half precision or with quantized weights is copied in float32 first, for all of them.
Prompts differ between streams and rounds; a *known* prompt was answered just before. ``--json`` is
written after each round. ``--quick`` takes some five minutes on two cores, a whole run hours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm.utils

from bench.blas import blas_threads
from bench.client import StreamTrace, figures_of
from bench.comparison.server import MLX_LM, ROOT, SEMANTIC, Server
from bench.demo_model.render import MODEL_DIR
from bench.report.section import busy_percent, conditions
from bench.together.cells import RIVAL, US, Cell, Key, section_of
from bench.together.contenders import Contender, RawBatch
from bench.together.workloads import KINDS, copied_share, make_bodies, prompt_of

_WHOLE: Final[Mapping[str, Any]] = {
    "streams": (1, 2, 3, 4, 8, 16),
    "tokens": (48, 200),
    "kinds": KINDS,
    "rounds": 3,
}
_QUICK: Final[Mapping[str, Any]] = {
    "streams": (1, 4),
    "tokens": (48,),
    "kinds": ("prose", "edits"),
    "rounds": 2,
}


def main() -> None:
    """Measure, print the table, and write the figures where ``--json`` asks for them."""
    options = _options()
    # SIGTERM to the harness also stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.blas_threads)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="together-")))
        model = in_float32(options.model.absolute(), folder / "model")
        contenders = list(start_contenders(stack, model, folder))
        cells = {key: Cell(key) for key in _keys(options)}
        found = _conditions(options, contenders)
        for number in range(options.rounds):
            _round(contenders, cells, str(model), number, began)
            found |= {"rounds": number + 1, "took_s": time.monotonic() - began}
            section_of([*cells.values()], found).write(options.json)
    section_of([*cells.values()], found).emit(options.json)


def in_float32(source: Path, target: Path) -> Path:
    """Return the model if its weights are in float32, else the directory of a copy that is."""
    network, _, config = mlx_lm.utils.load(str(source), lazy=True, return_config=True)
    quantized = "quantization" in config
    if not quantized and all(mx.float32 == dtype for dtype in _dtypes(network)):
        return source
    print("making a copy of the model in float32", flush=True)
    if quantized:
        network = mlx_lm.utils.dequantize_model(network)
    network.set_dtype(mx.float32)
    left_out = ("quantization", "quantization_config")
    own = {key: value for key, value in config.items() if key not in left_out}
    mlx_lm.utils.save_model(target, network)
    mlx_lm.utils.save_config(own | {"torch_dtype": "float32"}, target / "config.json")
    for file in source.iterdir():
        if file.suffix in {".json", ".jinja", ".model"} and not (target / file.name).exists():
            (target / file.name).write_bytes(file.read_bytes())
    return target


def _dtypes(network: Any) -> Iterator[Any]:
    arrays: Any = mlx_lm.utils.tree_flatten(network.parameters())
    yield from (array.dtype for _, array in arrays)


def start_contenders(stack: ExitStack, model: Path, folder: Path) -> Iterator[Contender]:
    """Start all contenders, with their data in a folder, and end them with the stack."""
    for adapter in (SEMANTIC, MLX_LM):
        began = time.monotonic()
        data_dir, python = folder / adapter.name, Path(sys.executable)
        server = Server(adapter, python=python, model=model, data_dir=data_dir)
        yield stack.enter_context(server)
        took_s = time.monotonic() - began
        print(f"{adapter.name}: ready after {took_s:.1f} s", file=sys.stderr, flush=True)
    yield stack.enter_context(RawBatch(model))


def _keys(options: argparse.Namespace) -> Iterator[Key]:
    cells = product(options.kinds, options.tokens, (False, True), options.streams)
    for kind, tokens, is_known, streams in cells:
        yield Key(kind=kind, tokens=tokens, is_known=is_known, streams=streams)


def _round(
    contenders: Sequence[Contender],
    cells: Mapping[Key, Cell],
    model: str,
    number: int,
    began: float,
) -> None:
    """Fill each cell once; new requests come just before the known ones, which are the same."""
    by = number % len(contenders)
    turn = [*contenders[by:], *contenders[:by]]
    new = [key for key in cells if not key.is_known]
    for place, key in enumerate(new, start=1):
        name = f"round {number}"
        bodies = make_bodies(
            key.kind, model=model, streams=key.streams, tokens=key.tokens, name=name
        )
        for is_known in (False, True):
            found = Key(kind=key.kind, tokens=key.tokens, is_known=is_known, streams=key.streams)
            able = [one for one in turn if one.keeps_prompts or not is_known]
            fill(cells[found], able, bodies)
            ratio = (cells[found].faster() or [0.0])[-1]
            print(
                f"[{time.monotonic() - began:.0f} s, round {number + 1}, {place} of {len(new)}]"
                f" {found.title}, {key.streams} streams: {ratio:.2f}",
                flush=True,
            )


def fill(cell: Cell, contenders: Sequence[Contender], bodies: list[dict[str, Any]]) -> None:
    """Let each contender answer, and add its figures to the cell."""
    answers: dict[str, list[StreamTrace]] = {}
    for contender in contenders:
        traces, cpu_s = contender.run(bodies)
        answers[contender.name] = traces
        cell.rounds.setdefault(contender.name, []).append(figures_of(traces, cpu_s))
    ours, theirs = answers.get(US, []), answers.get(RIVAL, [])
    cell.asked += len(ours)
    cell.equal += sum(one.text == other.text for one, other in zip(ours, theirs, strict=False))
    shares = [
        copied_share(prompt_of(body), trace.text) for body, trace in zip(bodies, ours, strict=False)
    ]
    if shares:
        cell.copied.append(sum(shares) / len(shares))


def _conditions(options: argparse.Namespace, contenders: Sequence[Contender]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.blas"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    served = json.loads(done.stdout.splitlines()[-1])
    blas = {one.name: one.blas if isinstance(one, RawBatch) else served for one in contenders}
    return {**conditions(busy_percent()), "model": options.model.name, "blas": blas}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.together", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="its directory")
    parser.add_argument("--quick", action="store_true", help="few cells: some five minutes")
    parser.add_argument("--streams", type=int, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", help="of an answer")
    parser.add_argument("--kinds", nargs="+", choices=KINDS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--blas-threads", type=int, default=blas_threads(), help="of OpenBLAS")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every figure here")
    options = parser.parse_args()
    for name, size in (_QUICK if options.quick else _WHOLE).items():
        if getattr(options, name) is None:
            setattr(options, name, size)
    return options


if __name__ == "__main__":
    main()
