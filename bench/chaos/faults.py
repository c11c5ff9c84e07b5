"""The kinds of faults, their plan, and how each is injected into a running service."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import httpx
import psutil
import redis

from bench.chaos.client import SHORTAGE, OpenStreams
from bench.chaos.model import MODELS
from ops.log.sqlite_driver import driver_module
from tests.support.polling import wait_until
from tests.support.processes.service import Service


class Fault(StrEnum):
    """The kinds of fault."""

    WORKER = "worker"
    API = "api"
    BROKER = "broker"
    SUPERVISOR = "supervisor"
    ALL = "all"
    FREEZE = "freeze"
    FLUSH = "flush"
    CUT = "cut"
    LOCK = "lock"
    DISK = "disk"
    STOP = "stop"
    LOSS = "loss"
    SLOW = "slow"
    MEMORY = "memory"
    SWAP = "swap"


#: The kinds that are a SIGKILL.
KILLS: Final = frozenset({Fault.WORKER, Fault.API, Fault.BROKER, Fault.SUPERVISOR, Fault.ALL})
#: Longest pause between a recovery and the next fault, in seconds.
_GAP_S_MAX: Final = 1.5
#: Share of faults that come before the recovery from the previous one.
_HASTE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of the plan.

    Attributes:
        number: Its place in the plan, from 1.
        fault: Its kind.
        gap_s: Seconds of load before it.
        hasty: Whether it comes before the recovery from the previous fault.
        lasts_s: Its duration in seconds, for kinds with a duration.
        seed: Determines its details, such as which connections are cut.
    """

    number: int
    fault: Fault
    gap_s: float
    hasty: bool
    lasts_s: float
    seed: int

    @property
    def is_kill(self) -> bool:
        """Whether it is a SIGKILL."""
        return self.fault in KILLS


def make_plan(
    faults: Sequence[Fault], *, kills: int, others: int, seed: int
) -> tuple[PlannedFault, ...]:
    """Return a plan with equal shares of each kind, in random order.

    Args:
        faults: The kinds to use.
        kills: Number of SIGKILLs.
        others: Number of other faults.
        seed: Determines the plan.
    """
    rng = random.Random(f"plan {seed}")
    dying = [fault for fault in faults if fault in KILLS]
    living = [fault for fault in faults if fault not in KILLS]
    drawn = _evenly(dying, kills, rng) + _evenly(living, others, rng)
    rng.shuffle(drawn)
    return tuple(
        PlannedFault(
            number=number,
            fault=fault,
            gap_s=rng.uniform(0, _GAP_S_MAX),
            hasty=rng.random() < _HASTE,
            lasts_s=_lasts_s(fault, rng),
            seed=rng.randrange(2**31),
        )
        for number, fault in enumerate(drawn, start=1)
    )


def _evenly(faults: Sequence[Fault], count: int, rng: random.Random) -> list[Fault]:
    if not faults:
        return []
    first = rng.randrange(len(faults))
    return [faults[(first + index) % len(faults)] for index in range(count)]


def _lasts_s(fault: Fault, rng: random.Random) -> float:
    """Return the duration; some locks outlast the 10 s that a writer waits for the log."""
    if fault is Fault.LOCK and rng.random() < 0.25:
        return rng.uniform(10.5, 12.0)
    return rng.uniform(0.2, 3.0)


#: Seconds for a part to run: it may still be restarting after the previous fault.
PART_WITHIN_S: Final = 60.0
#: Kills in a row after which the supervisor delays the restart of a part by seconds.
KILLS_IN_A_ROW_MAX: Final = 5
#: Most writes that succeed before the disk is full.
_WRITES_MAX: Final = 20
_WRITES_WITHIN_S: Final = 3.0
#: Files in which Redis keeps its data.
_REDIS_DATA: Final = {".aof", ".rdb", ".manifest"}
#: Yama's limit of tracing: 0 none, 1 and 2 let only root trace, 3 no process.
_PTRACE_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_NEVER_TRACED: Final = 3
_COUNT: Final = "SELECT coalesce(max(position), 0) FROM events"


def possible_faults() -> tuple[Fault, ...]:
    """Return the faults that this system supports."""
    missing = set[Fault]()
    if sys.platform != "linux":
        missing.add(Fault.DISK)
    if sys.platform != "linux" or shutil.which("strace") is None or not may_trace():
        missing.add(Fault.SLOW)
    return tuple(fault for fault in Fault if fault not in missing)


def may_trace(scope: Path = _PTRACE_SCOPE, user: int | None = None) -> bool:
    """Return whether the kernel lets a user trace processes that are not its children.

    Args:
        scope: The setting of Yama; a kernel without it allows it.
        user: Id of the user; this process's by default.
    """
    value = int(scope.read_text(encoding="ascii")) if scope.exists() else 0
    is_root = (os.geteuid() if user is None else user) == 0
    return value == 0 or (is_root and value < _NEVER_TRACED)


class FaultInjector:
    """Injects the faults of a plan into a service.

    Args:
        service: A running service.
        streams: The clients' open connections.
    """

    def __init__(self, service: Service, streams: OpenStreams) -> None:
        self._service = service
        self._streams = streams
        self._killed: dict[str, int] = {}
        self._acts: dict[Fault, Callable[[PlannedFault], object]] = {
            Fault.WORKER: lambda _: self._kill("worker.main"),
            Fault.API: lambda _: self._kill("api.main"),
            Fault.BROKER: self._kill_broker,
            Fault.SUPERVISOR: self._kill_supervisor,
            Fault.ALL: lambda _: self._kill_all(),
            Fault.FREEZE: self._freeze,
            Fault.FLUSH: lambda _: self._flush(),
            Fault.CUT: lambda planned: self._streams.cut(random.Random(planned.seed)),
            Fault.LOCK: self._lock,
            Fault.DISK: self._fill_disk,
            Fault.STOP: self._stop_part,
            Fault.LOSS: lambda _: self._lose_broker(),
            Fault.SLOW: self._slow_disk,
            Fault.MEMORY: self._fill_memory,
            Fault.SWAP: lambda _: self.swap(),
        }
        #: The swaps that the service accepted.
        self.swaps: list[str] = []

    def inject(self, planned: PlannedFault) -> None:
        """Inject a fault; a fault with a duration is over when this returns."""
        self._acts[planned.fault](planned)

    def is_worn(self) -> bool:
        """Whether a part was killed so often in a row that the supervisor delays its restart."""
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

    def _kill_broker(self, planned: PlannedFault) -> None:
        """Kill Redis, or the product's process that supervises it."""
        if random.Random(planned.seed).random() < 0.5:
            self._kill("ops.broker")
            return
        self._killed["ops.broker"] = self._killed.get("ops.broker", 0) + 1
        while True:
            with suppress(psutil.NoSuchProcess):
                for child in self._part("ops.broker").children():
                    child.kill()
                    return
            time.sleep(0.02)

    def _kill_supervisor(self, planned: PlannedFault) -> None:
        """Kill the supervisor and start it; half of the kills may come before it took over."""
        if random.Random(planned.seed).random() < 0.5:
            self._service.wait_taken_over()
        self._service.process.kill()
        self._service.process.wait()
        self._killed.clear()
        self._service.start()

    def _kill_all(self) -> None:
        """Kill every process at once, like a power failure."""
        self._service.kill()
        self._killed.clear()
        self._service.start()

    def _freeze(self, planned: PlannedFault) -> None:
        self._hold(lambda: self._part("worker.main"), planned.lasts_s)

    def _stop_part(self, planned: PlannedFault) -> None:
        """Stop the api, Redis, its supervisor or the supervisor of all parts for a while."""
        chosen = random.Random(planned.seed).choice(
            [
                lambda: self._part("api.main"),
                lambda: self._part("ops.broker"),
                lambda: self._part("ops.broker").children()[0],
                lambda: psutil.Process(self._service.process.pid),
            ]
        )
        self._hold(chosen, planned.lasts_s)

    @staticmethod
    def _hold(find: Callable[[], psutil.Process], seconds: float) -> None:
        with suppress(psutil.NoSuchProcess, IndexError):
            process = find()
            process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)

    def _lose_broker(self) -> None:
        """Kill Redis and delete its files, so that it comes back empty."""
        self._killed["ops.broker"] = self._killed.get("ops.broker", 0) + 1
        with suppress(psutil.NoSuchProcess):
            broker = self._part("ops.broker")
            broker.suspend()
            for child in broker.children():
                child.kill()
            for file in (self._service.data_dir / "broker").rglob("*"):
                if file.suffix in _REDIS_DATA:
                    file.unlink()
            broker.resume()

    def _slow_disk(self, planned: PlannedFault) -> None:
        """Delay every sync of the api or the worker, like a disk that is worn or shared.

        Raises:
            AssertionError: The tracer ended before its time, and the part lives.
        """
        rng = random.Random(planned.seed)
        name, delay_us = rng.choice(["api.main", "worker.main"]), rng.randint(20_000, 400_000)
        calls = "fsync,fdatasync"
        with suppress(psutil.NoSuchProcess):
            part = self._part(name)
            tracer = subprocess.Popen(
                [
                    *("strace", "-f", "-qq", "-o", "/dev/null", "-p", str(part.pid)),
                    *("-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={delay_us}"),
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                _, said = tracer.communicate(timeout=planned.lasts_s)
            except subprocess.TimeoutExpired:
                tracer.terminate()  # detaches from the part, which goes on
                tracer.communicate(timeout=PART_WITHIN_S)
                return
            is_alive = part.is_running() and part.status() != psutil.STATUS_ZOMBIE
            assert not is_alive, f"strace of {name} ended with {tracer.returncode}: {said}"

    def _fill_memory(self, planned: PlannedFault) -> None:
        """Leave Redis no memory, so that it refuses every write."""
        with suppress(redis.RedisError, OSError), closing(self._redis()) as client:
            client.config_set("maxmemory", "1mb")
            time.sleep(planned.lasts_s)
            client.config_set("maxmemory", "0")

    def swap(self) -> None:
        """Ask for the model that is not loaded; the load may be lost to the next faults.

        Raises:
            AssertionError: The service accepts no swap in time.
        """
        model = MODELS[(len(self.swaps) + 1) % len(MODELS)]
        url = f"{self._service.base_url}/admin/models/{model}/load"
        reply = wait_until(
            lambda: httpx.post(url, timeout=PART_WITHIN_S),
            lambda reply: reply.status_code not in SHORTAGE,
            within_s=PART_WITHIN_S,
            what="a swap",
            ignore=httpx.TransportError,
            describe=self._service.log,
        )
        assert reply.is_success, reply.text
        self.swaps.append(str(reply.json()["id"]))

    def _redis(self) -> redis.Redis:
        url = (self._service.data_dir / "broker.url").read_text(encoding="utf-8").strip()
        return redis.Redis.from_url(url)

    def _flush(self) -> None:
        with suppress(redis.RedisError, OSError), closing(self._redis()) as client:
            client.flushall()

    def _lock(self, planned: PlannedFault) -> None:
        """Hold the write lock of the log, like a hanging backup tool."""
        with self._log() as execute:
            execute("BEGIN IMMEDIATE")
            time.sleep(planned.lasts_s)
            execute("ROLLBACK")

    def _fill_disk(self, planned: PlannedFault) -> None:
        """Make writes of the api or the worker fail after the first few, like a full disk.

        A limit on the file size stands in for the full disk: ``write`` fails in the middle of its
        data. Linux only, where another process can set the limit.
        """
        rng = random.Random(planned.seed)
        name, writes = rng.choice(["api.main", "worker.main"]), rng.randint(0, _WRITES_MAX)
        with suppress(psutil.NoSuchProcess):
            part = self._part(name)
            self._wait_for_writes(writes)
            _, most = part.rlimit(psutil.RLIMIT_FSIZE)
            part.rlimit(psutil.RLIMIT_FSIZE, (1, most))
            time.sleep(planned.lasts_s)
            part.rlimit(psutil.RLIMIT_FSIZE, (most, most))

    def _wait_for_writes(self, count: int) -> None:
        deadline = time.monotonic() + _WRITES_WITHIN_S
        with self._log() as execute:
            goal = int(execute(_COUNT)) + count
            while int(execute(_COUNT)) < goal and time.monotonic() < deadline:
                time.sleep(0.002)

    @contextmanager
    def _log(self) -> Iterator[Callable[[str], int]]:
        """Return a connection to the log's database."""
        file = self._service.data_dir / "events.sqlite3"
        with closing(driver_module().connect(str(file), isolation_level=None, timeout=60)) as log:

            def execute(statement: str) -> int:
                row = log.execute(statement).fetchone()
                return 0 if row is None else int(row[0])

            yield execute

    def _part(self, name: str) -> psutil.Process:
        """Return a part of the service once it runs.

        Raises:
            AssertionError: The part does not start in time.
        """
        return wait_until(
            lambda: self._service.part(name),
            within_s=PART_WITHIN_S,
            what=name,
            ignore=(psutil.NoSuchProcess, AssertionError),
            describe=self._service.log,
        )
