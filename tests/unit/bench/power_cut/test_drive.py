"""What a power cut may take, and what it must leave."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.power_cut.drive import Drive
from bench.power_cut.journal import Kind, Record

ROOT = Path("/root-of-a-recording")
SEEDS = st.integers(0, 2**32)
#: Enough cuts for every kind of loss.
MANY = 300
LONG = bytes(range(256)) * 64


def record(kind: Kind, first: str = "", second: bytes | str = b"", **more: int) -> Record:
    path = f"{ROOT}/{first}".rstrip("/") if first or (kind is Kind.SYNC and not more) else ""
    if isinstance(second, str):
        second = f"{ROOT}/{second}".encode()
    return Record(kind, more.get("inode", 0), more.get("offset", 0), path, second)


def new_file(name: str, inode: int, content: bytes) -> list[Record]:
    return [record(Kind.CREATE, name, inode=inode), record(Kind.WRITE, second=content, inode=inode)]


SYNC_ROOT = record(Kind.SYNC)
OLD = [*new_file("a", 1, LONG), record(Kind.SYNC, inode=1), SYNC_ROOT]


def left(records: list[Record], seed: int) -> dict[str, bytes | None]:
    drive = Drive(ROOT)
    for one in records:
        drive.apply(one)
    return drive.after_a_cut(random.Random(seed))


def outcomes(records: list[Record]) -> list[dict[str, bytes | None]]:
    return [left(records, seed) for seed in range(MANY)]


@given(SEEDS)
def test_what_is_synced_with_its_directory_survives_every_cut(seed: int) -> None:
    assert left(OLD, seed) == {"a": LONG}


def test_a_file_without_a_sync_may_be_missing_empty_torn_zero_or_whole() -> None:
    found = [one.get("a") for one in outcomes(new_file("a", 1, LONG))]
    assert {None, b"", LONG, bytes(len(LONG))} <= set(found)
    torn = {content for content in found if content and content not in (LONG, bytes(len(LONG)))}
    assert torn
    for content in filter(None, found):
        for at in range(0, len(content), 512):
            assert content[at : at + 512] in (LONG[at : at + 512], bytes(512))


def test_the_name_of_a_synced_file_may_be_lost_until_its_directory_is_synced() -> None:
    synced = OLD[:-1]
    assert {"a" in one for one in outcomes(synced)} == {True, False}
    assert all(one in ({"a": LONG}, {}) for one in outcomes(synced))


def test_a_synced_file_in_an_unsynced_directory_may_be_lost_with_it() -> None:
    records = [
        record(Kind.MKDIR, "d"),
        *new_file("d/a", 1, LONG),
        record(Kind.SYNC, inode=1),
        record(Kind.SYNC, "d"),
    ]
    assert {"d" in one for one in outcomes(records)} == {True, False}
    assert {one.get("d/a") for one in outcomes(records)} == {LONG, None}
    assert all(one.get("d/a") == LONG for one in outcomes([*records, SYNC_ROOT]))


def test_a_rename_over_a_file_leaves_the_old_or_the_new_one() -> None:
    records = [
        *OLD,
        *new_file("draft", 2, b"new"),
        record(Kind.SYNC, inode=2),
        record(Kind.RENAME, "draft", "a"),
    ]
    assert {one["a"] for one in outcomes(records)} == {LONG, b"new"}
    assert all(one == {"a": b"new"} for one in outcomes([*records, SYNC_ROOT]))


def test_a_rename_without_a_sync_of_the_data_may_leave_nothing_of_either() -> None:
    records = [*OLD, *new_file("draft", 2, b"new"), record(Kind.RENAME, "draft", "a")]
    assert b"" in {one["a"] for one in outcomes(records)}


def test_a_deleted_file_may_come_back_until_its_directory_is_synced() -> None:
    records = [*OLD, record(Kind.UNLINK, "a")]
    assert {"a" in one for one in outcomes(records)} == {True, False}
    assert all(one == {} for one in outcomes([*records, SYNC_ROOT]))


def test_a_truncated_file_may_have_its_old_length_until_it_is_synced() -> None:
    records = [*OLD, record(Kind.TRUNCATE, inode=1)]
    assert {one["a"] for one in outcomes(records)} == {LONG, b""}
    synced = [*records, record(Kind.SYNC, inode=1)]
    assert all(one == {"a": b""} for one in outcomes(synced))


def test_an_inode_that_is_used_again_is_another_file() -> None:
    records = [
        *OLD,
        record(Kind.UNLINK, "a"),
        *new_file("b", 1, b"new"),
        record(Kind.SYNC, inode=1),
    ]
    assert all(one["b"] == b"new" for one in outcomes([*records, SYNC_ROOT]))


@given(SEEDS)
def test_a_cut_depends_on_its_seed_alone(seed: int) -> None:
    records = [*OLD, *new_file("b", 2, LONG)]
    assert left(records, seed) == left(records, seed)


@pytest.mark.parametrize("kind", [Kind.LINK, Kind.RENAME])
def test_a_second_name_has_the_content_of_the_file(kind: Kind) -> None:
    records = [*OLD, record(kind, "a", "b"), SYNC_ROOT]
    assert all(one["b"] == LONG for one in outcomes(records))
