"""A simulated week of one computer: work by day, schedules by night, sleep, and what goes wrong.

A week is a function of its seed. The moves of a walk happen in it at the times of a person: the
computer sleeps at night and between sessions, in the middle of work too. Its power is cut, its disk
is full for hours, its clock is corrected. Once it has run well for a while, nothing may be late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from structlog.testing import capture_logs

from domain.batch.schedules import ScheduleRecords
from domain.events.job import JobCancelled, JobCompleted, JobExpired, JobFailed
from domain.events.subscription import (
    SubscriptionAcknowledged,
    SubscriptionCreated,
    SubscriptionEventParked,
)
from domain.log.codec import decode_recorded
from domain.log.subscriptions import SUBSCRIPTIONS_STREAM, Subscriptions
from domain.values import JobId, rfc3339
from tests.simulation import moves
from tests.simulation.steps import Order, Process
from tests.simulation.walk import BrokenPromise, count_world
from tests.simulation.world import World
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.time import FakeClock

DAYS = 7
HOUR_S = 3600.0
#: Instants of the schedules.
EVERY = timedelta(hours=1)
#: Rounds, of a second each, of a computer that runs well, after which nothing is late: a chain of
#: jobs takes one for each.
PROMPT_ROUNDS = 30
#: How long jobs are held, in seconds.
HOLDS_S = (600.0, 3 * HOUR_S, 10 * HOUR_S, 30 * HOUR_S)
#: What a person and the service do in a session, and how often.
WISHES: dict[Callable[[World, int], None], int] = {
    moves.submit: 5,
    moves.chain: 4,
    moves.batch: 2,
    moves.cancel: 2,
    moves.retry: 2,
    moves.repeat: 1,
    moves.read: 3,
    moves.swap: 2,
    moves.expire: 2,
    moves.strand: 1,
    moves.release: 2,
    moves.fire: 2,
    moves.follow_up: 4,
    moves.compute: 3,
    moves.work: 10,
}
#: What goes wrong in a session, and how often.
FAULTS: dict[Callable[[World, int], None], int] = {
    moves.die: 4,
    moves.freeze: 2,
    moves.restart: 4,
    moves.drain: 1,
    moves.fail_batch: 1,
    moves.broker: 3,
    moves.broker_data: 1,
    moves.lose_reply: 1,
    moves.disk: 2,
}
#: Steps of an api process into a look at the schedules, before it stalls.
STALL_STEPS_MAX = 16
#: Steps of a subscriber without faults until it has dealt with all.
STEPS_MAX = 3000
NAME = "ends"
_ENDS = tuple(kind.__name__ for kind in (JobCompleted, JobFailed, JobCancelled, JobExpired))


class WeekClock(FakeClock):
    """The wall clock of a computer, which is corrected now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.correction_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.correction_s)


class Subscriber:
    """A program that deals with the end of each job, once or more often.

    Attributes:
        dealt: Positions of the events that it has dealt with.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._position = 0
        self._ends: list[int] = []
        self._parked: set[int] = set()
        self.dealt: set[int] = set()
        self.program = Process("subscriber")
        created = SubscriptionCreated(name=NAME, owner=None, types=_ENDS, position=0)
        Subscriptions(world.log, world.ids).create(created, correlation_id="r")

    @property
    def unsettled(self) -> set[int]:
        """The ends that it neither dealt with nor gave up."""
        return set(self._ends) - self.dealt - self._parked

    def read(self) -> None:
        """Begin to fetch events, to deal with each and to acknowledge it."""
        if not self.program.alive:
            self.program = Process("subscriber")
        if not self.program.tasks:
            program = self.program
            program.begin("subscribe", lambda: self._read(program))

    def step(self, order: Order = Order.GO) -> None:
        """Let it go to its next step, or die there."""
        if self.program.tasks:
            self.program.step(self.program.tasks[0], order)

    def catch_up(self) -> None:
        """Read without a fault until nothing is left."""
        for _ in range(STEPS_MAX):
            if not self.program.tasks:
                self.check()
                if not self.unsettled:
                    return
                self.read()
            self.step()
        assert not self.unsettled, f"events that were never delivered: {self.unsettled}"

    def check(self) -> None:
        """Look whether what is acknowledged was dealt with or is parked."""
        for recorded in self._world.log.read_all(after=self._position, limit=10**6):
            self._position = recorded.position
            if recorded.type in _ENDS:
                self._ends.append(recorded.position)
            elif recorded.stream == SUBSCRIPTIONS_STREAM:
                event = decode_recorded(recorded)
                if isinstance(event, SubscriptionEventParked):
                    self._parked.add(event.position)
                elif isinstance(event, SubscriptionAcknowledged):
                    behind = {one for one in self._ends if one <= event.position}
                    assert behind <= self.dealt | self._parked, "acknowledged, never dealt with"

    def _read(self, program: Process) -> None:
        log = program.stepped(self._world.log, "log")
        reader = Subscriptions(log, self._world.ids)
        for event in reader.deliver(None, NAME, limit=3, correlation_id="r"):
            program.pause("deal")
            self.dealt.add(event.position)
            reader.acknowledge(None, NAME, event.position, correlation_id="r")


class Week:
    """One week; a seed decides all of it. Odd ones have two api processes."""

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(f"week {seed}")
        self._clock = WeekClock()
        self.world = World(self._clock, every=EVERY, apis=1 + seed % 2)
        self._subscriber = Subscriber(self.world)
        self.tally: Counter[str] = Counter()
        self.trace: list[str] = []

    def live(self) -> None:
        """Let the days pass, then heal all faults and look at the end."""
        for day in range(DAYS):
            self.trace.append(f"day {day + 1}:")
            for _ in range(self._drawn.randint(3, 5)):
                self._session()
                self._between()
            self._night()
        self.trace.append("heal")
        self._clock.advance(max(HOLDS_S))  # nothing is held any more
        self.world.heal()
        self._subscriber.catch_up()

    def _session(self) -> None:
        """Let a person work for some minutes, and something go wrong in one session of three."""
        if len(self.world.apis) > 1 and self._drawn.random() < 0.5:
            self._do(self._stall)
        names, weights = list(WISHES), list(WISHES.values())
        has_fault = self._drawn.random() < 1 / 3
        for wish in self._drawn.choices(names, weights, k=self._drawn.randint(3, 8)):
            self._do(wish)
            self._subscribe()
            if self._drawn.random() < 0.1:
                self._do(self._hold)
            if self._drawn.random() < 0.03:
                self._do(moves.plan)
            if has_fault and self._drawn.random() < 0.4:
                (fault,) = self._drawn.choices(list(FAULTS), list(FAULTS.values()))
                self._do(fault)
            self.world.tick(self._drawn.choice((1.0, 20.0, 120.0)))

    def _between(self) -> None:
        """What comes after a session: an hour in which all runs, a lid that is closed, no power."""
        match self._drawn.randrange(8):
            case 0:
                self._sleep(self._drawn.uniform(0.5, 3))
            case 1:
                self._cut_power()
            case 2:
                self.world.tick(self._drawn.uniform(0.1, 1) * HOUR_S)  # a fault may last
            case _:
                self._run_well()
                self._correct_clock()
                self.world.tick(self._drawn.uniform(0.2, 2) * HOUR_S)

    def _night(self) -> None:
        """Sleep, or stay awake for the schedules; something may happen to a computer alone."""
        hours = self._drawn.uniform(6, 9)
        if self._drawn.random() < 0.6:
            self._sleep(hours)
        else:
            for _ in range(3):
                self.world.tick(hours / 3 * HOUR_S)
                self._do(self._drawn.choice((moves.fire, moves.release, moves.work)))
                if self._drawn.random() < 0.1:
                    self._cut_power()
        if self._drawn.random() < 0.7:
            self._run_well()

    def _sleep(self, hours: float) -> None:
        """Stand still wherever everything is; no process gives a sign of life."""
        self._note(f"sleep({hours:.1f} h)")
        self.tally["sleeps"] += 1
        self._clock.advance(hours * HOUR_S)
        self.world.check()

    def _cut_power(self) -> None:
        """End all processes at once; the broker loses its last writes or all, the log nothing."""
        self._note("power cut")
        self.tally["power cuts"] += 1
        world = self.world
        for process in (*world.apis, *world.workers):
            if process.alive:
                world.crash(process)
        self._subscriber.program.die()
        self._drawn.choice((world.broker.roll_back, world.broker.flush))()
        world.broker.come_back()
        world.log.unavailable = False
        self._clock.advance(self._drawn.uniform(0.02, 2) * HOUR_S)
        world.check()

    def _correct_clock(self) -> None:
        """Set the clock forward, or back within its hour: instants that passed stay passed."""
        if self._drawn.random() < 0.2:
            now = self._clock.now()
            back_s = min(self._drawn.uniform(0, 600), now.minute * 60 + now.second)
            step_s = self._drawn.choice((-back_s, 90.0, 5400.0))
            self._note(f"clock({step_s:+.0f} s)")
            self.tally["corrections of the clock"] += 1
            self._clock.correction_s += step_s

    def _run_well(self) -> None:
        """Mend what is broken, let all go on for some rounds, and look that nothing is late."""
        self._note("all runs")
        world = self.world
        world.broker.come_back()
        world.log.unavailable = False
        for worker in world.workers:
            worker.frozen = False
        late: str | None = "not yet looked"
        for _ in range(PROMPT_ROUNDS):
            world.nights.fire(world.apis[0])
            world.round()
            world.api(1).frozen = False  # an api that stalled comes back to what others did
            if not (late := self._late()):
                break
        assert not late, f"after {PROMPT_ROUNDS} rounds: {late}"
        self._subscriber.catch_up()
        if self._drawn.random() < 0.5:
            world.broker.save()

    def _late(self) -> str | None:
        """Name a held job whose time has come, or a schedule whose instant has."""
        world, now = self.world, rfc3339(self._clock.now())
        jobs = world.truth.jobs
        for job_id, job in jobs.items():
            is_held = job.held_until is not None and job.end is None and job.held_until <= now
            if is_held and all(jobs[JobId(one.job)].end for one in job.after):
                return f"held beyond its time: {job_id} {job}"
        views = InMemoryBatchViews(world.log)
        for schedule in ScheduleRecords(log=world.log, views=views, ids=world.ids).present():
            if schedule.due_at is not None and schedule.due_at <= now:
                return f"an instant without its job: {schedule}"
        return None

    def _stall(self, world: World, number: int) -> None:
        """Let the second api process stand still while it looks at the schedules."""
        api = world.api(1)
        if not api.frozen:
            world.nights.fire(api)
            task = api.tasks[-1]
            for _ in range(number % STALL_STEPS_MAX):
                if task.is_ready:
                    world.step(api, task)
            api.frozen = True

    def _hold(self, world: World, number: int) -> None:
        draws = moves.Draws(number)
        world.submit(
            world.api(0),
            moves.PROMPTS[draws.below(len(moves.PROMPTS))],
            start_after_s=HOLDS_S[draws.below(len(HOLDS_S))],
        )

    def _subscribe(self) -> None:
        """Let the subscriber go on for some steps, and perhaps die."""
        self._subscriber.read()
        for _ in range(self._drawn.randrange(4)):
            self._subscriber.step(Order.DIE if self._drawn.random() < 0.05 else Order.GO)
        self._subscriber.check()

    def _do(self, move: Callable[[World, int], None]) -> None:
        number = self._drawn.randrange(moves.NUMBERS)
        self._note(f"{move.__name__}({number})")
        move(self.world, number)
        self.world.check()

    def _note(self, what: str) -> None:
        self.trace.append(what)


def live_week(seed: int, tally: Counter[str] | None = None) -> World:
    """Live one week.

    Args:
        seed: All that decides about it.
        tally: Where to count what happened.

    Raises:
        BrokenPromise: Caused by what was objected to.
    """
    week = Week(seed)
    with capture_logs():
        try:
            week.live()
        except BaseException as error:
            raise BrokenPromise(seed, week.trace) from error
        finally:
            week.world.close()
    if tally is not None:
        tally.update(week.tally)
        count_world(week.world, tally)
    return week.world
