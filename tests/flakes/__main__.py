"""Looks for tests that fail now and then: ``make flakes ROUNDS=3 ARGS="tests/e2e"``.

Runs tests in random order while busy loops use the processors, and prints each test that failed in
some round with its first traceback. Without paths it runs every file with processes, threads or
clocks, and then those that failed here or earlier many times. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from bench.long_runs import LongRun
from bench.report.section import current_commit
from ops.liveness.child import LIFELINE_ENV
from tests.flakes.selection import ROOT, timed_files
from tests.support.polling import now_s, scaled

PAGE: Final = ROOT / "docs" / "quality.md"
REPORTS: Final = ROOT / "build" / "flakes"
#: Files with tests that failed now and then, and rounds of these and of files that fail here.
SUSPECTS: Final = (
    "tests/e2e/faults/test_stuck_step.py",
    "tests/e2e/faults/test_swaps.py",
    "tests/integration/event_log/test_sweep_process.py",
    "tests/integration/mlx/kv/test_disk_faults.py",
    "tests/integration/supervisor/test_early_parts.py",
    "tests/integration/supervisor/test_supervisor.py",
)
SUSPECT_ROUNDS: Final = 20
#: Exit codes of pytest after a round in which all tests passed, and in which some failed.
_ENDED: Final = (0, 1)
#: The end of the fixtures of an interrupted round, in seconds.
_INTERRUPTED_WITHIN_S: Final = 300.0
_BUSY_LOOP: Final = """
import os, sys
from ops.liveness.child import watch_lifeline
watch_lifeline(lambda: os._exit(0))
os.nice(int(sys.argv[1]))
while True:
    pass
"""


@dataclass(slots=True)
class Found:
    """What the rounds of one selection have found."""

    rounds: int = 0
    #: Tests that were run, counted in each round.
    tests: int = 0
    #: The first traceback of each test that failed, and in how many rounds each failed.
    failures: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, report: Path) -> None:
        """Add the report of a round."""
        failed: dict[str, str] = {}
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
            self.tests += 1
            for outcome in case:
                if outcome.tag in ("failure", "error"):
                    failed.setdefault(_name(case), outcome.text or "")
        for name, text in failed.items():
            self.fail(name, text)

    def fail(self, name: str, text: str) -> None:
        """Count a failure."""
        self.failures.setdefault(name, text)
        self.counts[name] += 1


def main() -> int:
    """Run the rounds, print what failed, and return the exit code."""
    asked = _asked()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    until = now_s() + 60 * asked.minutes
    with _load(asked.busy, asked.nice):
        found = [_run(asked, until)]
        if not asked.paths:
            files = {name.partition("::")[0] for name in found[0].failures}
            asked.paths = sorted({*SUSPECTS, *(one for one in files if (ROOT / one).is_file())})
            asked.seed, asked.rounds = asked.seed + asked.rounds, SUSPECT_ROUNDS
            found.append(_run(asked, until))
    for one in found:
        for name, text in one.failures.items():
            _print(f"\n{name} failed in {one.counts[name]} of {one.rounds} rounds:\n{text}")
    return int(any(one.failures for one in found))


def _asked() -> argparse.Namespace:
    """Return the arguments, with a seed."""
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m tests.flakes", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files, directories or tests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no round later")
    parser.add_argument("--seed", type=int, help="of the first round; the others count up from it")
    parser.add_argument("--busy", type=int, default=cores, help="busy loops beside the tests")
    parser.add_argument("--nice", type=int, default=0, help="niceness of the busy loops")
    parser.add_argument("--processes", type=int, default=cores, help="that run tests")
    parser.add_argument("--record", action="store_true", help="add the result to docs/quality.md")
    asked = parser.parse_args()
    if asked.seed is None:
        asked.seed = random.SystemRandom().randrange(10**9)
    return asked


@contextmanager
def _load(busy: int, nice: int) -> Iterator[None]:
    """Keep processors busy."""
    _print(f"{busy} busy loops of niceness {nice}")
    with ExitStack() as loops:
        for _ in range(busy):
            loops.enter_context(_child([sys.executable, "-c", _BUSY_LOOP, str(nice)]))
        yield


@contextmanager
def _child(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that notices the end of the block, and of this process, and ends then."""
    theirs, ours = os.pipe()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {LIFELINE_ENV: str(theirs)},
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs],
        # Ctrl-C reaches it once, by the pipe: a second one would interrupt the fixtures' ends.
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process
    finally:
        os.close(ours)
        try:
            process.wait(scaled(_INTERRUPTED_WITHIN_S))
        finally:
            process.kill()


def _run(asked: argparse.Namespace, until: float) -> Found:
    """Run the rounds of one selection, as far as there is time."""
    found, commit, began = Found(), current_commit(), now_s()
    files = asked.paths or timed_files()
    _print(f"{len(files)} paths in {asked.rounds} rounds, seeds from {asked.seed}")
    while found.rounds < asked.rounds and now_s() < until:
        _round(asked, files, found)
    if asked.record:
        _record(asked, found, commit, minutes=(now_s() - began) / 60)
    return found


def _round(asked: argparse.Namespace, files: Sequence[str], found: Found) -> None:
    seed, before, began = asked.seed + found.rounds, found.counts.total(), now_s()
    report = REPORTS / f"{seed}.xml"
    report.unlink(missing_ok=True)
    with _child(_command(files, seed, asked.processes, report)) as pytest:
        code = pytest.wait()
    found.rounds += 1
    if report.is_file():
        found.add(report)
    if code not in _ENDED:
        found.fail(f"the round of seed {seed}", f"pytest ended with exit code {code}")
    _print(
        f"round {found.rounds} of {asked.rounds}, seed {seed}:"
        f" {found.counts.total() - before} failed,"
        f" {now_s() - began:.0f} s, {report.relative_to(ROOT)}"
    )


def _command(files: Sequence[str], seed: int, processes: int, report: Path) -> list[str]:
    """Return the command of a round: as ``make test``, but in random order."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-rfE"),
        *("-p", "tests.flakes.selection"),
        *("--order-seed", str(seed), "-n", str(processes), "--dist", "loadfile"),
        *("--no-loadscope-reorder", "--junitxml", str(report), "-o", "junit_family=xunit1"),
        *files,
    ]


def _record(asked: argparse.Namespace, found: Found, commit: str, *, minutes: float) -> None:
    load = f"--busy {asked.busy} --nice {asked.nice} --processes {asked.processes}"
    run = LongRun(
        commit=commit,
        module="tests.flakes",
        arguments=" ".join([f"--rounds {found.rounds} {load}", *asked.paths]),
        seed=asked.seed,
        seeds=found.rounds,
    )
    names = "".join(f"; `{name}` in {count}" for name, count in found.counts.items())
    outcome = f"{found.tests:,} tests, {len(found.failures)} that failed{names}"
    run.record(f"{outcome}; {minutes:.0f} min", PAGE)


def _name(case: ET.Element) -> str:
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    inside = case.get("classname", "").removeprefix(module).strip(".")
    return "::".join(part for part in (file, *inside.split("."), case.get("name")) if part)


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program's output


if __name__ == "__main__":
    sys.exit(main())
