"""Files are kept, loaded, deleted and listed until they expire."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.batch.batches import STREAMS_AT_ONCE, FileRecords
from domain.batch.ports import FileId, StoredFile
from domain.errors import ConcurrencyConflict, FileNotFound, LogUnavailable
from domain.events.batch import FileCreated, FileDeleted
from domain.log.folded_stream import TRIES_MAX
from domain.values import Owner, digest_of
from tests.support.builders.told_log import ToldLog, second
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.time import SequentialIds

CONTENT = b'{"custom_id": "one"}\n'
DIGEST = digest_of(CONTENT)
CREATED = FileCreated(
    purpose="batch",
    bytes=len(CONTENT),
    content=DIGEST,
    owner=Owner("alice"),
)
ONE = FileId("file-1")


class World:
    """A log of files; each event is a second after the one before."""

    def __init__(self) -> None:
        self.log = ToldLog()
        self.files = FileRecords(
            log=self.log,
            views=InMemoryBatchViews(self.log),
            ids=SequentialIds(),
            clock=self.log.clock,
        )

    def keep(self, name: str, created: FileCreated = CREATED) -> StoredFile:
        return self.files.keep(
            FileId(name), created, correlation_id="req-1", payloads={DIGEST: CONTENT}
        )

    def delete(self, name: str) -> None:
        self.files.delete(FileId(name), correlation_id="req-2")


def _files(number: int) -> World:
    """Return a world with ``file-1`` and so on."""
    world = World()
    for at in range(1, number + 1):
        world.keep(f"file-{at}")
    return world


def test_a_file_is_kept_with_its_content() -> None:
    world = World()
    kept = world.keep("file-1")
    assert kept == StoredFile(id=ONE, version=1, created=CREATED, created_at=second(0))
    assert world.files.load(ONE) == kept
    assert world.log.get(DIGEST) == CONTENT
    (recorded,) = world.log.told()
    assert (recorded.stream, recorded.type) == ("file-1", "FileCreated")
    assert (recorded.correlation_id, recorded.event_id) == ("req-1", f"{1:032x}")


def test_a_file_that_exists_stays_as_it_is() -> None:
    world = World()
    first = world.keep("file-1")
    assert world.keep("file-1", replace(CREATED, purpose="other")) == first
    assert len(world.log.told()) == 1


def test_a_file_that_another_process_keeps_first_stays_as_it_is() -> None:
    world = World()
    world.log.rivals = [("file-1", replace(CREATED, purpose="first"))]
    assert world.keep("file-1").facts.purpose == "first"


def test_a_log_that_is_away_keeps_nothing() -> None:
    world = World()
    world.log.unavailable = True
    with pytest.raises(LogUnavailable):
        world.keep("file-1")
    world.log.unavailable = False
    assert world.log.told() == ()


def test_a_file_that_was_never_kept_or_was_deleted_is_not_found() -> None:
    world = _files(2)
    world.delete("file-1")
    for name in ("file-1", "file-none"):
        with pytest.raises(FileNotFound, match=f"file {name} does not exist"):
            world.files.load(FileId(name))
        with pytest.raises(FileNotFound, match=f"file {name} does not exist"):
            world.delete(name)
    assert world.files.load(FileId("file-2")).version == 1


def test_a_file_is_not_found_from_the_instant_at_which_it_expires() -> None:
    world = World()
    world.keep("file-1", replace(CREATED, expires_at=second(5)))
    world.log.clock.seconds = 4.999999
    assert world.files.load(ONE).facts.expires_at == second(5)
    world.log.clock.seconds = 5
    with pytest.raises(FileNotFound):
        world.files.load(ONE)
    assert world.files.page(limit=9).rows == ()


def test_a_deletion_is_recorded() -> None:
    world = _files(1)
    world.delete("file-1")
    recorded = world.log.told()[-1]
    assert (recorded.stream, recorded.version, recorded.type) == ("file-1", 2, "FileDeleted")
    assert (recorded.correlation_id, recorded.event_id) == ("req-2", f"{2:032x}")


def test_of_two_deletions_the_second_finds_no_file() -> None:
    world = _files(1)
    world.log.rivals = [("file-1", FileDeleted())]
    with pytest.raises(FileNotFound):
        world.delete("file-1")
    assert len(world.log.told()) == 2


def test_deletion_goes_on_after_events_of_other_writers() -> None:
    world = _files(1)
    world.log.rivals = [("file-1", CREATED)] * (TRIES_MAX - 1)
    world.delete("file-1")
    assert world.log.told()[-1].type == "FileDeleted"


def test_deletion_gives_up_when_every_try_is_overtaken() -> None:
    world = _files(1)
    world.log.rivals = [("file-1", CREATED)] * (TRIES_MAX + 2)
    with pytest.raises(ConcurrencyConflict):
        world.delete("file-1")
    assert len(world.log.rivals) == 2


def test_a_page_has_the_newest_files_first() -> None:
    world = _files(3)
    page = world.files.page(limit=2)
    assert ([file.id for file in page.rows], page.has_more) == (["file-3", "file-2"], True)
    page = world.files.page(limit=2, after=FileId("file-2"))
    assert ([file.id for file in page.rows], page.has_more) == (["file-1"], False)


def test_a_page_can_have_the_oldest_files_first() -> None:
    world = _files(3)
    page = world.files.page(limit=3, oldest_first=True)
    assert ([file.id for file in page.rows], page.has_more) == (
        ["file-1", "file-2", "file-3"],
        False,
    )
    page = world.files.page(limit=1, oldest_first=True, after=ONE)
    assert ([file.id for file in page.rows], page.has_more) == (["file-2"], True)


def test_a_page_leaves_out_deleted_and_expired_files() -> None:
    world = _files(3)
    world.keep("file-4", replace(CREATED, expires_at=second(50)))
    world.delete("file-2")
    found = world.files.page(limit=3)
    assert ([file.id for file in found.rows], found.has_more) == (
        ["file-4", "file-3", "file-1"],
        False,
    )
    world.log.clock.seconds = 50
    assert [file.id for file in world.files.page(limit=9).rows] == ["file-3", "file-1"]


def test_a_page_has_files_of_any_of_the_purposes() -> None:
    world = World()
    for number, purpose in enumerate(("batch", "batch_output", "vision"), start=1):
        world.keep(f"file-{number}", replace(CREATED, purpose=purpose))
    world.delete("file-1")
    world.keep("file-4")

    def names(*purposes: str) -> list[str]:
        return [file.id for file in world.files.page(limit=9, purposes=purposes).rows]

    assert names() == ["file-4", "file-3", "file-2"]
    assert names("batch") == ["file-4"]
    assert names("vision", "batch") == ["file-4", "file-3"]
    assert names("evals") == []


def test_a_page_has_files_of_one_owner() -> None:
    world = _files(1)
    world.keep("file-2", replace(CREATED, owner=Owner("bob")))
    assert [file.id for file in world.files.page(limit=9, owner=Owner("bob")).rows] == ["file-2"]
    assert [file.id for file in world.files.page(limit=9, owner=Owner("alice")).rows] == ["file-1"]


def test_a_page_is_filled_beyond_many_files_that_are_left_out() -> None:
    world = _files(1)
    for at in range(STREAMS_AT_ONCE + 1):
        world.log.tell(f"file-x{at}", CREATED, FileDeleted())
    page = world.files.page(limit=1)
    assert ([file.id for file in page.rows], page.has_more) == (["file-1"], False)
