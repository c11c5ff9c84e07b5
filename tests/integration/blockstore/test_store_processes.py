"""The block store among processes that are killed, and that write the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from ops.blockstore.blocks import StoredBlock, parse_draft
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import FINGERPRINT, make_chain
from tests.support.polling import pause, scaled

DEADLINE_S = 60.0
REPOSITORY = Path(__file__).parents[3]

#: Arguments: directory, context, number of blocks, bytes of each.
WRITER = """
import sys
from pathlib import Path
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import make_chain

root, start, length, size = Path(sys.argv[1]), *map(int, sys.argv[2:])
store = BlockStore(root, budget_bytes=1 << 30, clock=SystemClock())
store.scan()
chain = make_chain(start, length, size_bytes=size)
print("ready", flush=True)
for at in range(0, length, 4):
    store.put_many(chain[at : at + 4])
    print(at, flush=True)
print("done", flush=True)
"""


def _start(root: Path, *numbers: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), *map(str, numbers)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def _open(root: Path) -> BlockStore:
    store = BlockStore(root, budget_bytes=1 << 30, clock=SystemClock())
    store.scan()
    return store


def _drafts(root: Path) -> list[Path]:
    return [path for path in root.rglob(".*") if parse_draft(path.name) is not None]


def test_a_writer_killed_at_any_moment_leaves_whole_blocks_or_none(tmp_path: Path) -> None:
    moments = random.Random(5)
    for round_number in range(6):
        root = tmp_path / str(round_number)
        with _start(root, round_number, 100, 200_000) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            # The first group is there; the kill falls anywhere into one of those after it.
            for _ in range(moments.randint(1, 12)):
                process.stdout.readline()
            pause(moments.uniform(0.0, 0.01), reason="the kill falls at any moment")
            os.kill(process.pid, signal.SIGKILL)
        store = _open(root)
        assert _drafts(root) == []
        blocks = store.blocks()
        assert blocks
        for info in blocks:
            assert isinstance(store.get(info.hash, FINGERPRINT), StoredBlock)
        # Groups come whole up to the last, and parents before children.
        chain = make_chain(round_number, 100, size_bytes=200_000)
        there = [store.contains(block.hash) for block in chain]
        assert there == sorted(there, reverse=True)


def test_two_processes_that_store_the_same_blocks_do_no_harm(tmp_path: Path) -> None:
    writers = [_start(tmp_path, 1, 60, 100_000) for _ in range(2)]
    for writer in writers:
        out, _ = writer.communicate(timeout=scaled(DEADLINE_S))
        assert out.endswith("done\n")
        assert writer.returncode == 0
    store = _open(tmp_path)
    chain = make_chain(1, 60, size_bytes=100_000)
    assert len(store.blocks()) == len(chain)
    for block in chain:
        assert isinstance(store.get(block.hash, FINGERPRINT), StoredBlock)
    assert _drafts(tmp_path) == []
