"""Measure this service beside other servers by the load generators of others.

    python -m bench.league --rivals DIR [--models NAME ...] [--long] [--rounds 1] [--json OUT]

``DIR`` gets an environment for each load generator, and with ``--long`` for each other server; it
may hold ``traces``, those of kv-cache-tester. ``docs/benchmarks/league.md`` has the whole set-up.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.comparison.__main__ import DEMO_MODEL, measure, parser
from bench.comparison.environments import SERVERS, TOOLS, Environment
from bench.comparison.strangers import AGENTS, IMPATIENT, LEAGUE, REPLAY
from bench.report import sections
from bench.together.__main__ import in_float32
from tests.support.models.real_weights import prepare

_NEEDS: Final = {AGENTS: ("cache-pressure",), REPLAY: ("agentic-bench", "traces"), IMPATIENT: ()}
_DEMO: Final = "demo"


def main() -> None:
    """Install what is missing, measure, print the tables, and write the figures."""
    made = parser("bench.league", (__doc__ or "").splitlines()[0], tokens=1_500, rounds=1)
    made.add_argument("--models", nargs="+", default=["smollm2-float32", _DEMO])
    options = made.parse_args()
    if options.rivals is None:
        sys.exit("the load generators need a folder: --rivals DIR")
    missing = install(options.rivals, (*TOOLS, *(SERVERS if options.long else ())))
    chosen = [one for one in LEAGUE if not any(name in missing for name in _NEEDS[one])]
    report: dict[str, Any] = {"models": {}, "missing": missing}
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="league-") as folder:
            # Half precision is slow on a CPU, and only this service avoids it by itself.
            given = DEMO_MODEL if name == _DEMO else prepare(name)
            model = in_float32(given, Path(folder) / given.name)
            report["models"][name] = measure(options, model, chosen)
        if options.json:
            options.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    print("\n" + "\n".join(sections.league(report).table))


def install(folder: Path, environments: tuple[Environment, ...]) -> dict[str, str]:
    """Make the environments, and return the reason of each one that cannot be made."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = {}
    for one in environments:
        print(f"{one.distribution}: in {folder}", flush=True)
        try:
            one.prepare(folder)
        except LookupError as error:
            missing[one.distribution.partition("==")[0]] = str(error)
    if not any((folder / "traces").glob("trace_*.json")):
        missing["traces"] = "the folder of the load generators has no traces of kv-cache-tester"
    return missing


if __name__ == "__main__":
    main()
