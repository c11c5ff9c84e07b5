"""Which jobs have a reader, whatever number of other jobs came since."""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from api.streaming.readers import CLIENT_GONE, ConnectionRegistry
from api.submit import OTHERS_REFUSED
from domain.job.request_dedup import Readership
from domain.values import JobId
from tests.support.builders.api import PATIENCE_S, fake_api
from tests.support.polling import let_tasks_run

LEFT_MAX = 2
JOBS = [JobId(f"job-{number}") for number in range(6)]
jobs = st.sampled_from(JOBS)


class Registry(RuleBasedStateMachine):
    """Against a list of all connections that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = ConnectionRegistry(left_max=LEFT_MAX)
        self.open: list[JobId] = []
        #: Jobs without a reader, the one that was left last at the end.
        self.left: dict[JobId, Readership] = {}
        self.departures: list[tuple[JobId, int]] = []
        self.last: dict[JobId, int] = {}

    @rule(job=jobs)
    def begin(self, job: JobId) -> None:
        self.registry.begin(job)
        self.open.append(job)
        self.left.pop(job, None)

    @precondition(lambda self: self.open)
    @rule(at=st.integers(min_value=0), delivered=st.booleans())
    def end(self, at: int, *, delivered: bool) -> None:
        job = self.open.pop(at % len(self.open))
        departure = self.registry.end(job, delivered=delivered)
        if job in self.open:
            assert departure is None, "another connection reads it"
            return
        assert (departure is None) is delivered
        if departure is not None:
            self.departures.append((job, departure))
            self.last[job] = departure
        self.left[job] = Readership.DELIVERED if delivered else Readership.LOST
        while len(self.left) > LEFT_MAX:
            del self.left[next(iter(self.left))]

    @precondition(lambda self: self.departures)
    @rule(at=st.integers(min_value=0))
    def give_up(self, at: int) -> None:
        job, departure = self.departures.pop(at % len(self.departures))
        is_given_up = self.registry.give_up(job, departure)
        is_last = self.last.get(job) == departure
        if job in self.open:
            assert not is_given_up, "a job with a reader is not cancelled"
        elif job in self.left:
            assert is_given_up is (is_last and self.left[job] is Readership.LOST)
            self.left[job] = Readership.GIVEN_UP if is_given_up else self.left[job]
        else:
            assert is_given_up, "nothing is known of it"

    @invariant()
    def readership_is_known(self) -> None:
        for job in JOBS:
            known = self.left.get(job, Readership.UNKNOWN)
            assert self.registry.state(job) is (Readership.READING if job in self.open else known)


TestRegistry = Registry.TestCase


def test_job_that_is_read_is_not_forgotten_for_newer_ones() -> None:
    registry = ConnectionRegistry(left_max=1)
    for _ in range(2):
        registry.begin(JOBS[0])
    for job in JOBS[1:]:
        registry.begin(job)
        registry.end(job, delivered=True)
    assert registry.state(JOBS[0]) is Readership.READING
    assert registry.end(JOBS[0], delivered=False) is None, "one connection still reads it"
    assert registry.end(JOBS[0], delivered=False) is not None


def test_departure_of_any_last_reader_ends_the_wait() -> None:
    async def check() -> None:
        registry = ConnectionRegistry()
        registry.begin(JOBS[0])
        waiting = asyncio.create_task(registry.wait_for_departure(60))
        await let_tasks_run(1)
        registry.end(JOBS[0], delivered=True)
        await waiting
        await registry.wait_for_departure(0)

    asyncio.run(check())


def test_reading_that_is_abandoned_and_then_revoked_ends_once() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            reading = api.app.readers.begin(job["id"])
            reading.abandon(CLIENT_GONE)
            reading.revoke(OTHERS_REFUSED)
            assert api.app.connections.state(job["id"]) is Readership.LOST
            assert await api.app.background.drain(PATIENCE_S)
            (asked,) = api.log.read_all(types=["JobCancelRequested"])
            assert asked.data == {"reason": CLIENT_GONE}

    asyncio.run(scenario())
