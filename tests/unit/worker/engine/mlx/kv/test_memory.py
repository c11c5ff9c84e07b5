"""The pool as the worker builds it: one thread changes it while others read it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from domain.kv.hashing import BlockHash, block_hashes
from domain.kv.pool import BlockId
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.memory import BlockMemory

BLOCK_TOKENS = 4
BLOCKS = 3
TURNS = 300
_LAYER = LayerSpec(kind=LayerKind.FULL, kv_heads=1, key_dim=1, value_dim=1, element_bytes=2)
SPEC = ModelCacheSpec(layers=(_LAYER,), dtype="float16", block_tokens=BLOCK_TOKENS)
TOKENS = tuple(range(BLOCKS * BLOCK_TOKENS))


def memory_with_context() -> tuple[BlockMemory, tuple[BlockHash, ...]]:
    """Return a memory that is full of the cached blocks of one context, and their names."""
    memory = BlockMemory("f", SPEC, BLOCKS * SPEC.block_bytes)
    names = tuple(block_hashes("f", TOKENS, BLOCK_TOKENS)[0])
    ids = [add(memory, names, number) for number in range(BLOCKS)]
    memory.release(ids)
    return memory, names


def add(memory: BlockMemory, names: tuple[BlockHash, ...], number: int) -> BlockId:
    block = memory.add(
        names[number],
        names[number - 1] if number else None,
        TOKENS[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS],
        lambda: BlockArrays(BLOCK_TOKENS, {}),
    )
    assert block is not None
    return block


class _PausedInTheMiddle(OrderedDict[BlockId, None]):
    """Cached blocks; one that leaves waits for a reader before its reference is counted."""

    def __init__(self, cached: OrderedDict[BlockId, None]) -> None:
        super().__init__(cached)
        self.left, self.read = threading.Event(), threading.Event()

    def __delitem__(self, block: BlockId) -> None:
        super().__delitem__(block)
        self.left.set()
        self.read.wait(0.2)  # runs out where the reader has to wait for the end of the change


def test_figures_are_never_those_of_half_a_change() -> None:
    memory, names = memory_with_context()
    paused = _PausedInTheMiddle(memory._pool._cached)
    memory._pool._cached = paused
    blocks: list[int] = []
    used_bytes: list[int] = []

    def read() -> None:
        paused.left.wait(60)
        stats = memory.stats()
        blocks.append(stats.held + stats.cached)
        used_bytes.append(memory.used_bytes())
        paused.read.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert memory.acquire(names[0]) is not None
    reader.join(60)
    assert blocks == [BLOCKS]
    assert used_bytes == [BLOCKS * SPEC.block_bytes]


def test_threads_that_read_and_forget_leave_the_accounts_whole() -> None:
    memory, names = memory_with_context()
    over = threading.Event()
    failures: list[BaseException] = []

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                action()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            failures.append(error)

    def read() -> None:
        stats = memory.stats()
        assert stats.held + stats.cached + stats.free == stats.total
        assert memory.known_tokens(TOKENS) % BLOCK_TOKENS == 0

    actions = (read, memory.held_bytes, lambda: memory.forget(names[-1]))
    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for _ in range(TURNS):  # the engine thread
        ids = [add(memory, names, number) for number in range(BLOCKS)]
        pinned = memory.pin(TOKENS, 1)
        memory.release([*ids, *pinned.ids])
        # Only here: while this thread fills a block, the block has no arrays yet.
        memory.check_integrity()
    over.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert memory.stats().held == 0
