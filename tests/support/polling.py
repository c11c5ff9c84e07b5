"""How tests wait: for a value that they accept, never for a time. Only this module reads clocks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from typing import TypeVar

#: Longest wait for something that is quick on an idle machine.
WITHIN_S = 60.0
#: Environment variable that holds how many times slower than an idle machine this run is.
SLOWNESS = "TESTS_SLOWNESS"
SLOWNESS_MAX = 20.0
#: Duration of the calibrated work on an idle machine.
_IDLE_S = 0.1
_STEPS = 1_000_000
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.001, 0.02
_SHOWN_MAX = 4000

T = TypeVar("T")
_Errors = type[Exception] | tuple[type[Exception], ...]


def wait_until(
    look: Callable[[], T | None],
    accept: Callable[[T], object] = bool,
    *,
    within_s: float = WITHIN_S,
    what: str = "",
    ignore: _Errors = (),
    describe: Callable[[], object] | None = None,
    look_every_s: float = _PAUSE_MAX_S,
) -> T:
    """Look until the value is accepted, and return that very value.

    Args:
        look: Returns the value; None counts as "not yet".
        accept: Whether the value is the awaited one; by default a true value.
        within_s: Longest wait on an idle machine.
        what: What is awaited, for the message of the failure.
        ignore: Errors of ``look`` that count as "not yet".
        describe: Adds to that message, such as the log of a service.
        look_every_s: Longest pause between two looks.

    Raises:
        AssertionError: No value was accepted in time; shows the last value or error.
    """
    looks = _looks(look, accept, within_s, what, ignore, describe, look_every_s)
    while True:
        try:
            pause_s = next(looks)
        except StopIteration as end:
            value: T = end.value
            return value
        time.sleep(pause_s)


async def eventually(
    look: Callable[[], T | None],
    accept: Callable[[T], object] = bool,
    *,
    within_s: float = WITHIN_S,
    what: str = "",
) -> T:
    """Do what ``wait_until`` does, while the tasks of the loop run."""
    looks = _looks(look, accept, within_s, what, (), None, _PAUSE_MAX_S)
    while True:
        try:
            pause_s = next(looks)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(pause_s)


async def let_tasks_run(turns: int = 10) -> None:
    """Give each task of the loop that is ready so many turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


def scaled(limit_s: float) -> float:
    """Return a limit for an idle machine as a limit for the machine of this run."""
    return limit_s * float(os.environ.get(SLOWNESS, "1"))


def unscaled(limit_s: float, *, reason: str) -> float:
    """Return a time to wait that is itself the behaviour, such as one in which nothing happens."""
    del reason
    return limit_s


def measured_slowness() -> float:
    """Measure how many times longer than on an idle machine a piece of work takes."""
    begun, number = now_s(), 0
    for step in range(_STEPS):
        number = (number * 31 + step) & 0xFFFF_FFFF
    return min(max(1.0, (now_s() - begun) / _IDLE_S), SLOWNESS_MAX)


def now_s() -> float:
    """Return the monotonic clock, for instants that are compared or reported, not waited for."""
    return time.monotonic()


def pause(seconds: float, *, reason: str) -> None:
    """Stand still for a time that is itself the behaviour of a stand-in or of a fault."""
    del reason
    time.sleep(seconds)


async def pause_task(seconds: float, *, reason: str) -> None:
    """Do what ``pause`` does in a task."""
    del reason
    await asyncio.sleep(seconds)


def _looks(
    look: Callable[[], T | None],
    accept: Callable[[T], object],
    within_s: float,
    what: str,
    ignore: _Errors,
    describe: Callable[[], object] | None,
    look_every_s: float,
) -> Generator[float, None, T]:
    """Yield the pauses between looks, and return the accepted value."""
    limit_s, pause_s = scaled(within_s), _PAUSE_MIN_S
    gives_up_at = now_s() + limit_s
    while True:
        is_last = now_s() >= gives_up_at
        shown: object = None
        try:
            seen = look()
        except ignore as error:
            shown = error
        else:
            shown = seen
            if seen is not None and accept(seen):
                return seen
        if is_last:
            lines = [f"{what or 'the awaited value'} did not come within {limit_s:.0f} s"]
            lines.append(f"last seen: {shown!r}"[:_SHOWN_MAX])
            lines += [] if describe is None else [str(describe())]
            raise AssertionError("\n".join(lines))
        yield pause_s
        pause_s = min(2 * pause_s, look_every_s)
