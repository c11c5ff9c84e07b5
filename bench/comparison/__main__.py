"""Compare this service with other servers of the same model, side by side.

    python -m bench.comparison [--servers NAME ...] [--rivals DIR] [--python NAME=PATH ...]
                               [--rounds 3] [--json OUT]

Every other server needs an environment of its own, outside this repository; ``docs/benchmarks.md``
has the commands. ``DIR/<distribution>/bin/python`` is found automatically.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.comparison.adapters import ADAPTERS
from bench.comparison.conversation import Conversations
from bench.comparison.measurements import MEASUREMENTS, Measurement, Round, copy_model
from bench.comparison.runner import compare
from bench.comparison.server import ROOT, Server
from bench.report import sections

#: Servers installed in the product's own environment.
_OURS = ("semantic", "mlx_lm.server")
DEMO_MODEL = ROOT / "worker" / "demo_model"


def main() -> None:
    """Measure, print the table, and write the figures where ``--json`` asks for them."""
    options = _options()
    chosen = [one for one in MEASUREMENTS if not options.only or one.name in options.only]
    report = measure(options, options.model, chosen)
    print("\n" + "\n".join(sections.comparison(report).table))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(
    options: argparse.Namespace, source: Path, measurements: Sequence[Measurement]
) -> dict[str, Any]:
    """Return conditions and results of some measurements with a copy of a model.

    Args:
        options: Those of ``parser``.
    """
    # SIGTERM to the harness also stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pythons = _pythons(options.python, options.rivals)
    chosen: list[str] = options.servers or [name for name in ADAPTERS if name in pythons]
    missing = [name for name in chosen if name not in pythons]
    if missing:
        sys.exit(f"no environment for {', '.join(missing)}: give --python NAME=PATH or --rivals")
    with tempfile.TemporaryDirectory(prefix="comparison-") as scratch_name:
        scratch = Path(scratch_name)
        model = copy_model(source, scratch / "model", options.attention)
        servers = [
            Server(ADAPTERS[name], python=pythons[name], model=model, data_dir=scratch / name)
            for name in chosen
        ]
        common = Round(
            name="",
            conversations=Conversations(model, options.tokens),
            scratch=scratch,
            rivals=options.rivals or scratch,
            is_long=options.long,
        )
        results = compare(servers, measurements, common=common, rounds=options.rounds)
    versions = [f"{name} {_version(name, pythons)}" for name in chosen]
    return {"conditions": _conditions(options, source, versions), "results": results}


def _options() -> argparse.Namespace:
    made = parser("bench.comparison", (__doc__ or "").splitlines()[0], tokens=4000, rounds=3)
    names = [measurement.name for measurement in MEASUREMENTS]
    made.add_argument("--only", nargs="+", choices=names, help="measurements; default: all")
    made.add_argument("--model", type=Path, default=DEMO_MODEL)
    return made.parse_args()


def parser(module: str, about: str, *, tokens: int, rounds: int) -> argparse.ArgumentParser:
    """Return the options of ``measure``, for a program that adds its own."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    made.add_argument("--servers", nargs="+", choices=list(ADAPTERS), help="default: all found")
    made.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    made.add_argument(
        "--rivals", type=Path, help="folder of environments, each named as its distribution"
    )
    made.add_argument(
        "--attention",
        choices=("as-is", "full"),
        default="as-is",
        help="full: in a copy of the model, no layer has a window",
    )
    made.add_argument("--tokens", type=int, default=tokens, help="length of a first turn")
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--long", action="store_true", help="large sizes of load generators")
    made.add_argument("--json", type=Path, metavar="OUT", help="write every figure here")
    return made


def _pythons(given: list[str], rivals: Path | None) -> dict[str, Path]:
    """Return the interpreter of each installed server."""
    found = dict.fromkeys(_OURS, Path(sys.executable))
    for name, adapter in ADAPTERS.items():
        python = rivals / adapter.distribution / "bin" / "python" if rivals else None
        if python and python.exists():
            found[name] = python.absolute()
    for one in given:
        name, _, path = one.partition("=")
        if name not in ADAPTERS or not path:
            sys.exit(f"--python wants one of {', '.join(ADAPTERS)}, =, and a path; not {one!r}")
        found[name] = Path(path).absolute()
    return found


def _version(name: str, pythons: dict[str, Path]) -> str:
    program = (
        f"from importlib.metadata import version; print(version({ADAPTERS[name].distribution!r}))"
    )
    report = subprocess.run(
        [str(pythons[name]), "-c", program], capture_output=True, text=True, check=False
    )
    return report.stdout.strip() or "of unknown version"


def _conditions(options: argparse.Namespace, model: Path, versions: list[str]) -> str:
    return (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"{', '.join(versions)}; {model.name} with attention {options.attention}, "
        f"first turns of {options.tokens} tokens, {options.rounds} rounds;"
        f" load {psutil.getloadavg()[1]:.0f} at the end."
    )


if __name__ == "__main__":
    main()
