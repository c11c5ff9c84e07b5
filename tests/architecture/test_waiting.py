"""The check of waiting finds sleeps and clocks under any name, and nothing else."""

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
        ("import threading\nthreading.Event().wait(0.01)", "Event().wait"),
        ("from threading import Event\nEvent().wait(timeout=1)", "Event().wait"),
    ],
)
def test_sleep_or_clock_is_found(text: str, name: str) -> None:
    (found,) = check(text)
    assert found.name == name
    assert found.number == len(text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.tzset()",
        "import threading\nthreading.Event().wait()",
        "gone.wait(60)",
        "clock.monotonic()",
        "client.time()",
        "from tests.support.polling import wait_until\nwait_until(lambda: True)",
        "code = 'import time; time.sleep(600)'",
        "def sleep(pause_s): ...",
    ],
)
def test_other_uses_are_not_found(text: str) -> None:
    assert check(text) == []
