"""Two programs read one subscription through two apis; each of the four dies between any two steps.

The promise: what is acknowledged was dealt with or is parked, and in the end each event is one of
both. A program that cannot deal with an event dies of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from domain.events.job import JobCancelRequested
from domain.events.subscription import (
    SubscriptionAcknowledged,
    SubscriptionCreated,
    SubscriptionEventParked,
)
from domain.log import subscriptions as module
from domain.log.codec import decode_recorded
from domain.log.subscriptions import SUBSCRIPTIONS_STREAM, Subscription, Subscriptions
from domain.values import StreamName
from tests.simulation.planted import PLANTED_IN_WEEKS
from tests.simulation.steps import Order, Process
from tests.support.builders.job_events import draft, submitted
from tests.support.day_and_night import by_day
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds

LIVES = by_day(60, night=200)
STEPS = 150
#: Rounds without crashes after which every event is settled: each may need all its deliveries.
ROUNDS_MAX = 400
EVENTS = 12
NAME = "reader"
WANTED = SubscriptionCreated(name=NAME, owner=None, types=("JobCancelRequested",), position=0)


class Life:
    """One simulation; a seed decides all of it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.log = InMemoryEventLog(FakeClock())
        self._ids = SequentialIds()
        self._programs = [Process(f"program {number}") for number in range(2)]
        self._dealt: set[int] = set()
        self._happened: list[int] = []
        self._poison: set[int] = set()
        self._append(submitted())
        Subscriptions(self.log, self._ids).create(WANTED, correlation_id="r")

    def run(self) -> None:
        """Let everything happen, then heal all faults and look at the end."""
        for _ in range(STEPS):
            self._move()
            self._check()
        for _ in range(ROUNDS_MAX):
            if not self._unsettled():
                break
            self._round()
            self._check()
        assert not self._unsettled(), "an event was never settled"
        parked = {one.position for one in self._reader().parked}
        assert self._poison <= parked, "an event that nobody can deal with is not parked"

    def _move(self) -> None:
        if self._random.random() < 0.1 and len(self._happened) < EVENTS:
            self._happen()
        number = self._random.randrange(2)
        if not self._programs[number].alive:
            self._programs[number] = Process(f"program {number}")
        program = self._programs[number]
        if not program.tasks:
            program.begin("read", lambda: self._read(program))
        dies = self._random.random() < 0.03
        program.step(program.tasks[0], Order.DIE if dies else Order.GO)

    def _happen(self) -> None:
        self._append(JobCancelRequested(reason="api"))
        self._happened.append(self.log.head().position)
        if self._random.random() < 0.2:
            self._poison.add(self._happened[-1])

    def _append(self, event: Any) -> None:
        stream = StreamName("job-1")
        self.log.append(stream, [draft(event)], expected_version=len(self.log.load(stream)))

    def _read(self, program: Process) -> None:
        """Fetch, deal with each event, and acknowledge; an api begins anew for each call."""
        log = program.stepped(self.log, "log")
        events = Subscriptions(log, self._ids).deliver(None, NAME, limit=3, correlation_id="r")
        for event in events:
            program.pause("deal")
            if event.position in self._poison:
                return
            self._dealt.add(event.position)
            Subscriptions(log, self._ids).acknowledge(
                None, NAME, event.position, correlation_id="r"
            )

    def _round(self) -> None:
        program = Process("the last program")
        task = program.begin("read", lambda: self._read(program))
        while not task.done:
            program.step(task)

    def _reader(self) -> Subscription:
        return Subscriptions(self.log, self._ids).get(None, NAME)

    def _unsettled(self) -> list[int]:
        parked = {one.position for one in self._reader().parked}
        return [one for one in self._happened if one not in self._dealt | parked]

    def _check(self) -> None:
        """Read the stream without the fold: nothing was acknowledged that was not dealt with."""
        parked: set[int] = set()
        for recorded in self.log.read_all(stream=SUBSCRIPTIONS_STREAM, limit=10**6):
            event = decode_recorded(recorded)
            if isinstance(event, SubscriptionEventParked):
                parked.add(event.position)
            elif isinstance(event, SubscriptionAcknowledged):
                behind = {one for one in self._happened if one <= event.position}
                assert behind <= self._dealt | parked, "acknowledged and never dealt with"


def _live() -> None:
    for seed in range(LIVES):
        Life(seed).run()


def test_what_is_acknowledged_was_dealt_with_or_is_parked() -> None:
    _live()


def _deliveries_are_not_counted() -> AbstractContextManager[Any]:
    return mock.patch.object(module, "DELIVERIES_MAX", 10**9)


def _parking_skips_what_was_delivered() -> AbstractContextManager[Any]:
    advanced = module._advanced

    def later(reader: Subscription, event: Any, at: str) -> Subscription:
        after = advanced(reader, event, at)
        if isinstance(event, SubscriptionEventParked):
            return replace(after, position=after.delivered)
        return after

    return mock.patch.object(module, "_advanced", later)


@pytest.mark.parametrize(
    "plant",
    [
        PLANTED_IN_WEEKS["a delivery counts as acknowledged"],
        _deliveries_are_not_counted,
        _parking_skips_what_was_delivered,
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[], AbstractContextManager[Any]]) -> None:
    with plant(), pytest.raises(AssertionError):
        _live()
