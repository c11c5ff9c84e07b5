"""The pool against a model that is too simple to be wrong, in any order of operations."""

from __future__ import annotations

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain.kv.hashing import BlockHash
from domain.kv.pool import BlockId, BlockPool

BLOCK_BYTES = 100
NAMES = [BlockHash(bytes([number]) * 32) for number in range(6)]

names = st.sampled_from(NAMES)
budgets = st.integers(min_value=0, max_value=8 * BLOCK_BYTES + 50)


class PoolMachine(RuleBasedStateMachine):
    """The model: references as a list of ids, cached blocks as a list in order of eviction."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 5
        self.pool = BlockPool(
            block_bytes=BLOCK_BYTES,
            budget_bytes=self.total * BLOCK_BYTES,
            lock=threading.RLock(),  # as the worker's BlockMemory makes it
        )
        self.references: list[BlockId] = []
        self.cached: list[BlockId] = []
        self.name_of: dict[BlockId, BlockHash] = {}
        self.expected_drops: list[tuple[BlockId, BlockHash | None]] = []
        self.seen: set[BlockId] = set()

    @property
    def held(self) -> set[BlockId]:
        return set(self.references)

    def drop(self, block: BlockId) -> None:
        self.expected_drops.append((block, self.name_of.pop(block, None)))

    def evict_down_to(self, blocks: int) -> None:
        while self.cached and len(self.held) + len(self.cached) > blocks:
            self.drop(self.cached.pop(0))

    def add_reference(self, block: BlockId) -> None:
        self.references.append(block)
        if block in self.cached:
            self.cached.remove(block)

    def take_reference(self, block: BlockId) -> None:
        self.references.remove(block)
        if block not in self.references:
            if block in self.name_of:
                self.cached.append(block)
            else:
                self.drop(block)

    def block_named(self, name: BlockHash) -> BlockId | None:
        return next((block for block, its in self.name_of.items() if its == name), None)

    @rule(count=st.integers(min_value=0, max_value=9))
    def allocate(self, count: int) -> None:
        ids = self.pool.allocate(count)
        if len(self.held) + count > self.total:
            assert ids is None
            return
        assert ids is not None
        assert len(set(ids)) == count
        assert not self.seen & set(ids), "an id was given twice"
        self.evict_down_to(self.total - count)
        self.seen.update(ids)
        self.references.extend(ids)

    @precondition(lambda self: self.references or self.cached)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.known()), max_size=4))
        self.pool.retain(blocks)
        for block in blocks:
            self.add_reference(block)

    @rule(name=names)
    def acquire(self, name: BlockHash) -> None:
        block = self.pool.acquire(name)
        assert block == self.block_named(name)
        if block is not None:
            self.add_reference(block)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(self.references))
        blocks = order[: data.draw(st.integers(min_value=0, max_value=len(order)))]
        self.pool.release(blocks)
        for block in reversed(blocks):
            self.take_reference(block)
        self.evict_down_to(self.total)

    @precondition(lambda self: self.held - self.name_of.keys())
    @rule(data=st.data(), name=names)
    def seal(self, data: st.DataObject, name: BlockHash) -> None:
        block = data.draw(st.sampled_from(sorted(self.held - self.name_of.keys())))
        known = self.block_named(name)
        assert self.pool.seal(block, name) == (block if known is None else known)
        if known is None:
            self.name_of[block] = name
        else:
            self.add_reference(known)
            self.take_reference(block)

    @precondition(lambda self: self.references or self.cached)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.known()), max_size=4))
        self.pool.touch(blocks)
        for block in reversed(blocks):
            if block in self.cached:
                self.cached.remove(block)
                self.cached.append(block)

    @rule(name=names)
    def forget(self, name: BlockHash) -> None:
        block = self.block_named(name)
        assert self.pool.forget(name) is (block is not None)
        if block is None:
            return
        if block in self.cached:
            self.cached.remove(block)
            self.drop(block)
        else:
            del self.name_of[block]

    @rule(budget_bytes=budgets)
    def reconfigure(self, budget_bytes: int) -> None:
        self.total = budget_bytes // BLOCK_BYTES
        assert self.pool.reconfigure(budget_bytes) is (len(self.held) <= self.total)
        self.evict_down_to(self.total)

    def known(self) -> list[BlockId]:
        return sorted(self.held | set(self.cached))

    @invariant()
    def the_accounts_are_those_of_the_model(self) -> None:
        self.pool.check_integrity()
        stats = self.pool.stats()
        assert (stats.held, stats.cached) == (len(self.held), len(self.cached))
        assert stats.total == self.total
        assert stats.used_bytes == (stats.held + stats.cached) * BLOCK_BYTES
        if stats.held <= stats.total:
            assert stats.held + stats.cached + stats.free == stats.total
            assert stats.used_bytes <= stats.budget_bytes
            assert self.pool.pressure == (stats.held / stats.total if stats.total else 1.0)
        else:
            assert (stats.cached, stats.free, self.pool.pressure) == (0, 0, 1.0)

    @invariant()
    def names_lead_to_their_blocks(self) -> None:
        for name in NAMES:
            assert self.pool.find(name) == self.block_named(name)

    @invariant()
    def every_drop_is_returned_once(self) -> None:
        assert list(self.pool.take_dropped().items()) == self.expected_drops
        assert self.pool.take_dropped() == {}
        self.expected_drops = []


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
