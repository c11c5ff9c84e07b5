"""The store keeps what it promised, gives it back whole, and serves nothing else."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from domain.events.cache import CacheBlockRejected
from ops.blockstore.blocks import (
    PutOutcome,
    Rejected,
    RejectReason,
    StoredBlock,
    TensorEntry,
)
from ops.blockstore.disk import Disk
from ops.blockstore.maintenance import overview
from tests.support.builders.block_stores import StoreWorld
from tests.support.builders.blocks import (
    FINGERPRINT,
    OTHER_FINGERPRINT,
    make_block,
    make_chain,
    make_checkpoint,
)


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    return StoreWorld(tmp_path / "cache")


def test_a_stored_block_comes_back_before_and_after_a_restart(world: StoreWorld) -> None:
    world.disk = Disk()
    world.reopen()
    block = make_block()
    assert world.store.put_many([block])[0] is PutOutcome.STORED
    for _ in range(2):
        assert world.store.contains(block.hash)
        found = world.store.get(block.hash, FINGERPRINT)
        assert isinstance(found, StoredBlock)
        assert found.token_ids == tuple(block.token_ids)
        assert bytes(found.payload["keys"].joined()) == bytes(block.payload["keys"].joined())
        world.reopen()
    assert len(world.report.blocks) == 1


def test_only_the_owner_may_read_stored_files(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    path = world.file_of(block)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_storing_a_block_again_leaves_the_file_alone(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    inode = world.file_of(block).stat().st_ino
    assert world.store.put_many([block])[0] is PutOutcome.PRESENT
    assert world.store.put_many([block, block]) == [PutOutcome.PRESENT] * 2
    assert world.file_of(block).stat().st_ino == inode
    assert world.store.stats().stored == 1


def test_a_block_twice_in_one_group_is_stored_once(world: StoreWorld) -> None:
    block = make_block()
    assert world.store.put_many([block, block]) == [PutOutcome.STORED, PutOutcome.PRESENT]
    assert len(world.files()) == 1


def test_a_block_of_another_model_is_a_miss(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    assert world.store.get(block.hash, OTHER_FINGERPRINT) is None
    assert world.store.stats().misses == 1
    assert world.events == []


def test_a_block_that_vanished_is_a_miss_and_can_be_stored_again(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    world.file_of(block).unlink()
    assert world.store.get(block.hash, FINGERPRINT) is None
    assert not world.store.contains(block.hash)
    assert world.store.stats().size_bytes == 0
    assert world.store.put_many([block])[0] is PutOutcome.STORED


def test_children_of_a_block_are_of_the_fingerprint_that_is_asked_for(world: StoreWorld) -> None:
    chain = make_chain(1, 3)
    checkpoints = [make_checkpoint(chain[:1], tokens=count) for count in (1, 2)]
    first = make_checkpoint([])
    world.store.put_many([*chain, *checkpoints, first])
    for _ in range(2):
        found = world.store.children(chain[0].hash, OTHER_FINGERPRINT, limit=9)
        assert {each.hash for each in found} == {each.hash for each in checkpoints}
        assert {each.tokens for each in found} == {1, 2}
        (block,) = world.store.children(chain[0].hash, FINGERPRINT, limit=9)
        assert block.hash == chain[1].hash
        (alone,) = world.store.children(None, OTHER_FINGERPRINT, limit=9)
        assert alone.hash == first.hash
        world.reopen()


def test_a_block_without_tensors_is_stored_and_names_its_tokens(world: StoreWorld) -> None:
    chain = [replace(block, payload={}) for block in make_chain(1, 2)]
    checkpoint = make_checkpoint(chain)
    assert world.store.put_many([*chain, checkpoint]) == [PutOutcome.STORED] * 3
    for _ in range(2):
        found = world.store.get(chain[1].hash, FINGERPRINT)
        assert isinstance(found, StoredBlock)
        assert found.payload == {}
        assert found.token_ids == tuple(chain[1].token_ids)
        assert world.store.token_ids(chain[1].hash) == tuple(chain[1].token_ids)
        assert isinstance(world.store.get(checkpoint.hash, OTHER_FINGERPRINT), StoredBlock)
        assert world.store.get(checkpoint.hash, FINGERPRINT) is None
        assert overview(world.root).orphans == []
        world.reopen()


def test_what_follows_a_block_is_found_without_its_hash(world: StoreWorld) -> None:
    first = make_block(range(8))
    tail = make_block((1, 2, 3), parent=first.hash)
    full = make_block(range(8), parent=first.hash)
    for block in (first, tail, full):
        world.clock.advance(1)
        world.store.put_many([block])
    world.reopen()
    found = world.store.children(first.hash, FINGERPRINT, limit=8)
    assert [(each.hash, each.tokens) for each in found] == [(full.hash, 8), (tail.hash, 3)]
    assert world.store.token_ids(tail.hash) == (1, 2, 3)
    assert [each.hash for each in world.store.children(first.hash, FINGERPRINT, limit=1)] == [
        full.hash
    ]
    assert [each.hash for each in world.store.children(None, FINGERPRINT, limit=8)] == [first.hash]
    assert world.store.children(None, OTHER_FINGERPRINT, limit=8) == []


# --- damage --------------------------------------------------------------------------------


def _flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[at] ^= 0x10
        path.write_bytes(raw)

    return damage


def _cut(length: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size + length if length < 0 else length)


def _overwrite(raw: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(raw)

    return damage


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path], None], RejectReason]] = {
    "empty": (_cut(0), RejectReason.TRUNCATED),
    "cut in the length": (_cut(5), RejectReason.TRUNCATED),
    "cut in the header": (_cut(99), RejectReason.TRUNCATED),
    "cut in a tensor": (_cut(-9), RejectReason.TRUNCATED),
    "last byte missing": (_cut(-1), RejectReason.TRUNCATED),
    "flip in the length": (_flip(2), RejectReason.MALFORMED),
    "flip in the first word": (_flip(12), RejectReason.FOREIGN),
    "flip in the checksum": (_flip(50), RejectReason.CHECKSUM),
    "flip in the last tensor": (_flip(-1), RejectReason.CHECKSUM),
    "somebody else's text": (_overwrite(b"a text " * 100), RejectReason.MALFORMED),
    "zeros": (_overwrite(bytes(5000)), RejectReason.FOREIGN),
    "huge header": (_overwrite(b"\xff" * 8 + b"{}"), RejectReason.MALFORMED),
    "a link": (_link, RejectReason.UNREADABLE),
    "a pipe": (_pipe, RejectReason.UNREADABLE),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_rejected_reported_and_replaced(world: StoreWorld, name: str) -> None:
    damage, reason = DAMAGES[name]
    block = make_block()
    world.store.put_many([block])
    damage(world.file_of(block))
    found = world.store.get(block.hash, FINGERPRINT)
    assert isinstance(found, Rejected)
    assert found.reason is reason
    (event,) = world.events
    assert isinstance(event, CacheBlockRejected)
    assert (event.block, event.reason) == (block.hash.hex(), reason)
    assert not world.store.contains(block.hash)
    assert world.store.get(block.hash, FINGERPRINT) is None
    assert world.store.put_many([block])[0] is PutOutcome.STORED
    assert isinstance(world.store.get(block.hash, FINGERPRINT), StoredBlock)


def test_a_block_renamed_to_another_is_rejected(world: StoreWorld) -> None:
    one, two = make_block((1,)), make_block((2,))
    world.store.put_many([one, two])
    world.file_of(one).replace(world.file_of(two))
    world.reopen()
    found = world.store.get(two.hash, FINGERPRINT)
    assert isinstance(found, Rejected)
    assert found.reason is RejectReason.RENAMED


@pytest.mark.parametrize(("old", "new"), [("root", "ab" * 32), ("-3.kv", "-4.kv")])
def test_a_name_that_lies_about_the_block_is_rejected(
    world: StoreWorld, old: str, new: str
) -> None:
    block = make_block((1, 2, 3))
    world.store.put_many([block])
    path = world.file_of(block)
    path.rename(path.with_name(path.name.replace(old, new)))
    world.reopen()
    found = world.store.get(block.hash, FINGERPRINT)
    assert isinstance(found, Rejected)
    assert found.reason is RejectReason.RENAMED


def test_blocks_put_under_another_model_are_rejected(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    shutil.move(world.root / ("a1" * 8), world.root / ("b2" * 8))
    world.reopen()
    found = world.store.get(block.hash, OTHER_FINGERPRINT)
    assert isinstance(found, Rejected)
    assert found.reason is RejectReason.WRONG_FINGERPRINT
    assert world.store.get(block.hash, FINGERPRINT) is None


def test_the_ids_of_a_damaged_file_are_not_given(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    _cut(200)(world.file_of(block))
    assert world.store.token_ids(block.hash) is None


def test_want_of_file_descriptors_is_a_miss_and_harms_nothing(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = make_block()
    world.store.put_many([block])

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("ops.blockstore.disk.os.open", refuse)
        assert world.store.get(block.hash, FINGERPRINT) is None
    assert isinstance(world.store.get(block.hash, FINGERPRINT), StoredBlock)


# --- start ---------------------------------------------------------------------------------


def _fill(root: Path, count: int) -> None:
    """Lay out empty files as a store of so many blocks would."""
    for at in range(count):
        digits = f"{at * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4
        directory = root / ("a1" * 8) / digits[:2]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{digits}-root-256.kv").touch()


def test_a_start_finds_every_block_without_opening_one(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(world.root, 5000)

    def never(*_: object) -> int:
        raise AssertionError

    monkeypatch.setattr("ops.blockstore.disk.os.open", never)
    world.reopen()
    assert len(world.report.blocks) == 5000
    assert {block.model for block in world.report.blocks} == {"a1" * 8}


def test_a_start_removes_drafts_of_the_dead_and_leaves_other_peoples_files(
    world: StoreWorld,
) -> None:
    world.store.put_many([make_block()])
    fan = world.files()[0].parent
    dead = fan / f".{2**22 + 1}-{'0' * 16}.tmp"
    alive = fan / f".{os.getpid()}-{'0' * 16}.tmp"
    old = fan / f".{os.getpid()}-{'1' * 16}.tmp"
    foreign = [world.root / "notes.txt", fan / "photo.jpg", fan / ("0" * 64 + "-root-1.kv")]
    for path in (dead, alive, old, *foreign):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    (fan / "link.kv").symlink_to(foreign[0])
    world.reopen()
    assert (len(world.report.leftovers), world.report.foreign) == (2, 4)
    assert not dead.exists()
    assert not old.exists()
    assert alive.exists()
    assert all(path.exists() for path in foreign)
    assert len(world.report.blocks) == 1


def test_a_store_that_never_was_is_empty(tmp_path: Path) -> None:
    world = StoreWorld(tmp_path / "not" / "there")
    assert len(world.report.blocks) == 0
    assert not world.root.exists()


@pytest.mark.parametrize("piece_bytes", [8, 100, 1 << 20])
def test_a_block_is_read_into_the_memory_of_its_caller(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr("ops.blockstore.format.PIECE_BYTES", piece_bytes)
    block = make_block(size_bytes=6000)
    world.store.put_many([block])
    memory = bytearray(6000)

    def target(tensors: Sequence[TensorEntry]) -> list[memoryview]:
        assert [tensor.name for tensor in tensors] == ["keys", "values"]
        view = memoryview(memory)
        return [view[:1], view[1:1], view[1:5000], view[5000:]]

    found = world.store.get(block.hash, FINGERPRINT, target)
    assert isinstance(found, StoredBlock)
    assert (found.is_placed, found.payload) == (True, {})
    assert found.token_ids == tuple(block.token_ids)
    assert bytes(memory) == b"".join(bytes(one.joined()) for one in block.payload.values())


def test_a_block_that_does_not_fit_the_memory_comes_back_as_any_other(world: StoreWorld) -> None:
    block = make_block()
    world.store.put_many([block])
    found = world.store.get(block.hash, FINGERPRINT, lambda _: None)
    assert isinstance(found, StoredBlock)
    assert not found.is_placed
    assert bytes(found.payload["keys"].joined()) == bytes(block.payload["keys"].joined())


@pytest.mark.parametrize("at", [0, 40, 300, -1])
def test_a_changed_byte_is_detected_in_the_memory_of_the_caller(world: StoreWorld, at: int) -> None:
    block = make_block(size_bytes=6000)
    world.store.put_many([block])
    path = world.file_of(block)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    found = world.store.get(block.hash, FINGERPRINT, lambda _: [memoryview(bytearray(6000))])
    assert isinstance(found, Rejected)
    assert not path.exists()
