"""How far the hash chain of a log fits, from any position on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from domain.events.worker import LogArchived
from domain.log.chain_check import CheckedStretch, check_stretch
from domain.log.record import GENESIS_HASH, EventFilter, LogHead, RecordedEvent
from domain.values import StreamName
from tests.support.builders.job_events import worker_event
from tests.support.builders.log_events import append
from tests.support.fakes.event_log import InMemoryEventLog

GENESIS = LogHead(position=0, hash=GENESIS_HASH)


class _DamagedLog(InMemoryEventLog):
    """A log whose stored events another program has changed or deleted."""

    def __init__(self, events: int = 0) -> None:
        super().__init__()
        self.damage: dict[int, Callable[[RecordedEvent], RecordedEvent | None]] = {}
        if events:
            append(self, "worker-1", *(worker_event() for _ in range(events)))

    def select(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[RecordedEvent, ...]:
        whole = super().select(wanted, after=after, limit=1000)
        stored = (self.damage.get(event.position, _unchanged)(event) for event in whole)
        return tuple(event for event in stored if event is not None)[:limit]

    def head_at(self, position: int) -> LogHead:
        event = self.load(StreamName("worker-1"))[position - 1]
        return LogHead(position=position, hash=event.hash)


def _unchanged(event: RecordedEvent) -> RecordedEvent | None:
    return event


def _deleted(event: RecordedEvent) -> RecordedEvent | None:
    del event
    return None


def _rewritten(event: RecordedEvent) -> RecordedEvent | None:
    return replace(event, data={"worker": "another"})


def _rehashed(event: RecordedEvent) -> RecordedEvent | None:
    changed = replace(event, data={"worker": "another"})
    return replace(changed, hash=changed.computed_hash())


def archive(log: _DamagedLog, through: int) -> None:
    """Record that the events up to a position are in an archive."""
    archived = LogArchived(
        first_position=1,
        last_position=through,
        base_hash=GENESIS_HASH,
        last_hash=log.head_at(through).hash,
        file="a",
    )
    append(log, "log", archived)


@pytest.mark.parametrize("after", [-1, 0, 5])
def test_an_empty_log_fits(after: int) -> None:
    assert check_stretch(_DamagedLog(), after=after, limit=10) == CheckedStretch(
        before=GENESIS, through=GENESIS, head=GENESIS, archived_through=0, fault=None
    )


@pytest.mark.parametrize(
    ("after", "limit", "before", "through"),
    [
        (-5, 2, 0, 2),
        (0, 1, 0, 1),
        (0, 5, 0, 5),
        (0, 99, 0, 5),
        (1, 2, 1, 3),
        (2, 3, 2, 5),
        (4, 9, 4, 5),
        (5, 9, 5, 5),
        (77, 9, 5, 5),
    ],
)
def test_a_stretch_begins_behind_a_position_and_has_as_many_events_as_wanted(
    after: int, limit: int, before: int, through: int
) -> None:
    log = _DamagedLog(events=5)
    found = check_stretch(log, after=after, limit=limit)
    assert found == CheckedStretch(
        before=log.head_at(before) if before else GENESIS,
        through=log.head_at(through),
        head=log.head_at(5),
        archived_through=0,
    )


@pytest.mark.parametrize(
    ("damage", "at", "through", "reason"),
    [
        (_rewritten, 3, 2, "the content does not match its hash"),
        (_rehashed, 4, 3, "prev_hash is not the hash of the event before"),
        (_deleted, 4, 2, "expected position 3"),
    ],
)
def test_the_check_ends_at_the_first_event_that_does_not_fit(
    damage: Callable[[RecordedEvent], RecordedEvent | None], at: int, through: int, reason: str
) -> None:
    log = _DamagedLog(events=5)
    log.damage[3] = damage
    found = check_stretch(log, after=0, limit=10)
    assert found.fault is not None
    assert (found.fault.position, found.through.position) == (at, through)
    assert reason in str(found.fault)
    assert (found.before, found.head) == (GENESIS, log.head_at(5))
    assert check_stretch(log, after=0, limit=2).fault is None


def test_the_first_event_must_follow_the_one_before_the_stretch() -> None:
    log = _DamagedLog(events=5)
    log.damage[3] = _rehashed
    found = check_stretch(log, after=3, limit=10)
    assert found.fault is not None
    assert found.fault.position == 4
    assert found.before == found.through
    assert found.before.position == 3
    assert check_stretch(log, after=4, limit=10).fault is None


def test_a_stretch_cannot_begin_behind_an_event_that_is_missing() -> None:
    log = _DamagedLog(events=5)
    log.damage[3] = _deleted
    found = check_stretch(log, after=3, limit=10)
    assert found.fault is not None
    assert found.fault.position == 3
    assert (found.before, found.through) == (GENESIS, GENESIS)


def test_a_stretch_cannot_begin_behind_the_last_event_if_that_is_missing() -> None:
    log = _DamagedLog(events=5)
    log.damage[5] = _deleted
    found = check_stretch(log, after=5, limit=10)
    assert found.fault is not None
    assert (found.fault.position, found.through) == (5, GENESIS)


@pytest.mark.parametrize(("after", "before"), [(0, 2), (2, 2), (3, 3)])
def test_a_check_begins_behind_the_last_archived_event(after: int, before: int) -> None:
    log = _DamagedLog(events=5)
    archive(log, through=2)
    log.damage = {1: _deleted, 2: _deleted}
    found = check_stretch(log, after=after, limit=2)
    assert found == CheckedStretch(
        before=log.head_at(before),
        through=log.head_at(before + 2),
        head=log.head(),
        archived_through=2,
    )


def test_the_latest_archive_counts_and_its_hash_is_what_the_log_follows() -> None:
    log = _DamagedLog(events=5)
    archive(log, through=1)
    archive(log, through=3)
    found = check_stretch(log, after=0, limit=10)
    assert (found.before, found.archived_through) == (log.head_at(3), 3)
    assert (found.through, found.fault) == (log.head(), None)
    log.damage[4] = lambda event: replace(event, prev_hash=GENESIS_HASH)
    broken = check_stretch(log, after=0, limit=10)
    assert broken.fault is not None
    assert (broken.fault.position, broken.through) == (4, log.head_at(3))
