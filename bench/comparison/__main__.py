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
from pathlib import Path

from bench.comparison.adapters import ADAPTERS
from bench.comparison.conversation import Conversations
from bench.comparison.measurements import MEASUREMENTS, copy_model
from bench.comparison.runner import compare
from bench.comparison.server import ROOT, Server
from bench.report import sections

#: Servers installed in the product's own environment.
_OURS = ("semantic", "mlx_lm.server")
DEMO_MODEL = ROOT / "worker" / "demo_model"


def main() -> None:
    """Measure, print the table, and write the figures where ``--json`` asks for them."""
    options = _options()
    # SIGTERM to the harness also stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pythons = _pythons(options.python, options.rivals)
    chosen: list[str] = options.servers or [name for name in ADAPTERS if name in pythons]
    missing = [name for name in chosen if name not in pythons]
    if missing:
        sys.exit(f"no environment for {', '.join(missing)}: give --python NAME=PATH or --rivals")
    measurements = [one for one in MEASUREMENTS if not options.only or one.name in options.only]
    with tempfile.TemporaryDirectory(prefix="comparison-") as scratch_name:
        scratch = Path(scratch_name)
        model = copy_model(options.model, scratch / "model", options.attention)
        servers = [
            Server(ADAPTERS[name], python=pythons[name], model=model, data_dir=scratch / name)
            for name in chosen
        ]
        results = compare(
            servers,
            measurements,
            conversations=Conversations(model, options.tokens),
            rounds=options.rounds,
            scratch=scratch,
        )
    conditions = _conditions(options, [f"{name} {_version(name, pythons)}" for name in chosen])
    report = {"conditions": conditions, "results": results}
    print("\n" + "\n".join(sections.comparison(report).table))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.comparison", description=(__doc__ or "").splitlines()[0]
    )
    names = [measurement.name for measurement in MEASUREMENTS]
    parser.add_argument("--servers", nargs="+", choices=list(ADAPTERS), help="default: all found")
    parser.add_argument("--only", nargs="+", choices=names, help="measurements; default: all")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument(
        "--rivals", type=Path, help="folder of environments, each named as its distribution"
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument(
        "--attention",
        choices=("as-is", "full"),
        default="as-is",
        help="full: in a copy of the model, no layer has a window",
    )
    parser.add_argument("--tokens", type=int, default=4000, help="length of a first turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every figure here")
    return parser.parse_args()


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


def _conditions(options: argparse.Namespace, versions: list[str]) -> str:
    return (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"{', '.join(versions)}; {options.model.name} with attention {options.attention}, "
        f"first turns of {options.tokens} tokens, {options.rounds} rounds."
    )


if __name__ == "__main__":
    main()
