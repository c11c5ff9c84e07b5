"""Does the service keep every promise while its parts are killed?

``python -m bench.chaos --kills 200 --seed 7`` starts a service of its own. Clients request streams,
jobs, responses, tool calls, batches and cancellations, and a receiver takes webhooks. Meanwhile it
kills the worker, the api, the broker and the supervisor with SIGKILL, stops them for a while,
empties Redis or its files, leaves Redis no memory, cuts connections, locks the log, slows and fills
its disk, and swaps models, at times that the seed determines. Then it checks what clients and the
receiver got and what the log holds. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.chaos.checker import check
from bench.chaos.faults import Fault, make_plan, possible_faults
from bench.chaos.history import History, Violation
from bench.chaos.load import hook_receiver, sample_requests
from bench.chaos.model import make_exact_model
from bench.chaos.run import Chaos, Recovery, Run, mixed_environment
from bench.long_runs import LongRun, add_slice_options, run_slices
from bench.report.section import percentile, print_conditions, print_table
from tests.support.processes.service import Service

#: Violations that are printed; others are only counted.
SHOWN_MAX = 40


def main() -> int:
    """Run one slice after the other, print each result, and return the exit code."""
    options = _parser().parse_args()
    return run_slices(
        "bench.chaos",
        _arguments(options),
        options,
        lambda one, most_s: _run_slice(options, one, most_s=most_s),
    )


def _run_slice(options: argparse.Namespace, slice_: LongRun, *, most_s: float) -> bool:
    """Run one plan against a service of its own; return whether every promise was kept."""
    seed, began = slice_.seed, time.monotonic()
    faults = tuple(Fault(name) for name in options.faults.split(","))
    others = options.kills // 2 if options.others is None else options.others
    plan = make_plan(faults, kills=options.kills, others=others, seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"{len(plan)} faults, seed {seed}, in {folder}", flush=True)
    model = make_exact_model(folder / "model")
    with hook_receiver(seed) as hook:
        try:
            with Service(folder / "data", env=mixed_environment(model, hook)) as service:
                run = Chaos(
                    service,
                    seed=seed,
                    clients=options.clients,
                    requests=sample_requests(seed, options.requests),
                    most_s=most_s,
                    log=lambda line: print(
                        f"{time.monotonic() - began:7.1f} s  {line}", flush=True
                    ),
                    hook=hook,
                ).run(plan)
        except Exception as error:
            if options.record:
                minutes = (time.monotonic() - began) / 60
                slice_.record(f"1 violations: ended by {type(error).__name__}, {minutes:.0f} min")
            raise
    violations = check(run.history)
    outcome = _outcome(run, violations, time.monotonic() - began)
    _report(run, violations)
    print(f"in all      {outcome}")
    print_conditions(began)
    if options.record:
        slice_.record(outcome)
    if violations:
        print(f"data       {folder}")
        print(f"reproduce  python -m bench.chaos {_arguments(options)} --seed {seed}")
        return False
    shutil.rmtree(folder)
    return True


def _arguments(options: argparse.Namespace) -> str:
    """Return the arguments of one slice that differ from their defaults, without the seed."""
    shown = vars(_parser().parse_args([])) | {"kills": None}
    kept = ("kills", "others", "faults", "clients", "requests")
    given = {name: vars(options)[name] for name in kept if vars(options)[name] != shown[name]}
    return " ".join(f"--{name} {value}" for name, value in given.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=20, help="number of SIGKILLs")
    parser.add_argument("--others", type=int, help="number of other faults; default: half as many")
    kinds = ",".join(possible_faults())
    parser.add_argument("--faults", default=kinds, help=f"default: {kinds}")
    parser.add_argument("--clients", type=int, default=6, help="client threads")
    parser.add_argument("--requests", type=int, default=24, help="number of different requests")
    add_slice_options(parser, slices=1)
    return parser


def _outcome(run: Run, violations: tuple[Violation, ...], seconds: float) -> str:
    kills = sum(one.planned.is_kill for one in run.recoveries)
    history = run.history
    parts = (
        f"{kills:,} kills, {len(run.recoveries) - kills:,} other faults",
        f"{len(history.operations):,} operations, {len(history.outcomes):,} jobs",
        f"{len(history.messages):,} webhook messages, {len(history.swaps):,} swaps",
        f"{len(violations)} violations, {seconds / 60:.0f} min",
    )
    return "; ".join(parts)


def _report(run: Run, violations: tuple[Violation, ...]) -> None:
    print()
    rows = (_row(fault, run.recoveries) for fault in Fault)
    print_table(["fault", ">times", ">p50, s", ">p99, s", ">most, s"], filter(None, rows))
    history = run.history
    kinds = Counter(operation.kind.value for operation in history.operations)
    ends = Counter(outcome.status for outcome in history.outcomes.values())
    attempts = sum(event.type == "AttemptStarted" for event in history.events)
    print(f"restarts    {run.restarts} in order, between the faults")
    print(f"operations  {len(history.operations):,}: {_counted(kinds)}")
    print(f"jobs        {len(history.outcomes):,}: {_counted(ends)}; {attempts:,} attempts")
    print(f"streams     {_streams(history)}")
    print(f"log         {len(history.events):,} events")
    for violation in violations[:SHOWN_MAX]:
        print(f"VIOLATION   {violation.promise} | {violation.subject} | {violation.what}")


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
