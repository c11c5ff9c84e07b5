"""Full disks, failed syncs, other writers and many threads: the store stays right."""

from __future__ import annotations

import errno
import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.blockstore.blocks import PutOutcome, StoredBlock
from ops.blockstore.disk import Disk, DiskUnavailable
from tests.support.builders.block_stores import StoreWorld
from tests.support.builders.blocks import FINGERPRINT, FailingDisk, make_block, make_chain


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return StoreWorld(tmp_path / "cache")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_refuses_leaves_nothing_of_the_group(world: StoreWorld, code: int) -> None:
    disk = world.disk = FailingDisk()
    world.reopen()
    disk.writes_left, disk.errno = 2, code
    chain = make_chain(0, 4)
    with pytest.raises(DiskUnavailable) as caught:
        world.store.put_many(chain)
    assert caught.value.errno_name == errno.errorcode[code]
    assert world.files() == []
    assert not any(world.store.contains(block.hash) for block in chain)
    disk.writes_left = None
    assert world.store.put_many(chain) == [PutOutcome.STORED] * 4


def test_a_failed_sync_leaves_nothing_of_the_group(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.disk = Disk()
    world.reopen()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as patch:
        patch.setattr("ops.blockstore.disk.os.fsync", fail)
        with pytest.raises(DiskUnavailable):
            world.store.put_many(make_chain(0, 3))
    assert world.files() == []
    assert world.store.stats().blocks == 0


def test_a_block_written_by_another_process_is_adopted(world: StoreWorld) -> None:
    mine = world.store
    world.reopen().put_many([block := make_block()])
    assert not mine.contains(block.hash)
    assert mine.put_many([block]) == [PutOutcome.PRESENT]
    assert isinstance(mine.get(block.hash, FINGERPRINT), StoredBlock)
    assert mine.stats().size_bytes == world.file_of(block).stat().st_size


def test_an_erased_block_is_gone_even_if_it_was_pinned(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    world.store.pin([block.hash])
    assert world.store.delete(block.hash)
    assert world.files() == []
    assert not world.store.delete(block.hash)
    assert world.store.blocks() == []


def test_a_write_cut_short_by_the_system_leaves_nothing(world: StoreWorld) -> None:
    """The system's own refusal, in the middle of a file: no injected error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(DiskUnavailable) as caught:
            world.store.put_many([make_block((1,)), make_block((2,), size_bytes=200_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno_name == "EFBIG"
    assert world.files() == []
    assert world.store.put_many([make_block((2,), size_bytes=200_000)])[0] is PutOutcome.STORED


def test_threads_that_store_read_evict_and_erase_at_once_agree(world: StoreWorld) -> None:
    store = world.reopen(budget_bytes=6000)
    contexts = [make_chain(number, 4) for number in range(4)]

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(60):
            chain = draw.choice(contexts)
            store.put_many(chain)
            found = store.get(draw.choice(chain).hash, FINGERPRINT)
            assert found is None or isinstance(found, StoredBlock)
            store.touch([block.hash for block in chain])
            if draw.random() < 0.2:
                store.delete(chain[-1].hash)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()
    files = world.files()
    assert len(files) == store.stats().blocks
    assert sum(path.stat().st_size for path in files) == store.stats().size_bytes <= 6000
