"""CPU time and wake-ups of an idle service, by process.

``python -m bench.idle [--seconds 60] [--json OUT]`` starts a service with the demo model, answers
one job, waits, and then reads the counters of the system twice. A wake-up is a voluntary context
switch: a thread that ran and went to sleep again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil

from bench.report.section import Section, table_lines
from ops.supervisor.serve_record import read_record
from tests.support.processes.service import Service

#: Seconds between the job and the measurement, so that caches are written and timers settle.
SETTLE_S: Final = 10.0
_ANSWER_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Counters:
    """What one process has used so far.

    Attributes:
        name: The part.
        cpu_s: CPU seconds.
        wakeups: Voluntary context switches.
    """

    name: str
    cpu_s: float = 0.0
    wakeups: int = 0


def processes_of(service: Service) -> dict[str, psutil.Process]:
    """Return the processes of a service by their part, or by their name."""
    record = read_record(service.data_dir)
    parts = {part.pid: name for name, part in record.parts.items()} if record else {}
    found = {"supervisor": psutil.Process(service.process.pid)}
    for child in service.descendants():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            found[parts.get(child.pid) or child.name()] = child
    return found


def read_processes(processes: Mapping[str, psutil.Process]) -> dict[str, Counters]:
    """Return the counters of each process."""
    found = {}
    for name, process in processes.items():
        times = process.cpu_times()
        wakeups = _wakeups(process) or process.num_ctx_switches().voluntary
        found[name] = Counters(name, times.user + times.system, wakeups)
    return found


def measure(service: Service, seconds: float) -> list[Counters]:
    """Return what each process used over some seconds, the hungriest first."""
    processes = processes_of(service)
    before = read_processes(processes)
    time.sleep(seconds)
    used = [
        Counters(one.name, one.cpu_s - before[name].cpu_s, one.wakeups - before[name].wakeups)
        for name, one in read_processes(processes).items()
    ]
    return sorted(used, key=lambda one: one.cpu_s, reverse=True)


def main() -> None:
    """Measure, print a table, and write the figures where ``--json`` asks for them."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures here")
    given = parser.parse_args()
    Section(table=_idle(given.seconds)).emit(given.json)


def _idle(seconds: float) -> list[str]:
    """Return a table of percent of one core and wake-ups a second, by process."""
    with (
        tempfile.TemporaryDirectory(prefix="idle-") as folder,
        Service(Path(folder) / "data") as service,
    ):
        _answer_one(service)
        time.sleep(SETTLE_S)
        used = measure(service, seconds)
    used.append(Counters("all", sum(one.cpu_s for one in used), sum(one.wakeups for one in used)))
    rows = (
        (one.name, f"{100 * one.cpu_s / seconds:.2f}", f"{one.wakeups / seconds:.1f}")
        for one in used
    )
    return [*table_lines(("process", ">% of a core", ">wake-ups a second"), rows)]


def _answer_one(service: Service) -> None:
    body = {"prompt": "Say a word.", "max_tokens": 8}
    headers = {"prefer": "wait=60"}
    url = f"{service.base_url}/v1/jobs"
    httpx.post(url, json=body, headers=headers, timeout=_ANSWER_S).raise_for_status()


def _wakeups(process: psutil.Process) -> int:
    """Return the voluntary context switches of all threads; 0 where the system has none."""
    found = 0
    for thread in process.threads():
        with suppress(OSError):
            text = Path(f"/proc/{process.pid}/task/{thread.id}/status").read_text()
            line = next(one for one in text.splitlines() if one.startswith("voluntary_ctxt"))
            found += int(line.split()[1])
    return found


if __name__ == "__main__":
    main()
