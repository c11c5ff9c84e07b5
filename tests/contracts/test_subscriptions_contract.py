from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest, SubscriptionNotFound, SubscriptionTaken
from domain.events.event import Event
from domain.events.job import JobCancelRequested
from domain.events.subscription import UNSUBSCRIBABLE, SubscriptionCreated
from domain.log.ports import EventLog
from domain.log.record import EventFilter
from domain.log.subscriptions import ALONE_AFTER, DELIVERIES_MAX, Subscriptions
from domain.values import Owner, ParkReason, StreamName
from ops.clock import RandomIds
from tests.support.builders.job_events import draft, started, submitted, worker_event
from tests.support.builders.log_stores import STORES, Store, opened_store
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

JOB = StreamName("job-1")
CANCEL = JobCancelRequested(reason="api")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened_store(request, tmp_path) as opened:
        yield opened


class Reader:
    """A reader, each of whose calls is made by a process of its own."""

    def __init__(
        self, log: EventLog, *types: str, owner: str | None = None, url: str | None = None
    ) -> None:
        self.log, self.owner = log, None if owner is None else Owner(owner)
        self.wanted = SubscriptionCreated(
            name="reader", owner=self.owner, types=types, position=log.head().position, url=url
        )
        self.create()

    @property
    def all(self) -> Subscriptions:
        return Subscriptions(self.log, RandomIds())

    def create(self) -> bool:
        return self.all.create(self.wanted, correlation_id="req-1")

    def fetch(self, limit: int = 100) -> list[int]:
        events = self.all.deliver(self.owner, "reader", limit=limit, correlation_id="req-1")
        return [event.position for event in events]

    def ack(self, position: int) -> None:
        self.all.acknowledge(self.owner, "reader", position, correlation_id="req-1")

    def nack(self, position: int) -> None:
        self.all.park(self.owner, "reader", position, correlation_id="req-1")

    @property
    def parked(self) -> list[tuple[int, ParkReason]]:
        found = self.all.get(self.owner, "reader").parked
        return [(one.position, one.reason) for one in found]

    @property
    def lag(self) -> int:
        return self.all.lag_of(self.all.get(self.owner, "reader"))


def happen(log: EventLog, *events: Event, stream: StreamName = JOB) -> list[int]:
    version = len(log.load(stream))
    recorded = log.append(stream, [draft(one) for one in events], expected_version=version)
    return [one.position for one in recorded]


def test_events_come_again_until_they_are_acknowledged(store: Store) -> None:
    happen(store.log, submitted())
    reader = Reader(store.log)
    assert reader.fetch() == []
    positions = happen(store.log, started(), CANCEL)
    assert reader.lag == 2
    assert reader.fetch() == positions
    assert reader.fetch() == positions
    reader.ack(positions[0])
    reader.ack(positions[0])
    assert reader.fetch() == positions[1:]
    reader.ack(positions[1])
    assert (reader.fetch(), reader.lag) == ([], 0)
    types = [one.type for one in store.log.select(EventFilter(stream=StreamName("subscriptions")))]
    assert types == [
        "SubscriptionCreated",
        *["SubscriptionDelivered"] * 2,
        "SubscriptionAcknowledged",
        "SubscriptionDelivered",
        "SubscriptionAcknowledged",
    ]


def test_only_the_wanted_types_come(store: Store) -> None:
    reader = Reader(store.log, "AttemptStarted")
    _, attempt, _ = happen(store.log, submitted(), started(), CANCEL)
    assert reader.fetch() == [attempt]


def test_a_reader_of_a_key_gets_its_events_alone(store: Store) -> None:
    reader = Reader(store.log, owner="ann")
    happen(store.log, submitted())
    happen(store.log, worker_event(), stream=StreamName("worker-1"))
    assert reader.fetch() == []
    with pytest.raises(SubscriptionNotFound):
        reader.all.get(None, "reader")


def test_an_event_that_is_not_acknowledged_comes_alone_and_is_parked(store: Store) -> None:
    reader = Reader(store.log)
    positions = happen(store.log, submitted(), started(), CANCEL)
    for _ in range(ALONE_AFTER):
        assert reader.fetch() == positions
    for _ in range(DELIVERIES_MAX - ALONE_AFTER):
        assert reader.fetch() == positions[:1]
    assert reader.fetch() == positions[1:2]
    assert reader.parked == [(positions[0], ParkReason.DELIVERIES)]
    reader.ack(positions[1])
    assert reader.fetch() == positions[2:]


def test_a_refused_event_is_parked_and_the_others_come_again(store: Store) -> None:
    reader = Reader(store.log)
    positions = happen(store.log, submitted(), started(), CANCEL)
    with pytest.raises(InvalidRequest):
        reader.nack(positions[1])
    reader.fetch()
    reader.nack(positions[1])
    reader.nack(positions[1])
    assert reader.fetch() == [positions[0], positions[2]]
    assert (reader.parked, reader.lag) == ([(positions[1], ParkReason.NACK)], 2)
    reader.ack(positions[2])
    assert reader.fetch() == []


def test_what_was_not_delivered_cannot_be_acknowledged(store: Store) -> None:
    reader = Reader(store.log)
    first, second = happen(store.log, submitted(), started())
    assert reader.fetch(1) == [first]
    with pytest.raises(InvalidRequest):
        reader.ack(second)


def test_a_repeated_creation_changes_nothing_and_another_one_is_refused(store: Store) -> None:
    reader = Reader(store.log)
    positions = happen(store.log, submitted())
    assert not reader.create()
    assert reader.fetch() == positions
    with pytest.raises(SubscriptionTaken):
        Reader(store.log, "JobSubmitted")
    with pytest.raises(InvalidRequest):
        Reader(store.log, next(iter(UNSUBSCRIBABLE)))
    reader.all.delete(None, "reader", correlation_id="req-1")
    with pytest.raises(SubscriptionNotFound):
        reader.fetch()


@given(st.lists(st.sampled_from(["happen", "fetch", "ack", "ack half", "nack"]), max_size=40))
def test_each_event_is_acknowledged_or_parked_in_the_end(steps: list[str]) -> None:
    log = InMemoryEventLog(FakeClock())
    happen(log, submitted())
    reader = Reader(log, "JobCancelRequested", "AttemptStarted")
    happened: list[int] = []
    settled: set[int] = set()
    given_last: list[int] = []
    for step in [*steps, *["fetch", "ack"] * (len(steps) + 1)]:
        match step:
            case "happen":
                happened += happen(log, CANCEL)
            case "fetch":
                parked = {position for position, _ in reader.parked}
                given_last = reader.fetch(3)
                settled |= {position for position, _ in reader.parked} - parked
                assert (
                    given_last == [one for one in happened if one not in settled][: len(given_last)]
                )
            case "nack" if given_last:
                reader.nack(given_last[0])
                settled.add(given_last[0])
            case "ack" | "ack half" if given_last:
                last = given_last[-1] if step == "ack" else given_last[len(given_last) // 2]
                reader.ack(last)
                settled |= {one for one in happened if one <= last}
    assert settled == set(happened)
    assert reader.lag == 0
