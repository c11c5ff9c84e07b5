"""Workers that never come back: the others do what they held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from domain.values import JobId

if TYPE_CHECKING:
    from tests.simulation.world import World

#: Rounds after which no dead worker holds a job that another one can do; a heartbeat lasts 15.
ROUNDS_MAX = 30


def outlive_the_dead(world: World) -> None:
    """Let the workers that live do what the dead held, as if those never came back.

    Raises:
        AssertionError: A job stays with a dead worker.
    """
    for _ in range(ROUNDS_MAX):
        if not _held_by_the_dead(world):
            return
        world.round(restarts=False)
    left = _held_by_the_dead(world)
    assert not left, f"in the hands of the dead: {left}"


def _held_by_the_dead(world: World) -> list[JobId]:
    """Return the open jobs of dead workers that a worker which lives can do."""
    able = [one for one in world.workers if one.alive and not one.draining.is_set()]
    dead = [one.consumer for one in world.workers if not one.alive]
    models = {None, *(one.model for one in able)}
    jobs = (
        one for one in world.log.views.unfinished() if able and one.submitted.bound_model in models
    )
    return [one.id for one in jobs if world.broker.queue.is_unacked_by(one.id, dead)]
