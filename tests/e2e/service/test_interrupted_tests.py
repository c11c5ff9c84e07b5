"""What tests start ends with their process, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.polling import wait_until
from tests.support.processes import descendants

_ROOT = Path(__file__).parents[3]
#: Time for a service to start, on a busy machine.
_STARTED_WITHIN_S = 300.0

#: A test that starts processes in every way and then hangs; ``started`` has their pids.
_TEST = """
import os, subprocess, sys, threading
from pathlib import Path
from tests.support.processes.service import Service

SLEEP = [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
DAEMON = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"

def test_that_hangs(tmp_path):
    pids = []
    def start(argv, **more):
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **more)
        pids.append(int(child.stdout.readline()))
    start(SLEEP)
    start(SLEEP, start_new_session=True)
    start([sys.executable, "-c", DAEMON])
    thread = threading.Thread(target=start, args=[SLEEP])
    thread.start()
    thread.join()
    if os.environ["WITH_SERVICE"] == "yes":
        service = Service(tmp_path / "data", cold=True).start()
        pids += [service.process.pid, *(one.pid for one in service.descendants())]
    text = " ".join(map(str, [os.getpid(), *pids]))
    Path(os.environ["STARTED"], "part").write_text(text)
    Path(os.environ["STARTED"], "part").rename(Path(os.environ["STARTED"], "started"))
    threading.Event().wait()
"""


@contextmanager
def _hanging_run(
    directory: Path, *arguments: str, service: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], int, list[psutil.Process]]]:
    """Yield a run of pytest, the pid of the process of its test, and what that has started."""
    (directory / "test_hangs.py").write_text(_TEST)
    argv = [sys.executable, "-m", "pytest", "-p", "tests.support.processes.descendants"]
    argv += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(directory)]
    with (directory / "output").open("wb") as output:
        run = subprocess.Popen(
            [*argv, *arguments, str(directory / "test_hangs.py")],
            cwd=_ROOT,
            env=os.environ
            | {"STARTED": str(directory), "WITH_SERVICE": "yes" if service else "no"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    started = directory / "started"
    try:
        wait_until(lambda: started.exists() or run.poll() is not None, within_s=_STARTED_WITHIN_S)
        assert started.exists(), (directory / "output").read_text()
        tester, *pids = map(int, started.read_text().split())
        yield run, tester, [psutil.Process(pid) for pid in pids]
    finally:
        run.kill()
        run.wait()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _none_runs(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not any(map(_runs, processes)))


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL],
)
def test_a_signal_to_the_tests_ends_all_that_they_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    has_service = number is signal.SIGKILL
    with _hanging_run(tmp_path, service=has_service) as (run, _, processes):
        assert all(map(_runs, processes))
        assert len(processes) >= (4 + 4 if has_service else 4)
        run.send_signal(number)
        run.wait()
        _none_runs(processes)


@pytest.mark.parametrize("victim", ["controller", "worker"])
def test_the_death_of_a_process_of_xdist_ends_all_that_it_started(
    tmp_path: Path, victim: str
) -> None:
    with _hanging_run(tmp_path, "-n1", "--max-worker-restart=0") as (run, worker, processes):
        assert all(map(_runs, processes))
        assert worker != run.pid
        os.kill(run.pid if victim == "controller" else worker, signal.SIGKILL)
        _none_runs(processes)


def test_watcher_gives_up_what_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    class Held:
        pid = -1

        def kill(self) -> None: ...

        def wait(self, timeout: float) -> int:
            raise psutil.TimeoutExpired(timeout)

    def held(wanted: str) -> list[Held]:
        looks.append(wanted)
        return [Held()]

    monkeypatch.setattr(descendants, "_marked", held)
    monkeypatch.setattr(descendants, "_HOLD_S", 0.01)
    assert not descendants.end_marked("a/")
    assert looks == ["a/"] * descendants.LOOKS_MAX
