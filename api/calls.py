"""Blocking calls off the event loop, and tasks that outlive their request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from domain.errors import Overloaded, RateLimited
from domain.shares import Shares
from domain.values import Owner

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BlockingCalls:
    """Runs functions that block on an executor.

    Attributes:
        executor: Bounded.
    """

    executor: Executor

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the executor and return its result."""
        loop = asyncio.get_running_loop()
        # Log lines of the call carry the names of its request.
        run = partial(copy_context().run, function, *args, **kwargs)
        return await loop.run_in_executor(self.executor, run)


class BoundedCalls:
    """Runs functions that wait for another process, on an executor that no other call uses.

    However long they wait, they delay no other call. Belongs to one event loop.

    Args:
        executor: Bounded; used by these calls only.
        kind: What the calls are, in the plural; for messages.
        most: Most calls that run or wait for a thread; each API key has a share of them.
        wait_s: Longest time of a call, in seconds.
    """

    def __init__(self, executor: Executor, kind: str, *, most: int, wait_s: float) -> None:
        self._call = BlockingCalls(executor)
        self._kind = kind
        self._wait_s = wait_s
        self._places = Shares(most)

    async def run(self, owner: Owner | None, function: Callable[[], T]) -> T:
        """Run a function on the executor and return its result.

        Args:
            owner: The API key whose share counts; ``None`` where no other key needs one.
            function: Blocks.

        Raises:
            Overloaded: ``most`` calls run or wait already.
            RateLimited: The key has its share of them.
            TimeoutError: The time is up. A function that runs then runs on; one that waits for a
                thread never runs.
        """
        holders = [] if owner is None else [owner]
        if (found := self._places.take(holders)) is not None:
            if found.of_holder:
                raise RateLimited(f"this key may have {found.limit} {self._kind} at once")
            raise Overloaded(f"{found.limit} {self._kind} wait already")
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._call(function)
        finally:
            self._places.give_back(holders)


class Background:
    """Holds tasks until they are done; belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run ``work`` as a task; it must bound its own time and handle its own failures."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> bool:
        """Wait for all tasks that have been started; call it after the last request.

        Returns:
            Whether all of them ended in time.
        """
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return not pending
