"""EXP-008: how long do saving and loading contexts take?

``python -m bench.experiments.exp008 [--model DIR]``: contexts of 2 to 16 thousand tokens, as far as
the model reads, are computed, written by the write-behind and read by another runner. *raw* writes
as many bytes into one file and syncs it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import mlx.core as mx

from bench.report.section import log_to_stderr, print_conditions, print_table, print_verdict
from bench.runners import DiskRunner, stored_bytes
from tests.support.models.kv_sequences import random_tokens
from worker.engine.mlx.model.loader import LoadedWeights, ModelSource, load_weights

TOKENS: Final = (2048, 4096, 8000, 16_000)
RAW_SHARE_MIN: Final = 0.8
_ANSWER: Final = 2


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="semantic-demo", help="directory or hub id")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    given = parser.parse_args()
    log_to_stderr()
    started_s = time.monotonic()
    weights = load_weights(ModelSource(id=given.model))
    shares: list[float] = []
    titles = (">tokens", ">MB", ">computed ms", ">save ms", ">of raw", ">load ms", ">MB/s")
    fitting = [one for one in given.tokens if one < weights.model.card.context_length]
    with tempfile.TemporaryDirectory() as folder:
        print_table(titles, _rows(weights, fitting, Path(folder), shares))
    print_verdict(
        reached=min(shares) >= RAW_SHARE_MIN,
        why=f"saving has {min(shares):.0%} to {max(shares):.0%} of the raw disk's speed"
        f" (our goal: {RAW_SHARE_MIN:.0%}). The plan asks for a threshold of asynchronous writes:"
        " none is needed, since all are.",
    )
    print_conditions(started_s)
    mx.clear_streams()


def _rows(
    weights: LoadedWeights, all_tokens: list[int], folder: Path, shares: list[float]
) -> Iterator[tuple[object, ...]]:
    for tokens in all_tokens:
        prompt, place = random_tokens(tokens, tokens), folder / str(tokens)
        with closing(DiskRunner(weights, place)) as first:
            _, cold_s = first.answer(prompt, _ANSWER)
            save_s = first.save()
        size = stored_bytes(place)
        raw_s = _raw_s(folder / "raw", size)
        with closing(DiskRunner(weights, place)) as second:
            _, load_s = second.answer(prompt, _ANSWER)
            assert second.restored >= tokens - 1, f"only {second.restored} tokens came back"
        shares.append(raw_s / save_s)
        yield (
            f"{tokens:,}",
            f"{size / 1e6:,.0f}",
            f"{1000 * cold_s:,.0f}",
            f"{1000 * save_s:,.0f}",
            f"{raw_s / save_s:.0%}",
            f"{1000 * load_s:,.0f}",
            f"{size / 1e6 / load_s:,.0f}",
        )


def _raw_s(file: Path, size: int) -> float:
    """Return the seconds to write and sync a file of so many bytes."""
    content = os.urandom(1 << 20)
    begin = time.perf_counter()
    with file.open("wb") as out:
        for _ in range(max(1, size >> 20)):
            out.write(content)
        out.flush()
        os.fsync(out.fileno())
    took_s = time.perf_counter() - begin
    file.unlink()
    return took_s


if __name__ == "__main__":
    main()
