"""One run: a service, its load, the faults of a plan, and the history that is left."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.chaos.client import MODEL, Client
from bench.chaos.faults import Tormentor
from bench.chaos.history import Asked, Event, History, Kind, Operation, Outcome
from bench.chaos.load import PROBE, Load, repertoire
from bench.chaos.plan import Strike
from bench.chaos.wire import Lines
from tests.support.processes.service import Service

#: For all jobs to end once nothing happens any more.
SETTLED_WITHIN_S: Final = 300.0
_VERIFY_S: Final = 300.0


def environment(model: Path) -> dict[str, str]:
    """Return the settings of a service that is to be disturbed.

    Args:
        model: Directory of the model; it is served under the name of the demo model.
    """
    return {
        "SEMANTIC_MODEL__ID": str(model),
        "SEMANTIC_MODEL__NAME": MODEL,
        # Far above what chance alone does to one job; the caps themselves have tests of their own.
        "SEMANTIC_JOBS__ATTEMPTS_MAX": "100",
        "SEMANTIC_JOBS__WORKER_DEATHS_MAX": "100",
        "SEMANTIC_SERVER__DRAIN_S": "2",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A fault and the time from its end until a new job had its answer."""

    strike: Strike
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run left behind."""

    history: History
    recoveries: tuple[Recovery, ...]
    restarts: int


class Chaos:
    """Runs a plan against a service that has been started.

    Args:
        service: It is ready.
        seed: Decides the load.
        clients: How many ask at once.
        asked: How many different requests there are.
        say: Told of every step.
        most_s: No fault begins later than this after the first; what is left of the plan is left.
    """

    def __init__(
        self,
        service: Service,
        *,
        seed: int,
        clients: int,
        asked: int,
        say: Callable[[str], None],
        most_s: float = math.inf,
    ) -> None:
        self._service = service
        self._seed = seed
        self._clients = clients
        self._asked = repertoire(seed, asked)
        self._say = say
        self._most_s = most_s
        self._probes: list[Operation] = []
        self._probe_names = (f"chaos/{seed}-probe-{number}" for number in itertools.count())
        self._restarts = 0

    def run(self, plan: Sequence[Strike]) -> Run:
        """Do it all and stop the service."""
        undisturbed = self._ask_undisturbed()
        load = Load(
            self._service.base_url, seed=self._seed, asked=self._asked, clients=self._clients
        )
        try:
            recoveries = tuple(self._strike_all(plan, load))
        finally:
            operations = load.finish()
        self._settle()
        outcomes = self._outcomes()
        code = self._service.stop()
        assert code == 0, f"ended with {code}:\n{self._service.log()}"
        history = History(
            operations=(*operations, *self._probes),
            outcomes=outcomes,
            events=tuple(self._events()),
            undisturbed=undisturbed,
            chain=self._verify(),
        )
        return Run(history=history, recoveries=recoveries, restarts=self._restarts)

    def _ask_undisturbed(self) -> dict[Asked, str]:
        client = self._client("undisturbed")
        texts: dict[Asked, str] = {}
        for number, asked in enumerate(self._asked):
            name = f"chaos/{self._seed}-undisturbed-{number}"
            done = client.operate(name, Kind.POLLED, asked, keyed=True)
            assert done.statuses[-1] == "completed", done
            self._probes.append(done)
            job = httpx.get(f"{self._service.base_url}/v1/jobs/{done.accepted[0]}").json()
            texts[asked] = str(job["output"]["text"])
        client.close()
        self._say(f"{len(texts)} answers undisturbed, {sum(map(len, texts.values()))} characters")
        return texts

    def _strike_all(self, plan: Sequence[Strike], load: Load) -> Iterator[Recovery]:
        tormentor = Tormentor(self._service, load.lines)
        waiting: list[tuple[Strike, float]] = []
        last_at = time.monotonic() + self._most_s
        for strike, after in zip(plan, [*plan[1:], None], strict=True):
            if not waiting and time.monotonic() > last_at:
                return
            if tormentor.is_worn():
                code = tormentor.restart()
                assert code == 0, f"ended with {code}:\n{self._service.log()}"
                self._restarts += 1
            time.sleep(strike.gap_s)
            began = time.monotonic()
            tormentor.strike(strike)
            # A kill counts from the signal, what lasts from its end.
            waiting.append((strike, began if strike.is_kill else time.monotonic()))
            if after is not None and after.hasty:
                continue
            self._probe()
            now = time.monotonic()
            for struck, since in waiting:
                yield Recovery(strike=struck, seconds=now - since)
                self._say(
                    f"{struck.number:4}/{len(plan)}  {struck.fault:<10} recovered in"
                    f" {now - since:5.1f} s, {load.count} operations done"
                )
            waiting.clear()

    def _probe(self) -> None:
        client = self._client("probe")
        name = next(self._probe_names)
        done = client.operate(name, Kind.PROBE, PROBE, keyed=True)
        client.close()
        self._probes.append(done)

    def _settle(self) -> None:
        """Wait for all jobs to end; one that does not is found by the judge."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while time.monotonic() < deadline:
            if not any(self._listed(status=status) for status in ("queued", "running")):
                return
            time.sleep(0.2)

    def _listed(self, **query: str) -> list[Any]:
        jobs: list[Any] = []
        with httpx.Client(base_url=self._service.base_url, timeout=60) as client:
            while True:
                before = {"before": jobs[-1]["id"]} if jobs else {}
                answer = client.get("/v1/jobs", params={"limit": "100"} | query | before)
                page = answer.raise_for_status().json()
                jobs += page["data"]
                if not page["has_more"]:
                    return jobs

    def _outcomes(self) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        with httpx.Client(base_url=self._service.base_url, timeout=60) as client:
            for listed in self._listed():
                job = client.get(listed["links"]["self"]).raise_for_status().json()
                outcomes[job["id"]] = Outcome(
                    job=job["id"],
                    status=job["status"],
                    text=job["output"]["text"] if job["output"] else None,
                    error=job["error"]["message"] if job["error"] else None,
                )
        return outcomes

    def _events(self) -> Iterator[Event]:
        for line in self._semantic("export").stdout.splitlines():
            fields = json.loads(line)
            names = ("position", "stream", "version", "type", "data")
            yield Event(**{name: fields[name] for name in names})

    def _verify(self) -> str:
        done = self._semantic("verify")
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def _semantic(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-m", "ops.cli.main", "events", command),
                *("--data-dir", str(self._service.data_dir)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERIFY_S,
        )

    def _client(self, name: str) -> Client:
        return Client(self._service.base_url, Lines(), random.Random(f"{name} {self._seed}"))
