"""The faults themselves, each done to the processes and files of a running service."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

import psutil
import redis

from bench.chaos.plan import Fault, Strike
from bench.chaos.wire import Lines
from ops.adapters.event_log.sqlite_driver import driver_module
from tests.support.processes.service import Service

#: For a part to be there at all: it may be on its way up from the fault before.
PART_WITHIN_S: Final = 60.0
#: After so many short lives in a row the supervisor waits for seconds before it starts a part.
KILLS_IN_A_ROW_MAX: Final = 5
#: Writes of the log that are let through before the disk is full.
_WRITES_MAX: Final = 20
_WRITES_WITHIN_S: Final = 3.0
_COUNT: Final = "SELECT coalesce(max(position), 0) FROM events"


def possible_faults() -> tuple[Fault, ...]:
    """Return what can be done on this system."""
    return tuple(fault for fault in Fault if fault is not Fault.DISK or sys.platform == "linux")


class Tormentor:
    """Does to a service what a plan says.

    Args:
        service: It is running.
        lines: The clients' open connections.
    """

    def __init__(self, service: Service, lines: Lines) -> None:
        self._service = service
        self._lines = lines
        self._killed: dict[str, int] = {}
        self._acts: dict[Fault, Callable[[Strike], object]] = {
            Fault.WORKER: lambda _: self._kill("worker.main"),
            Fault.API: lambda _: self._kill("api.main"),
            Fault.BROKER: self._kill_broker,
            Fault.SUPERVISOR: lambda _: self._kill_supervisor(),
            Fault.ALL: lambda _: self._kill_all(),
            Fault.FREEZE: self._freeze,
            Fault.FLUSH: lambda _: self._flush(),
            Fault.CUT: lambda strike: self._lines.cut(random.Random(strike.seed)),
            Fault.LOCK: self._lock,
            Fault.DISK: self._fill_disk,
        }

    def strike(self, strike: Strike) -> None:
        """Do it; a fault that lasts is over when this returns."""
        self._acts[strike.fault](strike)

    def is_worn(self) -> bool:
        """Whether a part was killed so often that the supervisor takes its time to start it."""
        return any(count >= KILLS_IN_A_ROW_MAX for count in self._killed.values())

    def restart(self) -> int:
        """Stop the service in order, start it again and return its exit code."""
        code = self._service.stop()
        self._killed.clear()
        self._service.start()
        return code

    def _kill(self, name: str) -> None:
        self._killed[name] = self._killed.get(name, 0) + 1
        while True:
            with suppress(psutil.NoSuchProcess):
                self._part(name).kill()
                return

    def _kill_broker(self, strike: Strike) -> None:
        """Kill the server, or the process of ours that keeps it."""
        if random.Random(strike.seed).random() < 0.5:
            self._kill("ops.broker")
            return
        self._killed["ops.broker"] = self._killed.get("ops.broker", 0) + 1
        while True:
            with suppress(psutil.NoSuchProcess):
                for child in self._part("ops.broker").children():
                    child.kill()
                    return
            time.sleep(0.02)

    def _kill_supervisor(self) -> None:
        self._service.process.kill()
        self._service.process.wait()
        self._killed.clear()
        self._service.start()

    def _kill_all(self) -> None:
        """Kill every process at once, as a machine that loses its power would."""
        self._service.kill()
        self._killed.clear()
        self._service.start()

    def _freeze(self, strike: Strike) -> None:
        with suppress(psutil.NoSuchProcess):
            worker = self._part("worker.main")
            worker.send_signal(signal.SIGSTOP)
            time.sleep(strike.lasts_s)
            worker.send_signal(signal.SIGCONT)

    def _flush(self) -> None:
        with suppress(redis.RedisError, OSError):
            url = (self._service.data_dir / "broker.url").read_text(encoding="utf-8").strip()
            with closing(redis.Redis.from_url(url)) as client:
                client.flushall()

    def _lock(self, strike: Strike) -> None:
        """Hold the write lock of the log, as a backup tool that hangs would."""
        with self._log() as execute:
            execute("BEGIN IMMEDIATE")
            time.sleep(strike.lasts_s)
            execute("ROLLBACK")

    def _fill_disk(self, strike: Strike) -> None:
        """Let the n-th write from now on fail, and all that follow, in the api or the worker.

        The limit on the size of files stands in for a full disk: ``write`` fails, in the middle of
        whatever the process was writing. Linux only, where it can be set from outside.
        """
        chance = random.Random(strike.seed)
        name, writes = chance.choice(["api.main", "worker.main"]), chance.randint(0, _WRITES_MAX)
        with suppress(psutil.NoSuchProcess):
            part = self._part(name)
            self._wait_for_writes(writes)
            _, most = part.rlimit(psutil.RLIMIT_FSIZE)
            part.rlimit(psutil.RLIMIT_FSIZE, (1, most))
            time.sleep(strike.lasts_s)
            part.rlimit(psutil.RLIMIT_FSIZE, (most, most))

    def _wait_for_writes(self, count: int) -> None:
        deadline = time.monotonic() + _WRITES_WITHIN_S
        with self._log() as execute:
            goal = int(execute(_COUNT)) + count
            while int(execute(_COUNT)) < goal and time.monotonic() < deadline:
                time.sleep(0.002)

    @contextmanager
    def _log(self) -> Iterator[Callable[[str], int]]:
        """Give a connection of our own to the log."""
        file = self._service.data_dir / "events.sqlite3"
        with closing(driver_module().connect(str(file), isolation_level=None, timeout=60)) as log:

            def execute(statement: str) -> int:
                row = log.execute(statement).fetchone()
                return 0 if row is None else int(row[0])

            yield execute

    def _part(self, name: str) -> psutil.Process:
        """Return a part of the service, once it is there.

        Raises:
            AssertionError: It does not come.
        """
        deadline = time.monotonic() + PART_WITHIN_S
        while time.monotonic() < deadline:
            with suppress(psutil.NoSuchProcess, AssertionError):
                return self._service.part(name)
            time.sleep(0.02)
        raise AssertionError(f"no {name} for {PART_WITHIN_S:.0f} s:\n{self._service.log()}")
