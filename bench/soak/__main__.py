"""Does anything grow while the service works for an hour?

``python -m bench.soak --minutes 60 [--json OUT]`` starts a service of its own with two equal models
that take turns every ten minutes. Agents with tools, forks, batches and clients that leave work all
the time, beside the clients of ``bench.chaos``, whose checker judges the log at the end. Memory of
each process, descriptors, threads, Redis and the disk are sampled. The exit code is 1 if a series
grows by more than 5 % an hour after the warm-up, if answers become slower, if a promise was broken
or if the service logged an error; ``--keep`` names where the logs of such a run stay.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.chaos.checker import check
from bench.chaos.load import Load
from bench.chaos.model import make_exact_model
from bench.chaos.run import Chaos, environment
from bench.experiments.report import print_conditions, print_table
from bench.soak.evidence import errors_of, keep
from bench.soak.load import CLIENTS, Record, SoakLoad
from bench.soak.samples import Sample, Sampler
from bench.soak.verdict import DRIFT_MAX, drift_of, trends_of
from tests.support.processes.service import Service

MODELS: Final = ("day", "night")
#: Samples of a whole run, and the least pause between two.
SAMPLES: Final = 360
SAMPLE_S_MIN: Final = 2.0
SHOWN_MAX: Final = 20
#: Where the logs of failed runs stay.
FAILED: Final = Path("soak-failed")

#: Most samples, and most turns, in the result.
PLOTTED: Final = 200
PLOTTED_TURNS: Final = 4000


def main() -> int:
    """Run, print the result, write it where ``--json`` asks for it, and return the exit code."""
    options = _parser().parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    service = Service(folder / "data", env=_environment(folder)).start()
    samples: list[Sample] = []
    record = Record()

    def work(_: Load) -> None:
        nonlocal record
        sampler = Sampler(service, max(SAMPLE_S_MIN, options.minutes * 60 / SAMPLES))
        load = SoakLoad(
            service.base_url,
            agents=options.agents,
            swap_every_s=options.swap_minutes * 60,
            models=MODELS,
        )
        try:
            time.sleep(options.minutes * 60)
        finally:
            samples.extend(sampler.close())
            record = load.finish()

    try:
        chaos = Chaos(
            service,
            seed=options.seed,
            clients=options.clients,
            requests=options.requests,
            log=lambda line: print(line, flush=True),
        )
        history = chaos.record(work)
    except BaseException:
        if service.process.poll() is None:
            service.kill()
        print(f"logs       {keep(service.data_dir, service.log_file, options.keep)}")
        raise
    violations = [
        f"{one.promise}: {one.subject}: {one.what}" for one in check(history, others=CLIENTS)
    ]
    errors = errors_of(service.log_file)
    result = result_of(samples, record, violations, errors, minutes=options.minutes)
    _print(result)
    print_conditions(began)
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    if not result["passed"]:
        print(f"logs       {keep(service.data_dir, service.log_file, options.keep)}")
    shutil.rmtree(folder)
    return int(not result["passed"])


def _environment(folder: Path) -> dict[str, str]:
    model = make_exact_model(folder / MODELS[0])
    shutil.copytree(model, folder / MODELS[1])
    config = folder / "semantic.toml"
    config.write_text("".join(f'[models.{name}]\nsource = "{folder / name}"\n' for name in MODELS))
    common = environment(model)
    del common["SEMANTIC_MODEL__NAME"]
    return common | {
        "SEMANTIC_CONFIG": str(config),
        "SEMANTIC_MODEL__ID": MODELS[0],
        "SEMANTIC_JOBS__WORKER_STANDBY": "false",
        # Bounds that are reached in the warm-up: what still grows then is a leak.
        "SEMANTIC_ENGINE__KV_BUDGET_MB": "96",
        "SEMANTIC_CACHE__DISK_BUDGET_GB": "0.1",
        "SEMANTIC_REDIS__ITEMS_TTL_S": "60",
    }


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


def result_of(
    samples: list[Sample],
    record: Record,
    violations: list[str],
    errors: list[dict[str, Any]],
    *,
    minutes: float,
) -> dict[str, Any]:
    """Return the figures of a run and whether it passed.

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
    first = [ms for _, ms in record.first_ms]
    return {
        "minutes": minutes,
        "passed": not (grown or slow or violations or errors or record.faults),
        "grown": grown,
        "trends": {name: asdict(trend) for name, trend in trends.items()},
        "first_text_ms": round(statistics.median(first), 1) if first else None,
        "latency_drift": drift,
        "operations": dict(record.counts),
        "swap_ms": record.swap_ms,
        "faults": record.faults,
        "violations": violations,
        "errors": errors,
        # The verdict is about all of them; a plot needs fewer.
        "samples": samples[:: len(samples) // PLOTTED + 1],
        "latencies": [
            (round(at_s, 1), round(ms, 1))
            for at_s, ms in record.first_ms[:: len(record.first_ms) // PLOTTED_TURNS + 1]
        ],
    }


def _print(result: dict[str, Any]) -> None:
    print_table(
        ["series", ">level", ">last", ">% an hour", ">noise, %", "grows"],
        [
            (
                name,
                f"{one['level']:.1f}",
                f"{one['last']:.1f}",
                f"{one['percent_per_hour']:+.1f}",
                f"{one['noise_percent']:.1f}",
                "yes" if one["grows"] else "",
            )
            for name, one in result["trends"].items()
        ],
    )
    print(f"operations  {result['operations']}, {len(result['swap_ms'])} swaps")
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
