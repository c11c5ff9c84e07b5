"""CPU time and wake-ups of an idle service, by process and thread, and the CPU time of a start.

``python -m bench.idle [--seconds 60] [--threads] [--json OUT]`` starts a service with the demo
model, answers one job, waits, and then reads the counters of the system twice. A wake-up is a
voluntary context switch: a thread that ran and went to sleep again.

``python -m bench.idle --starts N [--json OUT]`` starts a service N times on the same data directory
and reads what each process has computed when the service is ready, and its standby when it waits.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil

from bench.experiments.report import table_lines
from bench.report.section import Section
from tests.support.processes.service import Service

#: Seconds between the job and the measurement, so that caches are written and timers settle.
SETTLE_S: Final = 10.0
_ANSWER_S: Final = 120.0
#: Longest wait for the standby, in seconds, and the pause without any computing that ends it.
_STANDBY_S: Final = 120.0
_SETTLED_S: Final = 2.0
_PARTS: Final = {
    "worker.standby": "standby",
    "worker": "worker",
    "api": "api",
    "ops.broker": "broker",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """What one thread, or one process, has used so far.

    Attributes:
        name: The part, and the thread where there is one.
        cpu_s: CPU seconds.
        wakeups: Voluntary context switches.
    """

    name: str
    cpu_s: float = 0.0
    wakeups: int = 0

    def since(self, earlier: Counters | None) -> Counters:
        """Return the difference to an earlier reading."""
        before = earlier or Counters(self.name)
        return Counters(self.name, self.cpu_s - before.cpu_s, self.wakeups - before.wakeups)


def processes_of(service: Service) -> dict[str, psutil.Process]:
    """Return the processes of a service by their part."""
    found = {"supervisor": psutil.Process(service.process.pid)}
    for child in service.descendants():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            found[_part(child)] = child
    return found


def read_processes(processes: Mapping[str, psutil.Process]) -> dict[str, Counters]:
    """Return the counters of each process."""
    found = {}
    for name, process in processes.items():
        times = process.cpu_times()
        wakeups = sum(_wakeups(process).values()) or process.num_ctx_switches().voluntary
        found[name] = Counters(name, times.user + times.system, wakeups)
    return found


def read_threads(processes: Mapping[str, psutil.Process]) -> dict[str, Counters]:
    """Return the counters of each thread; only Linux has them."""
    found = {}
    for part, process in processes.items():
        wakeups = _wakeups(process)
        for thread in process.threads():
            task = _task(process.pid, thread.id)
            if not task.is_dir():
                continue
            name = f"{part} {thread.id} {(task / 'comm').read_text().strip()}"
            cpu_s = int((task / "schedstat").read_text().split()[0]) / 1e9
            found[name] = Counters(name, cpu_s, wakeups.get(thread.id, 0))
    return found


def measure(service: Service, seconds: float, *, threads: bool) -> list[Counters]:
    """Return what each process, or each thread, used over some seconds, the hungriest first."""
    processes = processes_of(service)
    read = read_threads if threads else read_processes
    before = read(processes)
    time.sleep(seconds)
    used = [after.since(before.get(name)) for name, after in read(processes).items()]
    return sorted(used, key=lambda one: one.cpu_s, reverse=True)


def measure_starts(folder: Path, starts: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each process until it was ready, for each start.

    A start before them creates the tables and is not counted.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(starts + 1):
        with_standby = {"SEMANTIC_JOBS__WORKER_STANDBY": "true"}
        service = Service(folder / "data", env=with_standby).start()
        try:
            used = {name: one.cpu_s for name, one in read_processes(processes_of(service)).items()}
            used["all until ready"] = sum(used.values())
            used["standby"] = _standby_cpu_s(service)
        finally:
            service.stop()
        for name, cpu_s in used.items() if number else ():
            found[name].append(cpu_s)
    return dict(found)


def main() -> None:
    """Measure, print a table, and write the figures where ``--json`` asks for them."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", action="store_true", help="by thread (Linux)")
    parser.add_argument("--starts", type=int, metavar="N", help="measure N starts instead")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures here")
    given = parser.parse_args()
    table = _starts(given.starts) if given.starts else _idle(given.seconds, threads=given.threads)
    Section(table=table).emit(given.json)


def _starts(starts: int) -> list[str]:
    """Return a table of the CPU seconds of each process until it was ready."""
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        found = measure_starts(Path(folder), starts)
    rows = sorted((statistics.median(each), min(each), max(each), n) for n, each in found.items())
    head = ("process", ">CPU s (median)", ">least", ">most")
    return [*table_lines(head, [(n, *(f"{one:.2f}" for one in row)) for *row, n in rows])]


def _idle(seconds: float, *, threads: bool) -> list[str]:
    """Return a table of percent of one core and wake-ups a second, by process or thread."""
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        service = Service(Path(folder) / "data").start()
        try:
            _answer_one(service)
            time.sleep(SETTLE_S)
            used = measure(service, seconds, threads=threads)
        finally:
            service.stop()
    used.append(Counters("all", sum(one.cpu_s for one in used), sum(one.wakeups for one in used)))
    rows = (
        (one.name, f"{100 * one.cpu_s / seconds:.2f}", f"{one.wakeups / seconds:.1f}")
        for one in used
    )
    return [*table_lines(("process", ">% of a core", ">wake-ups a second"), rows)]


def _standby_cpu_s(service: Service) -> float:
    """Return what the standby has computed once it waits."""
    give_up_at, last = time.monotonic() + _STANDBY_S, -1.0
    while time.monotonic() < give_up_at:
        time.sleep(_SETTLED_S)
        standby = processes_of(service).get("standby")
        if standby is None:
            continue
        times = standby.cpu_times()
        if (used := times.user + times.system) == last:
            return used
        last = used
    message = "the service has no standby that waits"
    raise TimeoutError(message)


def _answer_one(service: Service) -> None:
    body = {"prompt": "Say a word.", "max_tokens": 8}
    headers = {"prefer": "wait=60", "content-type": "application/json"}
    url = f"{service.base_url}/v1/jobs"
    httpx.post(url, json=body, headers=headers, timeout=_ANSWER_S).raise_for_status()


def _part(process: psutil.Process) -> str:
    for word in process.cmdline()[1:]:
        for start, part in _PARTS.items():
            if word.startswith(start):
                return part
    return process.name()


def _wakeups(process: psutil.Process) -> dict[int, int]:
    """Return the voluntary context switches of each thread; empty where the system has none."""
    found = {}
    for thread in process.threads():
        try:
            text = (_task(process.pid, thread.id) / "status").read_text()
        except OSError:
            continue
        line = next(one for one in text.splitlines() if one.startswith("voluntary_ctxt"))
        found[thread.id] = int(line.split()[1])
    return found


def _task(pid: int, thread: int) -> Path:
    return Path(f"/proc/{pid}/task/{thread}")


if __name__ == "__main__":
    main()
