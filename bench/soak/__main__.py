"""Does anything grow while the service works for an hour?

``python -m bench.soak --minutes 60 [--json OUT]`` starts a service of its own with two equal models
that take turns every ten minutes. Agents with tools and forks work all the time beside the clients
of ``bench.chaos``, whose checker judges the log at the end. Memory of each process, descriptors,
threads, Redis and the disk are sampled. The exit code is 1 if a series grows by more than 5 % an
hour after the warm-up, if answers become slower, if a promise was broken or if the service logged
an error; ``--keep`` names where the logs of such a run stay.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.chaos.checker import check
from bench.chaos.faults import FaultInjector
from bench.chaos.load import HookReceiver, Load, hook_receiver, sample_requests
from bench.chaos.model import make_exact_model
from bench.chaos.run import SHORT_ITEMS, SMALL_CACHES, Chaos, mixed_environment
from bench.report.section import Section, lines, print_conditions, table_lines
from bench.soak.load import CLIENTS, Agents, Record
from bench.soak.samples import Sample, Sampler, errors_of, keep
from bench.soak.verdict import DRIFT_MAX, TREND_HEAD, drift_of, trend_rows, trends_of
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

#: Samples of a whole run, and the least pause between two.
SAMPLES: Final = 360
SAMPLE_S_MIN: Final = 2.0
SHOWN_MAX: Final = 20
#: Where the logs of failed runs stay.
FAILED: Final = Path("soak-failed")

#: Most samples, and most turns, in the result.
PLOTTED: Final = 200
PLOTTED_TURNS: Final = 4000
_RSS: Final = " rss, MB"


def main() -> int:
    """Run, print the result, write it where ``--json`` asks for it, and return the exit code."""
    options = _parser().parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    with hook_receiver(options.seed) as hook:
        env = {
            **mixed_environment(make_exact_model(folder / "model"), hook),
            **SMALL_CACHES,
            "SEMANTIC_JOBS__WORKER_STANDBY": "false",
        }
        service = Service(folder / "data", env=with_constants(env, SHORT_ITEMS))
        try:
            with service:
                section = _run(service, hook, options)
        except BaseException:
            print(f"logs       {keep(service.data_dir, service.log_file, options.keep)}")
            raise
    section.emit(options.json)
    result = section.figures
    _print(result)
    print_conditions(began)
    if not result["passed"]:
        print(f"logs       {keep(service.data_dir, service.log_file, options.keep)}")
    shutil.rmtree(folder)
    return int(not result["passed"])


def _run(service: Service, hook: HookReceiver, options: argparse.Namespace) -> Section:
    """Work for the wanted time, stop the service, and return the result."""
    samples: list[Sample] = []
    record = Record()
    seconds, swap_s = options.minutes * 60, options.swap_minutes * 60

    def work(_: Load, faults: FaultInjector) -> None:
        nonlocal record
        until_s = time.monotonic() + seconds
        sampler = Sampler(service, max(SAMPLE_S_MIN, seconds / SAMPLES))
        agents = Agents(service.base_url, agents=options.agents)
        try:
            while until_s - time.monotonic() > swap_s:
                time.sleep(swap_s)
                faults.swap()
                agents.follow_swap(faults.swaps[-1])
            time.sleep(max(0.0, until_s - time.monotonic()))
        finally:
            samples.extend(sampler.close())
            record = agents.finish()

    history = Chaos(
        service,
        seed=options.seed,
        clients=options.clients,
        requests=sample_requests(options.seed, options.requests),
        log=lambda line: print(line, flush=True),
        hook=hook,
    ).record(work)
    record.counts.update(one.kind.value for one in history.operations)
    broken = check(history, others=CLIENTS)
    violations = [f"{one.promise}: {one.subject}: {one.what}" for one in broken]
    errors = errors_of(service.log_file)
    return section_of(samples, record, violations, errors, minutes=options.minutes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--swap-minutes", type=float, default=10.0, help="between two swaps")
    parser.add_argument("--agents", type=int, default=3, help="agents that talk at once")
    parser.add_argument("--clients", type=int, default=2, help="clients that the checker follows")
    parser.add_argument("--requests", type=int, default=12, help="different requests of these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result here")
    keep_help = "the logs of a failed run (default: soak-failed here)"
    parser.add_argument("--keep", type=Path, metavar="DIR", default=FAILED, help=keep_help)
    return parser


def section_of(
    samples: list[Sample],
    record: Record,
    violations: list[str],
    errors: list[dict[str, Any]],
    *,
    minutes: float,
) -> Section:
    """Return the table of what grows, its plots, and the figures with the verdict ``passed``.

    Args:
        samples: Figures of the processes, in order.
        record: What the load did.
        violations: Promises that were broken.
        errors: Errors in the log of the service.
        minutes: Length of the load.
    """
    trends, drift = trends_of(samples), drift_of(record.first_ms)
    grown = [name for name, trend in trends.items() if trend.grows]
    slow = drift is not None and drift > DRIFT_MAX
    done = ", ".join(f"{number:,} {name}" for name, number in record.counts.items())
    return Section(
        headline=(
            f"{minutes:g} minutes of mixed load",
            (
                f"{', '.join(grown) or 'nothing'} grew; {len(violations)} promises were broken;"
                f" {len(errors)} errors in the log;"
                f" last over first third of the latencies: {drift}"
            ),
        ),
        table=[
            *table_lines(TREND_HEAD, trend_rows(trends)),
            "",
            f"Done: {done}, {len(record.swap_ms)} swaps.",
        ],
        plots=_plots(samples, record, trends),
        figures={
            "minutes": minutes,
            "passed": not (grown or slow or violations or errors or record.faults),
            "grown": grown,
            "trends": {name: asdict(trend) for name, trend in trends.items()},
            "first_text_ms": round(statistics.median(ms for _, ms in record.first_ms), 1)
            if record.first_ms
            else None,
            "latency_drift": drift,
            "operations": dict(record.counts),
            "swap_ms": record.swap_ms,
            "faults": record.faults,
            "violations": violations,
            "errors": errors,
        },
    )


def _plots(samples: list[Sample], record: Record, names: Iterable[str]) -> dict[str, str]:
    """Return the plots by file name; they need fewer points than the verdict."""
    plotted = samples[:: len(samples) // PLOTTED + 1]
    shown = {
        name: [(one["t_s"] / 60, one[name]) for one in plotted if name in one] for name in names
    }
    memories = {name.removesuffix(_RSS): of for name, of in shown.items() if name.endswith(_RSS)}
    counts = {name: points for name, points in shown.items() if "descriptors" in name}
    turns = record.first_ms[:: len(record.first_ms) // PLOTTED_TURNS + 1]
    first = {"first text": [(at_s / 60, ms) for at_s, ms in turns]}
    return {
        "soak-memory": lines("Resident memory", memories, unit="MB", x_unit="minutes"),
        "soak-descriptors": lines("Descriptors", counts, unit="open", x_unit="minutes"),
        "soak-latency": lines("First text of a turn", first, unit="ms", x_unit="minutes"),
    }


def _print(result: dict[str, Any]) -> None:
    print(
        f"first text  {result['first_text_ms']} ms; last over first third {result['latency_drift']}"
    )
    for name in ("faults", "violations"):
        print(f"{name:<11} {len(result[name])}")
        for line in result[name][:SHOWN_MAX]:
            print(f"  {line[:200]}")
    print(f"errors      {len(result['errors'])}")
    for one in result["errors"][:SHOWN_MAX]:
        print(f"  {one.get('timestamp')} {one.get('part')} {one.get('message')}")
        print("\n".join(f"    {line}" for line in str(one.get("exception", "")).splitlines()[-8:]))
    print("passed" if result["passed"] else "FAILED")


if __name__ == "__main__":
    sys.exit(main())
