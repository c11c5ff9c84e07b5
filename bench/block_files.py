"""What does the package ``safetensors`` cost where the block store has code of its own?

``python -m bench.block_files --directory DIR``, at the KV shape of SmolLM2-135M, over a context of
30,000 tokens. All ways of a table do the same with each block in turn, so that a loaded machine
slows all of them; who is first changes. Each file is hashed, as the store does. Times are medians
over the blocks: *wall* counts the disk and other load, *CPU* the work of the thread.

write   hash and write one block and sync it; ``whole file`` is one buffer of ``serialize``
read    from the page cache to the buffers of a row, hashed: as the engine restores a context
header  parse and check the header of a file alone
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors import TensorSpec, deserialize, safe_open, serialize, serialize_file

from bench.kv_moves import DIM, HEADS, LAYERS
from domain.kv.hashing import block_hash
from domain.kv.spec import BLOCK_TOKENS
from ops.blockstore.blocks import NewBlock, StoredBlock, TensorEntry, info_of
from ops.blockstore.disk import Disk
from ops.blockstore.format import encode, read_block, read_token_ids
from worker.engine.mlx.kv.codec import BlockArrays, key_name, to_raw, value_name

TOKENS = 30_000
FINGERPRINT = "sha256:" + "0" * 64
STEPS = ("write", "read", "header")
_SHAPE = (1, HEADS, BLOCK_TOKENS, DIM)

#: Wall time and CPU time of each block, in seconds, by step and way.
Times = Mapping[str, list[tuple[float, float]]]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to be measured")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().directory) as directory:
        times = measured(Path(directory), -(-TOKENS // BLOCK_TOKENS))
    print("| step | way | wall ms | CPU ms | ratio of CPU | all blocks, CPU s |")
    print("|---|---|--:|--:|--:|--:|")
    for name, each in times.items():
        step, _, way = name.partition(": ")
        wall, cpu = (statistics.median(one) for one in zip(*each, strict=True))
        ratio = cpu / statistics.median(own for _, own in times[f"{step}: today"])
        total = sum(own for _, own in each)
        figures = f"{1e3 * wall:.2f} | {1e3 * cpu:.2f} | {ratio:.2f} | {total:.2f}"
        print(f"| {step} | {way} | {figures} |")


def measured(directory: Path, blocks: int) -> Times:
    """Return the times of each way for each block."""
    disk = Disk()
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    row = bytearray(2 * LAYERS * mx.bfloat16.size * HEADS * BLOCK_TOKENS * DIM)
    parent = None
    for number in range(blocks):
        ids = range(number * BLOCK_TOKENS, (number + 1) * BLOCK_TOKENS)
        arrays = _arrays(number)
        block = NewBlock(
            hash=block_hash(FINGERPRINT, parent, ids),
            parent=parent,
            fingerprint=FINGERPRINT,
            token_ids=ids,
            payload=to_raw(BlockArrays(BLOCK_TOKENS, arrays)),
        )
        parent = block.hash
        ours, theirs = directory / f"{number}.kv", directory / f"{number}.safetensors"
        ways: dict[str, Callable[[], object]] = {
            "write: today": partial(_write_today, disk, ours, block),
            "write: whole file": partial(_write_whole, disk, theirs, arrays),
            "write: serialize_file": partial(_write_file, directory / "x", arrays),
            "read: today": partial(_read_today, ours, block, row),
            "read: deserialize": partial(_read_theirs, theirs, row),
            "header: today": partial(_header_today, ours),
            "header: safe_open": partial(_header_theirs, ours),
        }
        for step in STEPS:
            for name in [name for name in ways if name.startswith(step)][:: 1 - 2 * (number % 2)]:
                started, worked = time.perf_counter(), time.thread_time()
                ways[name]()
                times[name].append((time.perf_counter() - started, time.thread_time() - worked))
        for path in directory.iterdir():
            path.unlink()
    return times


def _arrays(seed: int) -> dict[str, mx.array]:
    names = [name(layer) for layer in range(LAYERS) for name in (key_name, value_name)]
    keys = mx.random.split(mx.random.key(seed), len(names))
    arrays = {
        name: mx.random.normal(_SHAPE, key=key).astype(mx.bfloat16)
        for name, key in zip(names, keys, strict=True)
    }
    mx.eval(arrays)
    return arrays


def _write_today(disk: Disk, path: Path, block: NewBlock) -> None:
    disk.write_group([(path, encode(block))], time_ns=0)


def _specs(
    arrays: Mapping[str, mx.array], ids: ctypes.Array[ctypes.c_uint32]
) -> tuple[dict[str, TensorSpec], str]:
    """Return what the package writes, without joining tensors, and the digest of the bytes."""
    specs: dict[str, TensorSpec] = {}
    digest = hashlib.sha256(bytes(ids))
    for name, array in arrays.items():
        data = memoryview(array.view(mx.uint8)).cast("B")  # type: ignore[arg-type]  # the stubs leave it out
        digest.update(data)
        address = np.frombuffer(data, np.uint8).ctypes.data
        specs[name] = TensorSpec(
            dtype="bfloat16", shape=list(array.shape), data_ptr=address, data_len=data.nbytes
        )
    specs["token_ids"] = TensorSpec(
        dtype="uint32",
        shape=[BLOCK_TOKENS],
        data_ptr=ctypes.addressof(ids),
        data_len=ctypes.sizeof(ids),
    )
    return specs, digest.hexdigest()


def _write_whole(disk: Disk, path: Path, arrays: Mapping[str, mx.array]) -> None:
    ids = (ctypes.c_uint32 * BLOCK_TOKENS)()
    specs, checksum = _specs(arrays, ids)
    disk.write_group([(path, [serialize(specs, {"checksum": checksum})])], time_ns=0)


def _write_file(path: Path, arrays: Mapping[str, mx.array]) -> None:
    ids = (ctypes.c_uint32 * BLOCK_TOKENS)()
    specs, checksum = _specs(arrays, ids)
    serialize_file(specs, path, {"checksum": checksum})
    for one, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(one, flags)
        os.fsync(descriptor)
        os.close(descriptor)


def _read_today(path: Path, block: NewBlock, row: bytearray) -> None:
    def target(tensors: Sequence[TensorEntry]) -> Iterable[memoryview]:
        del tensors
        step = len(row) // (2 * LAYERS * HEADS)
        return (memoryview(row)[at : at + step] for at in range(0, len(row), step))

    info = info_of(block, size_bytes=0, used_ns=0)
    found = read_block(path, info, FINGERPRINT, target)
    assert isinstance(found, StoredBlock), found
    assert found.is_placed


def _read_theirs(path: Path, row: bytearray) -> None:
    raw = path.read_bytes()
    hashlib.sha256(raw).digest()
    at = 0
    tensors: list[tuple[str, Any]] = deserialize(raw)  # type: ignore[no-untyped-call]  # it has no types
    for name, tensor in tensors:
        if name != "token_ids":
            data = tensor["data"]
            row[at : at + len(data)] = data
            at += len(data)
    assert at == len(row)


def _header_today(path: Path) -> None:
    assert read_token_ids(path) is not None


def _header_theirs(path: Path) -> None:
    with safe_open(path, framework="numpy", backend="pread") as file:
        slices = [file.get_slice(name) for name in file.offset_keys()]
        found = [(each.get_dtype(), each.get_shape()) for each in slices]
        assert file.metadata()
    assert len(found) == 3, found


if __name__ == "__main__":
    main()
