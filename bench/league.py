"""Measure this service beside other servers, mostly by the load generators of others.

    python -m bench.league [--rivals DIR] [--models NAME ...] [--only NAME ...] [--long]

``DIR`` gets an environment for each load generator, and with ``--long`` for each other server; it
may hold ``traces``, those of kv-cache-tester. ``docs/benchmarks/league.md`` has the whole set-up.
Without it the two servers of this environment take turns at warm requests and restarts.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench.comparison.measurements import RESTART, WARMTH, Measurement, Round, compare, table_of
from bench.comparison.server import ADAPTERS, Server
from bench.comparison.strangers import AGENTS, IMPATIENT, REPLAY
from bench.demo_model.render import MODEL_DIR
from bench.report.section import Section
from bench.together.__main__ import in_float32
from bench.together.workloads import Conversations
from tests.support.models.real_weights import prepare

#: What ``bench.blas`` needs beside a server.
_FAST: Final = ("mlx[cpu]==0.32.4", "mlx-lm", "scipy-openblas32==0.3.34.481.3", "structlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What is installed together.

    Attributes:
        distribution: Its pinned name; the folder has the same without its version.
        others: Installed beside it.
        interpreters: The first one that runs makes the environment.
    """

    distribution: str
    others: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ("python3.11", "python3.12", "python3.13", "python3")

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.distribution.partition("==")[0]

    def prepare(self, folder: Path) -> None:
        """Make the environment where it is not there yet.

        Raises:
            LookupError: No interpreter runs, or the packages cannot be installed; with the reason.
        """
        place = folder / self.name
        if (place / "made").exists():
            return
        shutil.rmtree(place, ignore_errors=True)
        found = next(filter(_runs, self.interpreters), None)
        if found is None:
            raise LookupError(f"it needs one of {', '.join(self.interpreters)}")
        _run([found, "-m", "venv", str(place)])
        _run([str(place / "bin/pip"), "install", "--quiet", self.distribution, *self.others])
        (place / "made").touch()


def _runs(interpreter: str) -> bool:
    # A shim of pyenv may be there for a version that is not selected.
    return bool(shutil.which(interpreter)) and not _call([interpreter, "-c", ""]).returncode


def _run(command: list[str]) -> None:
    done = _call(command)
    if done.returncode:
        raise LookupError(f"{Path(command[0]).name}: {done.stderr.strip()[-300:]}")


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


#: agent-sim has a string that Python 3.11 cannot read, though the package allows Python 3.9.
TOOLS: Final = (
    Environment(
        distribution="cache-pressure==0.6.3",
        interpreters=("python3.12", "python3.13", "python3.14"),
    ),
    Environment(distribution="agentic-bench==0.2.0"),
)
#: Each takes up to 6 GB, since it asks for torch.
SERVERS: Final = (
    Environment(distribution="rapid-mlx==0.16.10", others=_FAST),
    Environment(distribution="mlx-vlm==0.7.10", others=_FAST),
    Environment(distribution="vllm-mlx==0.6.0", others=_FAST),
)


#: What each measurement needs in the folder of the load generators.
NEEDS: Final[dict[Measurement, tuple[str, ...]]] = {
    WARMTH: (),
    RESTART: (),
    AGENTS: ("cache-pressure",),
    IMPATIENT: (),
    REPLAY: ("agentic-bench", "traces"),
}
#: Servers installed in the product's own environment.
_OURS: Final = ("semantic", "mlx_lm.server")
_DEMO: Final = "demo"


def main() -> None:
    """Install what is missing, measure, print the tables, and write them."""
    options = _options()
    # SIGTERM to the harness also stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    missing = _missing(options.rivals, (*TOOLS, *(SERVERS if options.long else ())))
    chosen = [
        one
        for one, needed in NEEDS.items()
        if one.name in options.only and not any(name in missing for name in needed)
    ]
    tables: list[str] = []
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="league-") as folder:
            # Half precision is slow on a CPU, and only this service avoids it by itself.
            given = MODEL_DIR if name == _DEMO else prepare(name)
            model = in_float32(given, Path(folder) / given.name)
            tables += [f"#### {name}", "", *_measured(options, model, chosen, Path(folder)), ""]
    tables += [f"- Not measured: {name}, since {why}" for name, why in missing.items()]
    Section(table=tables).emit(options.json)


def _measured(
    options: argparse.Namespace, model: Path, measurements: Sequence[Measurement], folder: Path
) -> list[str]:
    """Return the table of some measurements with one model, and its conditions."""
    pythons = _pythons(options.rivals)
    chosen: list[str] = options.servers or list(pythons)
    if absent := [name for name in chosen if name not in pythons]:
        sys.exit(f"no environment for {', '.join(absent)} in the folder of --rivals")
    servers = [
        Server(ADAPTERS[name], python=pythons[name], model=model, data_dir=folder / name)
        for name in chosen
    ]
    common = Round(
        name="",
        conversations=Conversations(model, options.tokens),
        scratch=folder,
        rivals=options.rivals or folder,
        is_long=options.long,
    )
    results = compare(servers, measurements, common=common, rounds=options.rounds)
    versions = ", ".join(f"{name} {_version(name, pythons[name])}" for name in chosen)
    conditions = (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {versions};"
        f" first turns of {options.tokens} tokens, {options.rounds} rounds;"
        f" load {psutil.getloadavg()[1]:.0f} at the end."
    )
    return [*table_of(results, measurements), "", conditions]


def _missing(folder: Path | None, environments: tuple[Environment, ...]) -> dict[str, str]:
    """Make the environments, and return the reason of each one that cannot be made."""
    if folder is None:
        names = (*(one.name for one in environments), "traces")
        return dict.fromkeys(names, "no folder is given: --rivals DIR")
    missing = {}
    for one in environments:
        print(f"{one.distribution}: in {folder}", flush=True)
        try:
            one.prepare(folder)
        except LookupError as error:
            missing[one.name] = str(error)
    if not any((folder / "traces").glob("trace_*.json")):
        missing["traces"] = "the folder of the load generators has no traces of kv-cache-tester"
    return missing


def _pythons(rivals: Path | None) -> dict[str, Path]:
    """Return the interpreter of each installed server."""
    found = dict.fromkeys(_OURS, Path(sys.executable))
    for name, adapter in ADAPTERS.items():
        python = rivals / adapter.distribution / "bin" / "python" if rivals else None
        if python and python.exists():
            found[name] = python.absolute()
    return found


def _version(name: str, python: Path) -> str:
    distribution = ADAPTERS[name].distribution
    program = f"from importlib.metadata import version; print(version({distribution!r}))"
    report = subprocess.run([str(python), "-c", program], capture_output=True, text=True)  # noqa: PLW1510 - a server without a version is measured, too
    return report.stdout.strip() or "of unknown version"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.league", description=(__doc__ or "").splitlines()[0]
    )
    names = [one.name for one in NEEDS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--models", nargs="+", default=["smollm2-float32", _DEMO])
    parser.add_argument("--servers", nargs="+", choices=list(ADAPTERS), help="default: all found")
    parser.add_argument("--rivals", type=Path, help="folder of load generators and servers")
    parser.add_argument("--tokens", type=int, default=1_500, help="length of a first turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--long", action="store_true", help="large sizes, and every server")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the tables here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
