from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import structlog

from api.loops import webhooks as webhook_thread
from api.loops.webhooks import WebhookThread
from domain.values import Owner, StreamName
from domain.webhook.delivery import AT_ONCE, DeliveryResult, Webhook, WebhookState
from domain.webhook.send import WebhookCollector
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from tests.support.fakes.webhooks import InMemoryWebhookStore
from tests.support.polling import let_tasks_run, scaled

PATIENCE_S = 60.0


class Gate:
    """A sender whose hosts named ``dead`` never answer; tells a test of every try."""

    def __init__(self) -> None:
        self.seen: list[Webhook] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.closed = False
        self.broken = 0
        self.hanging: Counter[Owner | None] = Counter()
        self._changed = threading.Condition()

    async def send(self, webhook: Webhook) -> DeliveryResult:
        host = webhook.host.partition(".")[0]
        with self._changed:
            self.seen.append(webhook)
            self.running[host] += 1
            self.most[host] = max(self.most[host], self.running[host])
            self._changed.notify_all()
        try:
            if host == "dead":
                await asyncio.Event().wait()
            await let_tasks_run(1)
            if self.broken:
                self.broken -= 1
                raise ZeroDivisionError
            return DeliveryResult(status=200)
        finally:
            self.running[host] -= 1

    def hanging_lookups(self) -> Counter[Owner | None]:
        return self.hanging

    async def close(self) -> None:
        self.closed = True

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, scaled(PATIENCE_S)), self.seen

    def count(self, host: str) -> int:
        return sum(one.host.startswith(host) for one in self.seen)


class World:
    def __init__(self) -> None:
        self.clock, self.store, self.gate = FakeClock(), NotifyingStore(), Gate()
        self.log = InMemoryEventLog(self.clock)
        self.collector = WebhookCollector(
            log=self.log,
            store=self.store,
            ids=SequentialIds(),
            clock=self.clock,
            describe_job=lambda view: {"id": view.id},
            describe_batch=lambda batch: {"id": batch.id},
        )

    def end_job(self, number: int, host: str, owner: str | None = None) -> None:
        key = None if owner is None else Owner(owner)
        facts = replace(submitted(), webhook=f"https://{host}.example/", owner=key)
        events = [draft(facts), draft(started()), draft(completed())]
        self.log.append(StreamName(f"job-{number}"), events, expected_version=0)

    @contextmanager
    def running(self, at_once: int = AT_ONCE) -> Iterator[WebhookThread]:
        thread = WebhookThread(
            self.collector,
            lambda: self.gate,
            logger=structlog.get_logger("test"),
            at_once=at_once,
        )
        thread.start()
        try:
            yield thread
        finally:
            thread.close()


class NotifyingStore(InMemoryWebhookStore):
    """Lets a test wait until a number of webhooks is over, instead of looking again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._settled = threading.Condition()

    def settle(self, *args: object, **kwargs: object) -> bool:
        with self._settled:
            done = super().settle(*args, **kwargs)  # type: ignore[arg-type]  # handed on
            self._settled.notify_all()
        return done

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._settled:
            assert self._settled.wait_for(condition, scaled(PATIENCE_S)), self.rows

    def delivered(self) -> int:
        return sum(one.state is WebhookState.DELIVERED for one in list(self.rows.values()))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_thread, "POLL_S", 0.01)
    monkeypatch.setattr(webhook_thread, "CLOSE_S", 0.01)


def test_what_ends_before_and_while_it_runs_is_told() -> None:
    world = World()
    world.end_job(1, "a")
    with world.running():
        world.store.wait_until(lambda: world.store.delivered() == 1)
        world.end_job(2, "b")
        world.store.wait_until(lambda: world.store.delivered() == 2)
    assert [one.attempts for one in world.gate.seen] == [1, 1]
    assert world.gate.closed


def test_a_dead_receiver_holds_up_no_other_receiver() -> None:
    world = World()
    for number in range(20):
        world.end_job(number, "dead")
    for number in range(20, 30):
        world.end_job(number, "alive")
    with world.running(8):
        world.gate.wait_for(lambda: world.gate.count("dead") == 4)
        world.store.wait_until(lambda: world.store.delivered() == 10)
        # Its half of the places is taken for as long as its tries last.
        assert world.gate.count("dead") == 4
    assert world.gate.most["alive"] <= 4
    assert {one.state for one in world.store.rows.values() if one.host.startswith("dead")} == {
        WebhookState.PENDING
    }


def test_no_more_are_under_way_than_the_limit() -> None:
    world = World()
    for number in range(12):
        world.end_job(number, f"dead.{number}")
    with world.running(5):
        world.gate.wait_for(lambda: world.gate.count("dead") == 5)
    assert world.gate.count("dead") == world.gate.most["dead"] == 5


def test_dead_receivers_of_one_key_leave_places_for_those_of_another() -> None:
    world = World()
    for number in range(80):
        world.end_job(number, f"dead.{number % 20}", "alice")
    with world.running():
        world.gate.wait_for(lambda: world.gate.count("dead") == 32)
        world.end_job(80, "alive", "bob")
        world.store.wait_until(lambda: world.store.delivered() == 1)
        # None of hers has ended, and she got no more places.
        assert world.gate.running["dead"] == world.gate.count("dead") == 32


def test_more_due_hosts_of_one_key_than_are_read_hide_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook_thread, "HOSTS_MAX", 4)
    world = World()
    for number in range(30):
        world.end_job(number, f"dead.{number}", "alice")
    world.end_job(30, "later", "bob")
    with world.running(8):
        world.store.wait_until(lambda: world.store.delivered() == 1)


def test_dead_receiver_of_a_key_leaves_places_for_its_others() -> None:
    world = World()
    for number in range(20):
        world.end_job(number, "dead", "alice")
    world.end_job(20, "alive", "alice")
    with world.running(8):
        # She may have four of the eight places, and each of her hosts half of what she has left.
        world.gate.wait_for(lambda: world.gate.count("dead") == 2)
        world.store.wait_until(lambda: world.store.delivered() == 1)
        assert world.gate.count("dead") == 2


def test_last_place_is_left_for_a_key_without_tries() -> None:
    world = World()
    jobs = (("a", "alice"), ("a", "alice"), ("b", "alice"), ("c", "bob"), ("d", "carol"))
    for number, (host, owner) in enumerate(jobs):
        world.end_job(number, f"dead.{host}", owner)
    with world.running(4):
        world.gate.wait_for(lambda: world.gate.count("dead") == 3)
        world.end_job(9, "dead.a", "dave")
        world.gate.wait_for(lambda: world.gate.count("dead") == 4)
    assert [one.owner for one in world.gate.seen] == ["alice", "bob", "carol", "dave"]


def test_lookup_that_outlives_its_try_holds_the_place_of_the_try() -> None:
    world = World()
    world.gate.hanging[Owner("alice")] = 3
    for number in range(9):
        world.end_job(number, f"dead.{number}", "alice")
    with world.running(11):
        # Of 11 places 3 are taken, and she leaves as many free as she holds.
        world.gate.wait_for(lambda: world.gate.count("dead") == 3)
        world.end_job(9, "alive", "bob")
        world.store.wait_until(lambda: world.store.delivered() == 1)
        assert world.gate.count("dead") == 3


def test_a_store_that_is_away_is_waited_for() -> None:
    world = World()
    world.store.unavailable = True
    world.end_job(1, "a")
    with world.running():
        world.store.unavailable = False
        world.store.wait_until(lambda: world.store.delivered() == 1)


def test_a_sender_that_breaks_is_a_failed_try() -> None:
    world = World()
    world.gate.broken = 1
    world.end_job(1, "a")
    with world.running():
        world.store.wait_until(
            lambda: any(one.error is not None for one in world.store.rows.values())
        )
        (shown,) = world.store.rows.values()
        assert shown.error is not None
        assert "ZeroDivisionError" in shown.error
        assert shown.state is WebhookState.PENDING
        world.clock.advance(3600)
        world.store.wait_until(lambda: world.store.delivered() == 1)
    assert world.gate.seen[0].id == world.gate.seen[1].id


def test_a_try_that_is_cut_off_at_the_end_is_left_to_the_next_process() -> None:
    world = World()
    world.end_job(1, "dead")
    with world.running():
        world.gate.wait_for(lambda: world.gate.count("dead") == 1)
    (row,) = world.store.rows.values()
    assert (row.state, row.attempts) == (WebhookState.PENDING, 1)
    world.clock.advance(3600)
    with world.running():
        world.gate.wait_for(lambda: world.gate.count("dead") == 2)
    assert len({one.id for one in world.gate.seen}) == 1
