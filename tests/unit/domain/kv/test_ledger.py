"""One budget for what runs and what is kept: never exceeded, and what runs goes first."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain.kv.hashing import BlockHash
from domain.kv.ledger import KvBudget, NoBlockCapacity
from domain.kv.pool import BlockId, BlockPool

BLOCK_BYTES = 10
BUDGET_BYTES = 125


class PoolRoom:
    """A pool as the ledger sees it."""

    def __init__(self) -> None:
        self.pool = BlockPool(
            block_bytes=BLOCK_BYTES, budget_bytes=BUDGET_BYTES, lock=threading.RLock()
        )

    def held_bytes(self) -> int:
        return self.pool.stats().held * BLOCK_BYTES

    def used_bytes(self) -> int:
        return self.pool.stats().used_bytes

    def resize(self, budget_bytes: int) -> None:
        self.pool.reconfigure(budget_bytes)
        self.pool.take_dropped()


def cached(room: PoolRoom, count: int) -> None:
    """Cache so many blocks without a reference."""
    blocks = room.pool.allocate(count)
    assert blocks is not None
    for block in blocks:
        room.pool.seal(block, BlockHash(bytes([block]) * 32))
    room.pool.release(blocks)


def test_what_runs_takes_the_place_of_what_is_cached() -> None:
    room = PoolRoom()
    ledger = KvBudget(BUDGET_BYTES, room)
    cached(room, 12)
    assert ledger.room_bytes() == BUDGET_BYTES
    assert ledger.reserve(60)
    assert room.pool.stats().cached == 6
    ledger.check_integrity()


def test_what_is_held_stays_and_a_refusal_changes_nothing() -> None:
    room = PoolRoom()
    ledger = KvBudget(BUDGET_BYTES, room)
    assert room.pool.allocate(7) is not None
    assert not ledger.reserve(56)
    assert (ledger.live_bytes, room.pool.stats().total) == (0, 12)
    assert ledger.reserve(55)
    assert room.pool.allocate(1) is None


def test_room_that_is_given_back_is_for_blocks_again() -> None:
    room = PoolRoom()
    ledger = KvBudget(BUDGET_BYTES, room)
    assert ledger.reserve(BUDGET_BYTES)
    assert room.pool.allocate(1) is None
    assert ledger.reserve(15)
    assert room.pool.allocate(11) is not None
    ledger.check_integrity()


def test_without_blocks_the_budget_is_for_what_runs() -> None:
    ledger = KvBudget(100, NoBlockCapacity())
    assert ledger.reserve(100)
    assert not ledger.reserve(101)
    assert ledger.reserve(0)


class LedgerMachine(RuleBasedStateMachine):
    """Sequences grow and leave while blocks are stored, taken and released."""

    def __init__(self) -> None:
        super().__init__()
        self.room = PoolRoom()
        self.ledger = KvBudget(BUDGET_BYTES, self.room)
        self.held: list[BlockId] = []
        self.names = 0

    @rule(live_bytes=st.integers(0, BUDGET_BYTES + 20))
    def reserve(self, live_bytes: int) -> None:
        before, room = self.ledger.live_bytes, self.ledger.room_bytes()
        fits = live_bytes <= max(room, before)
        assert self.ledger.reserve(live_bytes) is fits
        assert self.ledger.live_bytes == (live_bytes if fits else before)

    @rule(count=st.integers(1, 4))
    def keep(self, count: int) -> None:
        blocks = self.room.pool.allocate(count)
        self.room.pool.take_dropped()
        for block in blocks or ():
            self.names += 1
            self.room.pool.seal(block, BlockHash(self.names.to_bytes(32, "big")))
            self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        block = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.room.pool.release([block])
        self.room.pool.take_dropped()

    @rule(number=st.integers(1, 40))
    def take(self, number: int) -> None:
        block = self.room.pool.acquire(BlockHash(number.to_bytes(32, "big")))
        if block is not None:
            self.held.append(block)

    @invariant()
    def budget_is_kept(self) -> None:
        self.ledger.check_integrity()
        self.room.pool.check_integrity()
        assert self.ledger.live_bytes + self.room.held_bytes() <= BUDGET_BYTES


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase
