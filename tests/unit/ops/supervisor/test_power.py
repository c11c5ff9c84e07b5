"""The process that prevents sleep runs while jobs run."""

from __future__ import annotations

import asyncio
import os
import sys

import structlog

from ops.supervisor.power import IDLE_LOOKS, PowerAssertion, awake_command
from tests.support.polling import let_tasks_run, scaled

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


class Jobs:
    """Reports whether jobs run."""

    def __init__(self) -> None:
        self.run: bool | None = False

    async def __call__(self) -> bool | None:
        return self.run


def _power(jobs: Jobs, command: tuple[str, ...] = SLEEPER) -> PowerAssertion:
    return PowerAssertion(command, runs_jobs=jobs, logger=structlog.get_logger())


def test_assertion_is_held_while_jobs_run_and_released_when_idle() -> None:
    async def scenario() -> None:
        jobs = Jobs()
        power = _power(jobs)
        await power.look()
        assert not power.is_held
        jobs.run = True
        await power.look()
        holder = power._holder
        assert holder is not None
        await power.look()
        assert power._holder is holder, "one process is enough"
        jobs.run = None
        for _ in range(2 * IDLE_LOOKS):
            await power.look()
        assert power.is_held, "an unknown state releases nothing"
        jobs.run = False
        for _ in range(IDLE_LOOKS):
            assert power.is_held
            await power.look()
        assert not power.is_held
        await asyncio.wait_for(holder.wait(), scaled(60))

    asyncio.run(scenario())


def test_holder_that_was_killed_is_replaced() -> None:
    async def scenario() -> None:
        jobs = Jobs()
        jobs.run = True
        power = _power(jobs)
        await power.look()
        holder = power._holder
        assert holder is not None
        holder.kill()
        await holder.wait()
        await power.look()
        replacement = power._holder
        assert power.is_held
        assert replacement is not None
        following = asyncio.create_task(power.follow())
        await let_tasks_run(1)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert not power.is_held
        await asyncio.wait_for(replacement.wait(), scaled(60))

    asyncio.run(scenario())


def test_system_without_the_command_goes_on_without_an_assertion() -> None:
    async def scenario() -> None:
        jobs = Jobs()
        jobs.run = True
        await asyncio.wait_for(_power(jobs, ("no-such-command",)).follow(), scaled(60))

    asyncio.run(scenario())


def test_only_a_mac_needs_it_and_it_ends_with_the_supervisor() -> None:
    assert awake_command("linux") == ()
    assert awake_command("darwin") == ("caffeinate", "-i", "-w", str(os.getpid()))
