"""Speed on a Linux CPU: mlx-cpu as it is installed beside OpenBLAS and float32.

``python -m bench.blas [MODEL]`` loads a model twice in one process and takes turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm.utils
from mlx_lm.models.cache import make_prompt_cache

import worker.demo_model
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.mlx.model.cpu import BlasSlot, in_single_precision, use_openblas

_ROUNDS: Final = 5
_PROMPT_TOKENS: Final = 512
_ANSWER_TOKENS: Final = 32


def main() -> int:
    """Print prompt and answer tokens a second of both, and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "model", nargs="?", default=str(Path(worker.demo_model.__file__).parent), help="directory"
    )
    directory = Path(parser.parse_args().model)
    plain, _ = mlx_lm.utils.load_model(directory)
    single, _ = mlx_lm.utils.load_model(directory)
    in_single_precision(single, ProcessDevice().memory().usable_bytes)
    _speeds(plain)  # the linker binds the function at its first call
    _speeds(single)
    slot = BlasSlot()
    found: list[tuple[float, ...]] = []
    for number in range(_ROUNDS):
        slot.point_to(slot.reference)
        before = _speeds(plain)
        if not use_openblas():
            return 1
        after = _speeds(single)
        found.append((*before, *after, after[0] / before[0], after[1] / before[1]))
        print(f"round {number + 1} of {_ROUNDS}:", *(f"{figure:.1f}" for figure in found[-1]))
    middle = [statistics.median(column) for column in zip(*found, strict=True)]
    print(f"prompt {middle[0]:.0f} -> {middle[2]:.0f} tok/s ({middle[4]:.1f} x)")
    print(f"answer {middle[1]:.1f} -> {middle[3]:.1f} tok/s ({middle[5]:.1f} x)")
    return 0


def _speeds(network: Any) -> tuple[float, float]:
    """Return prompt and answer tokens a second of one greedy answer."""
    cache = make_prompt_cache(network)
    started = time.perf_counter()
    logits = network(mx.arange(_PROMPT_TOKENS)[None], cache=cache)
    token = mx.argmax(logits[:, -1], axis=-1)
    mx.eval(token)
    read = time.perf_counter()
    for _ in range(_ANSWER_TOKENS):
        token = mx.argmax(network(token[None], cache=cache)[:, -1], axis=-1)
        mx.eval(token)
    ended = time.perf_counter()
    return _PROMPT_TOKENS / (read - started), _ANSWER_TOKENS / (ended - read)


if __name__ == "__main__":
    raise SystemExit(main())
