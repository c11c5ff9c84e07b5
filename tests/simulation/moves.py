"""The moves of a simulation; each is a few small numbers, drawn by Hypothesis or a walk.

Hypothesis draws them in ``machine``, so that a failure shrinks; ``walk`` draws them from a seeded
generator, which is faster. A number chooses among however many there are just now.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from domain.job.request_dedup import Readership
from domain.values import AfterCondition, Predecessor, Priority
from tests.simulation.engine import MODELS, OUTAGE_S_MAX, REFUSED
from tests.simulation.follow_ups import HOOK
from tests.simulation.steps import Order, Process
from tests.simulation.workers import Worker
from tests.simulation.world import World

#: Numbers are below this.
NUMBERS = 1 << 16
#: Answers of 0 to 7 tokens, and a prompt that is refused.
PROMPTS = (*("x" * length for length in (13, 10, 1, 15, 8)), REFUSED)
#: Lines of batches; their answers have at most as many tokens as ``PlainLines`` allows.
LINES = ("x" * 13, "x" * 10, "x", "x" * 8, "bad")
KEYS = (None, None, None, "k1", "k2")
HOLDS_S = (0.5, 3.0, 20.0)
LIMITS_S = (None, None, None, None, 1.0, 40.0)
#: How long a unique job is the only one of its kind.
UNIQUE_S = 20.0
BINDINGS = (None, None, None, *MODELS)
PRIORITIES = (Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BATCH)


class Draws:
    """Takes one number apart into several small ones."""

    def __init__(self, number: int) -> None:
        self._left = number

    def below(self, limit: int) -> int:
        self._left, drawn = divmod(self._left, limit)
        return drawn


def submit(world: World, number: int) -> None:
    """Accept a job, with all kinds of wishes."""
    draws = Draws(number)
    api = world.api(draws.below(2))
    prompt, key = PROMPTS[draws.below(len(PROMPTS))], KEYS[draws.below(len(KEYS))]
    world.submit(
        api,
        prompt,
        key=key,
        priority=PRIORITIES[draws.below(len(PRIORITIES))],
        start_within_s=LIMITS_S[draws.below(len(LIMITS_S))],
        finish_within_s=LIMITS_S[draws.below(len(LIMITS_S))],
        attempts_max=4 - draws.below(4),
        agent=(None, "a", "b")[draws.below(3)],
        bound_model=BINDINGS[number % len(BINDINGS)],
        waits_for_model=number % 2 == 0,
        webhook=HOOK if number % 3 == 0 else None,
        unique_s=UNIQUE_S if key is None and number % 5 == 0 else None,
    )


def hold(world: World, number: int) -> None:
    """Accept a job that may start later."""
    draws = Draws(number)
    world.submit(
        world.api(draws.below(2)),
        PROMPTS[draws.below(len(PROMPTS))],
        start_after_s=HOLDS_S[draws.below(len(HOLDS_S))],
        start_within_s=LIMITS_S[draws.below(len(LIMITS_S))],
        webhook=HOOK if number % 3 == 0 else None,
    )


def chain(world: World, number: int) -> None:
    """Accept a job that waits for one or two others, and may have their answers in its prompt."""
    draws = Draws(number)
    jobs = list(world.truth.jobs)
    if not jobs:
        return
    conditions = tuple(AfterCondition)
    after = tuple(
        Predecessor(
            name=str(place),
            job=jobs[-1 - draws.below(len(jobs))],
            condition=conditions[draws.below(2)],
        )
        for place in range(1 + draws.below(2))
    )
    world.submit(
        world.api(draws.below(2)),
        "x" * (1 + draws.below(5)) + "{{after.0.text}}",
        after=after,
        is_skippable=number % 2 == 0,
    )


def release(world: World, number: int) -> None:
    """Look for held jobs that are due."""
    world.release(world.api(number))


def plan(world: World, number: int) -> None:
    """Add a schedule."""
    world.nights.add(world.api(number))


def fire(world: World, number: int) -> None:
    """Look for schedules that are due, and perhaps die on the way."""
    draws = Draws(number)
    api = world.api(draws.below(2))
    world.nights.fire(api)
    task = api.tasks[-1]
    for _ in range(draws.below(24)):
        if task.is_ready:
            world.step(api, task)
            world.check()
    if not draws.below(8):
        world.crash(api)


def sleep(world: World, number: int) -> None:
    """Let the machine sleep for some minutes."""
    world.tick(60.0 * (1 + number % 4))


def batch(world: World, number: int) -> None:
    """Accept a batch of a few lines, or cancel one."""
    draws = Draws(number)
    api = world.api(draws.below(2))
    if not draws.below(6):
        world.follow_ups.cancel(api, number)
        return
    lines = [LINES[draws.below(len(LINES))] for _ in range(1 + draws.below(5))]
    world.follow_ups.submit(api, lines, hook=HOOK if draws.below(2) else None)


def follow_up(world: World, number: int) -> None:
    """Let an api submit lines, look for ends, or send messages, or change the receiver."""
    draws = Draws(number)
    api, follow_ups = world.api(draws.below(2)), world.follow_ups
    match draws.below(8):
        case 0 | 1 | 2:
            follow_ups.drive(api)
        case 3 | 4:
            follow_ups.collect(api)
        case 5 | 6:
            follow_ups.deliver(api)
        case _:
            follow_ups.refuses = not follow_ups.refuses
    if api.tasks and (task := api.tasks[-1]):
        for _ in range(draws.below(24)):
            if task.is_ready:
                world.step(api, task)
                world.check()
        if not draws.below(8):
            world.crash(api)


def repeat(world: World, number: int) -> None:
    """Ask again for what was asked."""
    draws = Draws(number)
    api = world.api(draws.below(2))
    states = tuple(Readership)
    world.repeat(api, PROMPTS[draws.below(len(PROMPTS))], state=states[draws.below(len(states))])


def cancel(world: World, number: int) -> None:
    """Ask for the end of a job."""
    draws = Draws(number)
    api, jobs = world.api(draws.below(2)), list(world.truth.jobs)
    if jobs:
        world.cancel(api, jobs[-1 - draws.below(len(jobs))])


def retry(world: World, number: int) -> None:
    """Try a job again that ended without an answer."""
    draws = Draws(number)
    api, jobs = world.api(draws.below(2)), world.failed_jobs()
    if jobs:
        world.retry(api, jobs[-1 - draws.below(len(jobs))])


def expire(world: World, number: int) -> None:
    """Look for jobs that are late."""
    world.expire(world.api(number))


def strand(world: World, number: int) -> None:
    """Look for jobs whose model no worker has."""
    world.strand(world.api(number))


def swap(world: World, number: int) -> None:
    """Have a worker drain and come back with a model, or crash and come back with it."""
    draws = Draws(number)
    place, model = draws.below(2), MODELS[draws.below(2)]
    world.swap(place, model)
    if draws.below(3) and world.workers[place].alive:
        world.crash(world.workers[place])
        world.restart(place)


def read(world: World, number: int) -> None:
    """Follow a job from now on."""
    jobs = world.open_jobs()
    if jobs:
        world.read(jobs[-1 - number % len(jobs)])


def look(world: World, number: int) -> None:
    """Make a reader without recent items read the log."""
    if readers := world.truth.readers:
        reader = readers[-1 - number % len(readers)]
        reader.look_into_log(world.log, world.broker.items)


def work(world: World, number: int) -> None:
    """Run ready tasks for up to 32 steps, in an order drawn from the number."""
    drawn = random.Random(number)
    for _ in range(1 + number % 32):
        if drawn.random() < 0.25:
            _upkeep(world, drawn)
        elif ready := world.ready:
            world.step(*drawn.choice(ready))
        world.check()


def go_on(world: World, number: int) -> None:
    """Let one use case go on for up to 16 port calls while all others stand still."""
    draws = Draws(number)
    if not (ready := world.ready):
        return
    process, task = ready[draws.below(len(ready))]
    for _ in range(1 + draws.below(16)):
        if task.is_ready:
            world.step(process, task)
            world.check()


def compute(world: World, number: int) -> None:
    """Let an engine compute, and perhaps publish."""
    draws = Draws(number)
    if worker := living_worker(world, draws):
        worker.engine.advance(draws.below(5))
        if draws.below(4):
            worker.engine.publish(loses_reply=draws.below(4) == 1)


def reconciled(world: World, number: int) -> None:
    """Check what a reconciliation leaves."""
    del number
    world.reconciled()


def tick(world: World, number: int) -> None:
    """Let time pass."""
    world.tick((0.5, 3.0, 16.0)[number % 3])


def lose_reply(world: World, number: int) -> None:
    """Let the next call to the broker have its effect and fail."""
    if ready := world.ready:
        world.step(*ready[number % len(ready)], Order.LOSE_REPLY)


def lose_fetched(world: World, number: int) -> None:
    """Let what a worker fetched be lost on its way."""
    draws = Draws(number)
    if (worker := living_worker(world, draws)) and world.broker.outage.takes_writes:
        worker.lose_fetched(PRIORITIES[draws.below(len(PRIORITIES))])


def die(world: World, number: int) -> None:
    """Crash a process at the k-th port call from here."""
    draws = Draws(number)
    if not (ready := world.ready):
        return
    process, task = ready[draws.below(len(ready))]
    for _ in range(draws.below(16)):
        if task.is_ready:
            world.step(process, task)
            world.check()
    world.crash(process)


def freeze(world: World, number: int) -> None:
    """Let a worker stand still, or go on."""
    worker = world.workers[number % 2]
    worker.frozen = not worker.frozen


def restart(world: World, number: int) -> None:
    """Start a worker where one died."""
    world.end_drained()
    world.restart(number % 2)


def drain(world: World, number: int) -> None:
    """Ask a worker to stop."""
    if worker := living_worker(world, Draws(number)):
        worker.drain()


def fail_batch(world: World, number: int) -> None:
    """Break a step of an engine."""
    if worker := living_worker(world, Draws(number)):
        worker.engine.fail_batch()


def broker(world: World, number: int) -> None:
    """Let the broker go, or refuse writes, and come back."""
    if not world.broker.outage.takes_writes:
        world.broker.come_back()
    elif number % 2:
        world.broker.go_down()
    else:
        world.broker.refuse_writes()


def long_outage(world: World, number: int) -> None:
    """Let the broker be away, or refuse writes, for longer than an engine waits with its items."""
    draws = Draws(number)
    worker = living_worker(world, draws)
    if worker is None or not world.broker.outage.takes_writes:
        return
    worker.engine.advance(1 + draws.below(4))
    (world.broker.refuse_writes, world.broker.go_down)[draws.below(2)]()
    worker.engine.publish()
    world.tick(OUTAGE_S_MAX)
    worker.engine.publish()
    finish(world, worker)
    if draws.below(4):
        world.broker.come_back()


def broker_data(world: World, number: int) -> None:
    """Let the broker write a snapshot, go back to it, or lose everything."""
    (world.broker.save, world.broker.roll_back, world.broker.flush)[number % 3]()


def disk(world: World, number: int) -> None:
    """Let the log's disk be full, or have room again."""
    del number
    world.log.unavailable = not world.log.unavailable


def change_of_mind(world: World, number: int) -> None:
    """Cancel a job and retry it, and let the cancel message come when it runs again."""
    draws = Draws(number)
    api, worker = world.api(draws.below(2)), living_worker(world, draws)
    if worker is None or not world.broker.outage.takes_writes or world.log.unavailable:
        return
    listen_and_take(world, worker)
    if not (jobs := world.open_jobs()):
        return
    job_id = jobs[-1 - draws.below(len(jobs))]
    world.cancel(api, job_id)
    finish(world, api)
    worker.reconcile()
    finish(world, worker)
    worker.engine.advance(8)
    worker.engine.publish()
    finish(world, worker)
    if job_id in world.failed_jobs():
        world.retry(api, job_id)
        finish(world, api)
    listen_and_take(world, worker)


@dataclass(frozen=True, slots=True)
class Move:
    """Something that may happen, and how often in a walk."""

    do: Callable[[World, int], None]
    weight: int


MOVES = {
    move.do.__name__: move
    for move in (
        Move(submit, 12),
        Move(repeat, 2),
        Move(cancel, 5),
        Move(retry, 6),
        Move(expire, 2),
        Move(read, 5),
        Move(work, 30),
        Move(go_on, 12),
        Move(compute, 8),
        Move(reconciled, 2),
        Move(tick, 6),
        Move(lose_reply, 2),
        Move(die, 4),
        Move(freeze, 4),
        Move(restart, 5),
        Move(drain, 1),
        Move(fail_batch, 2),
        Move(broker, 2),
        Move(long_outage, 1),
        Move(broker_data, 2),
        Move(disk, 1),
        Move(look, 2),
        Move(lose_fetched, 1),
        Move(strand, 2),
        Move(swap, 8),
        Move(batch, 3),
        Move(follow_up, 12),
        # At the end of each walk.
        Move(change_of_mind, 0),
    )
}


#: Moves of the lives that also have nights, where work is held; see ``walk``.
NIGHT_MOVES = {
    move.do.__name__: move
    for move in (
        Move(hold, 12),
        Move(chain, 8),
        Move(release, 8),
        Move(plan, 3),
        Move(fire, 12),
        Move(sleep, 4),
    )
}


def _upkeep(world: World, drawn: random.Random) -> None:
    """What a worker does beside running jobs."""
    worker = drawn.choice(world.workers)
    if worker not in world.processes:
        return
    takes_writes = world.broker.outage.takes_writes
    match drawn.randrange(8):
        case 0 if not world.broker.outage.down:
            worker.receive_signals()
        case 1 if not worker.draining.is_set():
            if takes_writes:
                worker.check_hand()
            worker.reconcile()
        case 2 | 3 | 4 if takes_writes:
            worker.take(drawn.choice(PRIORITIES))
        case _:
            worker.engine.advance(drawn.randrange(4))
            worker.engine.publish()


def listen_and_take(world: World, worker: Worker) -> None:
    """Let a worker take jobs, and then read its messages."""
    for priority in Priority:
        worker.take(priority)
    finish(world, worker)
    while worker.receive_signals():
        finish(world, worker)


def finish(world: World, process: Process) -> None:
    """Run the tasks of a process for up to 64 steps, or until each waits."""
    for _ in range(64):
        if not (ready := [task for task in process.tasks if task.is_ready]):
            return
        world.step(process, ready[0])
        world.check()


def living_worker(world: World, draws: Draws) -> Worker | None:
    """Return the worker of the next draw, if it can go on."""
    worker = world.workers[draws.below(2)]
    return worker if worker in world.processes else None
