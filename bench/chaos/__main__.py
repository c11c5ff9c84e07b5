"""Does the service keep every promise while its parts are killed?

``python -m bench.chaos --kills 200 --seed 7`` starts a service of its own. Clients request streams,
jobs and cancellations. Meanwhile it kills the worker, the api, the broker and the supervisor with
SIGKILL, freezes the worker, empties Redis, cuts connections, locks the log and fills its disk, at
times that the seed determines. Then it checks what clients received and what the log holds. The
exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.chaos.checker import check
from bench.chaos.faults import possible_faults
from bench.chaos.history import History, Violation
from bench.chaos.model import make_exact_model
from bench.chaos.plan import Fault, make_plan
from bench.chaos.run import Chaos, Recovery, Run, environment
from bench.experiments.report import print_conditions, print_table
from bench.figures import percentile
from tests.support.processes.service import Service

#: Violations that are printed; others are only counted.
SHOWN_MAX = 40


def main() -> int:
    """Run the plan, print the result, and return the exit code."""
    options = _parser().parse_args()
    faults = tuple(Fault(name) for name in options.faults.split(","))
    others = options.kills // 2 if options.others is None else options.others
    plan = make_plan(faults, kills=options.kills, others=others, seed=options.seed)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"{len(plan)} faults, seed {options.seed}, in {folder}", flush=True)
    model = make_exact_model(folder / "model")
    service = Service(folder / "data", env=environment(model)).start()
    try:
        chaos = Chaos(
            service,
            seed=options.seed,
            clients=options.clients,
            requests=options.requests,
            most_s=options.minutes * 60,
            log=lambda line: print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True),
        )
        run = chaos.run(plan)
    finally:
        if service.process.poll() is None:
            service.kill()
    violations = check(run.history)
    _report(run, violations)
    print_conditions(began)
    if violations:
        print(f"data       {folder}")
        print("reproduce  " + " ".join(["python -m bench.chaos", *sys.argv[1:]]))
        return 1
    shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=20, help="number of SIGKILLs")
    parser.add_argument("--others", type=int, help="number of other faults; default: half as many")
    parser.add_argument("--seed", type=int, default=1)
    kinds = ",".join(possible_faults())
    parser.add_argument("--faults", default=kinds, help=f"default: {kinds}")
    parser.add_argument("--clients", type=int, default=6, help="client threads")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no fault later than this")
    parser.add_argument("--requests", type=int, default=24, help="number of different requests")
    return parser


def _report(run: Run, violations: tuple[Violation, ...]) -> None:
    print()
    rows = (_row(fault, run.recoveries) for fault in Fault)
    print_table(["fault", ">times", ">p50, s", ">p99, s", ">most, s"], filter(None, rows))
    history = run.history
    kinds = Counter(operation.kind.value for operation in history.operations)
    ends = Counter(outcome.status for outcome in history.outcomes.values())
    attempts = sum(event.type == "AttemptStarted" for event in history.events)
    print(f"kills       {sum(one.planned.is_kill for one in run.recoveries)} with SIGKILL")
    print(f"restarts    {run.restarts} in order, between the faults")
    print(f"operations  {len(history.operations):,}: {_counted(kinds)}")
    print(f"jobs        {len(history.outcomes):,}: {_counted(ends)}; {attempts:,} attempts")
    print(f"streams     {_streams(history)}")
    print(f"log         {len(history.events):,} events")
    for violation in violations[:SHOWN_MAX]:
        print(f"VIOLATION   {violation.promise} | {violation.subject} | {violation.what}")
    print(f"violations  {len(violations)}")


def _streams(history: History) -> str:
    readings = [reading for one in history.operations for reading in one.readings]
    resumed = sum(reading.after >= 0 for reading in readings)
    items = sum(len(reading.items) for reading in readings)
    return f"{len(readings):,}, {resumed:,} of them taken up again; {items:,} items"


def _row(fault: Fault, recoveries: tuple[Recovery, ...]) -> tuple[object, ...] | None:
    times = [one.seconds for one in recoveries if one.planned.fault is fault]
    if not times:
        return None
    p50, p99 = (f"{percentile(times, share):.1f}" for share in (0.5, 0.99))
    return fault.value, len(times), p50, p99, f"{max(times):.1f}"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
