"""The lifeline between a supervisor and its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ops.liveness import child
from ops.liveness.child import LIFELINE_ENV, watch_lifeline
from tests.support.polling import scaled, unscaled, wait_until

_DEADLINE_S = 60
_ROOT = Path(__file__).parents[3]

#: Prints its pid when it watches, and leaves with 5 when its supervisor is gone.
_CHILD = """
import os, threading
from ops.liveness.child import watch_lifeline
watch_lifeline(lambda: os._exit(5))
print(os.getpid(), flush=True)
threading.Event().wait()
"""

#: Starts the child as a supervisor does, hands its output through and sleeps.
_SUPERVISOR = """
import os, subprocess, sys, threading
read_end, write_end = os.pipe()
child = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]],
    env={**os.environ, "SEMANTIC_LIFELINE_FD": str(read_end)},
    pass_fds=(read_end,),
    start_new_session=True,
)
threading.Event().wait()
"""


def test_without_a_supervisor_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIFELINE_ENV, raising=False)
    before = threading.active_count()
    watch_lifeline(lambda: pytest.fail("called"))
    assert threading.active_count() == before


def test_closed_write_end_calls_back_once_and_variable_is_consumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setenv(LIFELINE_ENV, str(read_end))
    lost = threading.Semaphore(0)
    watch_lifeline(lost.release)
    assert LIFELINE_ENV not in os.environ
    assert not lost.acquire(timeout=unscaled(0.05, reason="the pipe is open"))
    os.close(write_end)
    assert lost.acquire(timeout=scaled(_DEADLINE_S))
    assert not lost.acquire(blocking=False)


def test_process_goes_on_while_the_next_supervisor_has_not_ended_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "BEAT_S", 0.01)
    read_end, write_end = os.pipe()
    monkeypatch.setenv(LIFELINE_ENV, str(read_end))
    lost, looks = threading.Event(), iter([True] * 3 + [False])
    lifeline = watch_lifeline(lost.set, has_successor=lambda: next(looks))
    assert lifeline.limit_s(10.0) == 10.0
    os.close(write_end)
    assert lost.wait(scaled(_DEADLINE_S))
    assert next(looks, None) is None
    assert not lifeline.awaits_successor


def test_end_is_short_while_a_successor_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setenv(LIFELINE_ENV, str(read_end))
    lifeline = watch_lifeline(lambda: None, orphan_s=3600.0)
    os.close(write_end)
    wait_until(lambda: lifeline.awaits_successor)
    assert [lifeline.limit_s(seconds) for seconds in (0.5, 10.0)] == [0.5, child.HANDOVER_S]


def test_descriptor_that_is_not_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.close(write_end)
    monkeypatch.setenv(LIFELINE_ENV, str(read_end))
    with pytest.raises(OSError, match="Bad file descriptor"):
        watch_lifeline(lambda: None)


def test_kill_9_of_the_supervisor_ends_a_child_in_another_session() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, _CHILD], stdout=subprocess.PIPE, cwd=_ROOT
    ) as supervisor:
        assert supervisor.stdout is not None
        child_pid = int(supervisor.stdout.readline())
        os.kill(child_pid, 0)
        supervisor.send_signal(signal.SIGKILL)
        # The child holds the other end of stdout: end of file means that it has gone.
        assert supervisor.stdout.read() == b""
