"""What may happen to jobs with labels, and to answers that are continued."""

from __future__ import annotations

from tests.simulation.moves import (
    HOLDS_S,
    PROMPTS,
    Draws,
    Move,
    finish,
    listen_and_take,
    living_worker,
    release,
)
from tests.simulation.world import World

LABELS = ("day", "night")


def tag(world: World, number: int) -> None:
    """Accept a job that filters find by its labels."""
    draws = Draws(number)
    world.submit(
        world.api(draws.below(2)),
        PROMPTS[draws.below(len(PROMPTS))],
        labels=((LABELS[0],), (LABELS[1],), LABELS)[draws.below(3)],
        start_after_s=(None, None, HOLDS_S[2])[draws.below(3)],
    )


def change_all(world: World, number: int) -> None:
    """Cancel or retry the jobs of a label, or look them up."""
    draws = Draws(number)
    api, label = world.api(draws.below(2)), LABELS[draws.below(2)]
    world.change_all(api, label, retries=not draws.below(2), is_dry=not draws.below(4))


def fork(world: World, number: int) -> None:
    """Continue an answer after some of its tokens, once there is one."""
    draws = Draws(number)
    worker = living_worker(world, draws)
    if worker is not None and not world.answers() and world.broker.outage.takes_writes:
        listen_and_take(world, worker)
        worker.engine.advance(8)
        worker.engine.publish()
        finish(world, worker)
    if answers := world.answers():
        parent, length = answers[-1 - draws.below(len(answers))]
        world.fork(world.api(draws.below(2)), parent, draws.below(length + 1))


#: Moves of the lives that also have labels and forks; see ``walk``.
LABEL_MOVES = {
    move.do.__name__: move
    for move in (Move(tag, 12), Move(change_all, 8), Move(fork, 16), Move(release, 4))
}
