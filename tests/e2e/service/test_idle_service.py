"""A service without work sleeps: its threads wake up only for heartbeats and timers."""

from __future__ import annotations

import sys

import anthropic
import pytest

from bench.idle import measure, processes_of
from tests.support.polling import wait_until
from tests.support.processes.service import Service

#: Voluntary context switches a second of all processes; a thread that polls adds one and more for
#: each of the hundreds of threads. An idle service has about 70.
WAKEUPS_PER_S_MAX = 200
WINDOW_S = 2.0


@pytest.mark.skipif(sys.platform != "linux", reason="counts of threads are read from /proc")
def test_threads_of_an_idle_service_sleep(service: Service, claude: anthropic.Anthropic) -> None:
    message = {"role": "user", "content": "Say a word."}
    claude.messages.create(model="semantic-demo", max_tokens=4, messages=[message])  # type: ignore[list-item]  # a literal
    assert {"supervisor", "worker", "api"} <= processes_of(service).keys()
    # Answers of the tests before are still saved for a while.
    wait_until(
        lambda: measure(service, WINDOW_S),
        lambda used: sum(one.wakeups for one in used) / WINDOW_S <= WAKEUPS_PER_S_MAX,
    )
