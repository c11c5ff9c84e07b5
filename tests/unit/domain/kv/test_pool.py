from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from domain.kv.hashing import BlockHash
from domain.kv.pool import DROPPED_TURNS_MAX, BlockId, BlockPool


def name(number: int) -> BlockHash:
    return BlockHash(bytes([number]) * 32)


def pool_of(blocks: int) -> BlockPool:
    return BlockPool(block_bytes=10, budget_bytes=blocks * 10 + 9, lock=threading.RLock())


def held(pool: BlockPool, count: int) -> tuple[BlockId, ...]:
    ids = pool.allocate(count)
    assert ids is not None
    return ids


def cached_chain(pool: BlockPool, *numbers: int) -> tuple[BlockId, ...]:
    """Leave one named block per number, as an agent's context without a user."""
    ids = held(pool, len(numbers))
    for block, number in zip(ids, numbers, strict=True):
        assert pool.seal(block, name(number)) == block
    pool.release(ids)
    return ids


def test_more_than_fits_is_refused_and_nothing_is_evicted() -> None:
    pool = pool_of(3)
    cached_chain(pool, 1, 2)
    before = pool.stats()
    assert pool.allocate(4) is None
    assert pool.stats() == before
    assert pool.take_dropped() == {}


def test_the_end_of_a_context_is_evicted_before_its_start() -> None:
    pool = pool_of(3)
    first, second, third = cached_chain(pool, 1, 2, 3)
    held(pool, 2)
    assert pool.take_dropped() == {third: name(3), second: name(2)}
    assert pool.find(name(1)) == first


def test_a_touched_context_outlives_a_newer_one() -> None:
    pool = pool_of(4)
    old = cached_chain(pool, 1, 2)
    cached_chain(pool, 3, 4)
    pool.touch(old)
    held(pool, 2)
    assert list(pool.take_dropped().values()) == [name(4), name(3)]


def test_equal_content_computed_twice_becomes_one_block() -> None:
    pool = pool_of(4)
    (mine,), (theirs,) = held(pool, 1), held(pool, 1)
    assert pool.seal(mine, name(1)) == mine
    assert pool.seal(theirs, name(1)) == mine
    assert pool.take_dropped() == {theirs: None}
    pool.release([mine])
    assert pool.stats().held == 1, "the other still holds it"
    pool.release([mine])
    assert (pool.stats().held, pool.stats().cached) == (0, 1)


def test_an_acquired_block_cannot_be_evicted() -> None:
    pool = pool_of(2)
    cached_chain(pool, 1)
    block = pool.acquire(name(1))
    assert pool.allocate(2) is None
    assert pool.find(name(1)) == block


def test_a_smaller_budget_evicts_at_once_and_waits_for_what_is_held() -> None:
    pool = pool_of(4)
    working = held(pool, 3)
    cached_chain(pool, 1)
    assert pool.reconfigure(20) is False
    assert list(pool.take_dropped().values()) == [name(1)]
    assert pool.pressure == 1.0
    assert pool.allocate(1) is None
    pool.release(working[:2])
    assert held(pool, 1)
    pool.check_integrity()


def test_a_named_block_released_over_budget_is_dropped_and_not_cached() -> None:
    pool = pool_of(2)
    working = held(pool, 2)
    pool.seal(working[0], name(1))
    pool.reconfigure(10)
    pool.release(working[:1])
    assert pool.take_dropped() == {working[0]: name(1)}
    assert pool.find(name(1)) is None


def test_a_forgotten_block_stays_with_its_holder_and_is_found_no_more() -> None:
    pool = pool_of(2)
    (block,) = held(pool, 1)
    pool.seal(block, name(1))
    assert pool.forget(name(1)) is True
    assert pool.find(name(1)) is None
    assert pool.take_dropped() == {}
    pool.release([block])
    assert pool.take_dropped() == {block: None}


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool, block: pool.release([block]),
        lambda pool, block: pool.retain([block]),
        lambda pool, block: pool.touch([block]),
        lambda pool, block: pool.seal(block, name(1)),
        lambda pool, _: pool.allocate(-1),
        lambda pool, _: pool.reconfigure(-1),
    ],
    ids=["double free", "retain", "touch", "seal", "negative count", "negative budget"],
)
def test_using_a_block_that_is_gone_is_noticed(
    misuse: Callable[[BlockPool, BlockId], object],
) -> None:
    pool = pool_of(2)
    (block,) = held(pool, 1)
    pool.release([block])
    held(pool, 1)  # a new block, which the stale id must not name
    with pytest.raises(AssertionError):
        misuse(pool, block)


def test_a_second_name_is_refused() -> None:
    pool = pool_of(1)
    (block,) = held(pool, 1)
    pool.seal(block, name(1))
    with pytest.raises(AssertionError, match="named once"):
        pool.seal(block, name(2))


def test_drops_that_are_not_taken_are_noticed_before_they_pile_up() -> None:
    pool = pool_of(2)
    for _ in range(DROPPED_TURNS_MAX + 1):
        pool.release(held(pool, 2))
    with pytest.raises(AssertionError, match="dropped"):
        pool.allocate(1)


@pytest.mark.parametrize("damage", ["_references", "_cached", "_hash_of", "_id_of"])
def test_check_integrity_notices_damaged_accounts(damage: str) -> None:
    pool = pool_of(3)
    cached_chain(pool, 1, 2)
    held(pool, 1)
    pool.check_integrity()
    getattr(pool, damage).popitem()
    with pytest.raises(AssertionError):
        pool.check_integrity()


def test_threads_that_share_a_pool_leave_the_accounts_whole() -> None:
    pool = BlockPool(block_bytes=1, budget_bytes=16, lock=threading.RLock())
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(400):
                ids = pool.allocate(1 + (seed + turn) % 5)
                if ids is None:
                    continue
                sealed = [
                    pool.seal(block, name((seed * 7 + turn + place) % 40))
                    for place, block in enumerate(ids)
                ]
                other = pool.acquire(name(turn % 40))
                pool.release(sealed if other is None else [*sealed, other])
                pool.take_dropped()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    pool.check_integrity()
    assert pool.stats().held == 0
