"""Ten minutes on a Mac: what no other machine can show.  ``python -m bench.on_a_mac``.

    python -m bench.on_a_mac [--model DIR] [--short] [--only PART ...]

Prints one block of Markdown for an issue; ``docs/benchmarks/on-a-mac.md`` states which figure
decides what. It runs on every machine: there the figures are those of its processor. ``--short``
uses tiny sizes. Nothing is written outside a temporary directory.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import psutil

from bench.blas import measured_blas
from bench.report.section import log_to_stderr, print_conditions, table_lines
from bench.runners import (
    DiskRunner,
    end_runner,
    first_token_s,
    insert,
    make_runner,
    stored_bytes,
)
from domain.kv.spec import PACKED_BITS
from domain.model.registry import ModelEntry
from tests.support.models.kv_sequences import random_tokens
from worker.engine.mlx.model.loader import LoadedWeights, load_weights
from worker.engine.mlx.runner import BatchRunner

_MB: Final = 1e6
#: A prompt that no piece cuts, of rows that only decode.
_SHORT_PROMPT: Final = 8
_WARM_STEPS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        buffer_slots: Tokens of the buffer that is written and read.
        writes: Writes of one token at each depth.
        rows: Numbers of rows that decode together.
        steps: Decode steps at each number of rows.
        prompt_tokens: Length of the prompt that is read in pieces and restored.
        pieces: Lengths of those pieces.
    """

    buffer_slots: int = 65_536
    writes: int = 50
    rows: tuple[int, ...] = (1, 8, 16)
    steps: int = 64
    prompt_tokens: int = 4096
    pieces: tuple[int, ...] = (128, 256, 512, 1024, 2048)


SHORT: Final = Sizes(
    buffer_slots=2048, writes=8, rows=(1, 2), steps=6, prompt_tokens=300, pieces=(64, 128)
)
_HEADS, _HEAD_DIM = 8, 128
Row = tuple[object, ...]


def buffer_copies(sizes: Sizes) -> Iterator[Row]:
    """Does a write copy the buffer while its last reader is in flight?

    Depth 0 waits for each reader before the next write, depth 1 does not, as the engine does.
    """
    for depth in (0, 1):
        took_ms, grown_mb, buffer_mb = _write_and_read(sizes, depth)
        yield f"write of a token, depth {depth}", f"{took_ms:.2f} ms a write", "-"
        yield (
            f"peak over the buffer of {buffer_mb:.0f} MB, depth {depth}",
            f"{grown_mb:.1f} MB",
            "-",
        )


def _write_and_read(sizes: Sizes, depth: int) -> tuple[float, float, float]:
    """Return milliseconds a write, megabytes of the peak over the buffer, and those of it."""
    buffer = mx.zeros((1, _HEADS, sizes.buffer_slots, _HEAD_DIM), dtype=mx.float16)
    query = mx.ones((1, _HEADS, 1, _HEAD_DIM), dtype=mx.float16)
    token = mx.ones((1, _HEADS, 1, _HEAD_DIM), dtype=mx.float16)
    mx.eval(buffer, query, token)
    mx.synchronize()
    mx.clear_cache()
    size, before = buffer.nbytes, mx.get_active_memory()
    mx.reset_peak_memory()
    begin = time.perf_counter()
    for at in range(sizes.writes):
        buffer[..., at : at + 1, :] = token
        # Each reader depends on the one before, as the tokens of an answer do.
        read = mx.fast.scaled_dot_product_attention(query, buffer, buffer, scale=0.1)
        query = query + 0 * read
        _start(query)
        if depth == 0:
            mx.eval(query)
    mx.eval(query, buffer)
    took_ms = 1000 * (time.perf_counter() - begin) / sizes.writes
    return took_ms, (mx.get_peak_memory() - before) / _MB, size / _MB


def _start(*arrays: mx.array) -> None:
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]  # mlx has no types for it


def steps(weights: LoadedWeights, sizes: Sizes) -> Iterator[Row]:
    """What does a decode step cost on the host, and how many operations does it launch?"""
    for count in sizes.rows:
        runner = make_runner(weights)
        try:
            took_ms, host_ms, encode_ms, primitives = _steps_of(runner, count, sizes.steps)
        finally:
            end_runner(runner)
        yield f"step at {count} rows", f"{took_ms:.2f} ms", f"{1000 * count / took_ms:.0f} tok/s"
        build_ms = max(0.0, host_ms - encode_ms)
        spent = f"{host_ms / took_ms:.0%} of the step"
        yield f"host at {count} rows", f"{host_ms:.2f} ms", spent
        yield f"of it build, encode at {count} rows", f"{build_ms:.2f}, {encode_ms:.2f} ms", "-"
        each = f"{1000 * host_ms / max(1, primitives):.1f} µs of host each"
        yield f"operations launched at {count} rows", f"{primitives:,}", each


def _steps_of(runner: BatchRunner, count: int, steps_asked: int) -> tuple[float, float, float, int]:
    """Return medians of a step, of the thread's CPU and of ``async_eval`` in ms, and operations."""
    runner.speculates = False
    runner.reset()
    for seed in range(count):
        insert(
            runner,
            random_tokens(_SHORT_PROMPT, seed),
            tokens=steps_asked + 4 * (count + _WARM_STEPS),
        )
    decoding = 0
    while decoding < count:
        decoding = max(len(runner.step().tokens), decoding)
    for _ in range(_WARM_STEPS):
        runner.step()
    walls, hosts, encodes = [], [], []
    with _watched() as watch:
        for _ in range(steps_asked):
            watch.encode_s = 0.0
            wall, host = time.perf_counter(), time.thread_time()
            runner.step()
            walls.append(1000 * (time.perf_counter() - wall))
            hosts.append(1000 * (time.thread_time() - host))
            encodes.append(1000 * watch.encode_s)
        watch.counts = True
        runner.step()
    middle = statistics.median
    return middle(walls), middle(hosts), middle(encodes), watch.primitives


class _Watch:
    """Stands in for ``mx.async_eval``: its CPU time, and the operations of what it starts."""

    def __init__(self, start: Callable[..., None]) -> None:
        self._start = start
        self.encode_s = 0.0
        self.counts = False
        self.primitives = 0

    def __call__(self, *arrays: Any) -> None:
        if self.counts:
            self.primitives += _operations(arrays)
        begin = time.thread_time()
        self._start(*arrays)
        self.encode_s += time.thread_time() - begin


@contextmanager
def _watched() -> Iterator[_Watch]:
    found = mx.async_eval
    watch = _Watch(found)
    mx.async_eval = watch
    try:
        yield watch
    finally:
        mx.async_eval = found


def _operations(arrays: Sequence[Any]) -> int:
    """Return the operations of a graph that is not computed yet."""
    flat = [each for one in arrays for each in (one if isinstance(one, list | tuple) else [one])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.dot"
        mx.export_to_dot(str(file), *flat)
        return sum("shape=rectangle" in line for line in file.read_text().splitlines())


def prefill(weights: LoadedWeights, sizes: Sizes) -> Iterator[Row]:
    """How fast is a prompt read, by the length of its pieces?"""
    for piece in sizes.pieces:
        runner = make_runner(weights, piece_tokens=piece, reuse=False)
        try:
            first_token_s(runner, random_tokens(sizes.prompt_tokens, 1))
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            took_s = first_token_s(runner, random_tokens(sizes.prompt_tokens, 2))
        finally:
            end_runner(runner)
        peak = f"peak {(mx.get_peak_memory() - before) / _MB:,.0f} MB over the weights"
        yield f"prompt in pieces of {piece}", f"{sizes.prompt_tokens / took_s:,.0f} tok/s", peak


def restores(weights: LoadedWeights, sizes: Sizes, folder: Path) -> Iterator[Row]:
    """How fast does a context go to the disk and come back, exactly and in 8 bits?"""
    cold: list[int] = []
    prompt = random_tokens(sizes.prompt_tokens, 3)
    for form, kv_bits in (("exact", 0), ("8 bits", PACKED_BITS)):
        place, in_form = folder / str(kv_bits), replace(weights, kv_bits=kv_bits)
        with closing(DiskRunner(in_form, place)) as first:
            tokens, cold_s = first.answer(prompt)
            save_s = first.save()
        cold = cold or tokens
        stored = stored_bytes(place)
        of_raw = f"{_raw_s(folder / 'raw', stored) / save_s:.0%} of the speed of one synced file"
        yield f"save, {form}", f"{1000 * save_s:,.0f} ms", of_raw
        with closing(DiskRunner(in_form, place)) as second:
            again, took_s = second.answer(prompt)
            restored = second.restored
        speed = f"{stored / took_s / 1e9:.2f} GB/s with the rest of the prompt"
        name = f"{form}, {stored / _MB:,.1f} MB for {restored:,} tokens"
        yield f"restore, {name}", f"{1000 * took_s:,.0f} ms (computed: {1000 * cold_s:,.0f})", speed
        equal = sum(one == other for one, other in zip(cold, again, strict=False))
        yield f"equal greedy tokens after it, {form}", f"{equal} of {len(cold)}", "-"


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


def memory() -> Iterator[Row]:
    """What may be used, and what is wired?"""
    info: dict[str, Any] = dict(mx.device_info())
    for name in ("device_name", "architecture", "memory_size", "max_recommended_working_set_size"):
        if name in info:
            yield name.replace("_", " "), info[name], "-"
    wired = getattr(psutil.virtual_memory(), "wired", None)
    yield (
        "wired by all programs",
        "not known here" if wired is None else f"{wired / _MB:,.0f} MB",
        "-",
    )
    yield "active, peak of MLX", f"{_mb(mx.get_active_memory())}, {_mb(mx.get_peak_memory())}", "-"
    yield "buffers kept by MLX", _mb(mx.get_cache_memory()), "-"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / _MB:,.0f} MB"


PARTS: Final = ("copies", "steps", "prefill", "restore", "memory")


def measure(model: str, sizes: Sizes, parts: Sequence[str], folder: Path) -> Iterator[Row]:
    """Yield the rows of the table: what, the figure, and what it means beside others."""
    yield "before the model", "", ""
    yield from memory()
    if "copies" in parts:
        yield from buffer_copies(sizes)
    found = load_weights(ModelEntry(name=model, source=model))
    # Random prompts must not end an answer.
    weights = replace(found, end_ids=frozenset())
    if "steps" in parts:
        yield from steps(weights, sizes)
    if "prefill" in parts:
        yield from prefill(weights, sizes)
    if "restore" in parts:
        yield from restores(weights, sizes, folder)
    if "memory" in parts:
        yield "after all", "", ""
        yield from memory()


def main() -> None:
    """Print the block."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.on_a_mac", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", default="semantic-demo", help="directory or hub id")
    parser.add_argument("--short", action="store_true", help="tiny sizes, to check the program")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    log_to_stderr()
    began = time.monotonic()
    sizes = SHORT if options.short else Sizes()
    blas = measured_blas()
    print(f"bench.on_a_mac{' --short' if options.short else ''}, {options.model}, ", end="")
    print(f"{platform.platform()}, {mx.default_device()}, {blas['gflops']:g} GFLOPS in float32\n")
    with tempfile.TemporaryDirectory(prefix="on-a-mac-") as folder:
        rows = measure(options.model, sizes, options.only, Path(folder))
        for line in table_lines(("what", ">figure", "beside it"), rows):
            print(line, flush=True)
    print()
    print_conditions(began)
    # A stream's thread that is alive at exit aborts the process.
    mx.clear_streams()


if __name__ == "__main__":
    main()
