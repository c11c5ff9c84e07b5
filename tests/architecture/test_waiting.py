"""The check of waiting finds sleeps, clocks and unscaled deadlines, and nothing else."""

from __future__ import annotations

import pytest

from tests.architecture.waiting import check


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("import time as t\nt.sleep(1)", "time.sleep"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)", "asyncio.sleep"),
        ("from time import sleep", "time.sleep"),
        ("from time import monotonic as now", "time.monotonic"),
        ("import time\nlimit = time.monotonic() + 60", "time.monotonic"),
        ("import time\nbegun = time.time()", "time.time"),
        ("import time\nclock = time.perf_counter", "time.perf_counter"),
        ("import time\nbegun = time.perf_counter_ns()", "time.perf_counter_ns"),
        ("import threading\nthreading.Event().wait(pause_s)", "Event().wait"),
        ("from threading import Event\nEvent().wait(timeout=pause_s)", "Event().wait"),
    ],
)
def test_sleep_or_clock_is_found(text: str, name: str) -> None:
    (found,) = check(text)
    assert found.name == name
    assert found.number == len(text.splitlines())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gone.wait(60)", "timeout 60"),
        ("thread.join(0.5)", "timeout 0.5"),
        ("process.wait(timeout=30)", "timeout 30"),
        ("process.communicate(b'', timeout=WITHIN_S)", "timeout WITHIN_S"),
        ("subprocess.run(command, timeout=limits.RUN_MAX_S)", "timeout limits.RUN_MAX_S"),
        ("future.result(_WAIT_S)", "timeout _WAIT_S"),
        ("async def f():\n    await asyncio.wait_for(task, 5)", "timeout 5"),
        ("async def f():\n    async with asyncio.timeout(60): ...", "timeout 60"),
        ("pytestmark = pytest.mark.timeout(1800)", "timeout 1800"),
        ("httpx.Client(timeout=60)", "timeout 60"),
        ("httpx.get('http://a')", "timeout of httpx.get"),
    ],
)
def test_unscaled_deadline_is_found(text: str, name: str) -> None:
    (found,) = check(text)
    assert found.name == name


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.tzset()",
        "import threading\nthreading.Event().wait()",
        "gone.wait(scaled(60))",
        "gone.wait(0)",
        "', '.join(NAMES)",
        "thread.join(unscaled(1, reason='a stop takes less'))",
        "broker.consume('a', timeout=50)",
        "httpx.Client(transport=transport)",
        "httpx.get('http://a', timeout=scaled(WITHIN_S))",
        "clock.monotonic()",
        "client.time()",
        "from tests.support.polling import wait_until\nwait_until(lambda: True)",
        "code = 'import time; time.sleep(600)'",
        "def sleep(pause_s): ...",
    ],
)
def test_other_uses_are_not_found(text: str) -> None:
    assert check(text) == []
