"""One run: a service, its load, the faults of a plan, and the recorded history."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx

from bench.chaos.client import MODEL, Client, OpenStreams
from bench.chaos.ends import unsent
from bench.chaos.faults import FaultInjector, PlannedFault
from bench.chaos.history import Event, History, Kind, Operation, Outcome, RequestSpec
from bench.chaos.load import PROBE, HookReceiver, Load, sample_calls
from bench.chaos.model import MODELS
from domain.values import Digest
from ops.log.database import reader_engine
from ops.log.reader import LogReader
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

#: Seconds for all jobs to end after the last fault.
JOBS_END_WITHIN_S: Final = 300.0

#: Contexts in memory and on the disk that are full after a short warm-up: what still grows leaks.
SMALL_CACHES: Final[Mapping[str, str]] = MappingProxyType(
    {"SEMANTIC_ENGINE__KV_BUDGET_MB": "96", "SEMANTIC_CACHE__DISK_BUDGET_GB": "0.1"}
)
#: Constants to plant, so that Redis is full of items after a short warm-up too.
SHORT_ITEMS: Final[Mapping[str, object]] = MappingProxyType({"ops.broker.items.ITEMS_TTL_S": 60})


def environment(model: Path) -> dict[str, str]:
    """Return the environment of a service under test.

    Args:
        model: Directory of the model; it is served under the name of the demo model.
    """
    settings = {
        "SEMANTIC_MODEL__ID": str(model),
        "SEMANTIC_MODEL__NAME": MODEL,
        "SEMANTIC_SERVER__DRAIN_S": "2",
        "SEMANTIC_JOBS__WORKER_STANDBY": "true",
    }
    # Far above what random faults do to one job; the limits themselves have their own tests.
    limits = {"domain.values.ATTEMPTS_MAX": 100, "domain.values.WORKER_DEATHS_MAX": 100}
    return with_constants(settings, limits)


def mixed_environment(model: Path, hook: HookReceiver) -> dict[str, str]:
    """Return ``environment`` with two registered models to swap between, and webhooks.

    Args:
        model: Directory of the files of both models; the configuration is written beside it.
        hook: Receives the webhooks.
    """
    config = model.with_name("models.toml")
    config.write_text("".join(f'[models.{name}]\nsource = "{model}"\n' for name in MODELS))
    plain = {k: v for k, v in environment(model).items() if not k.startswith("SEMANTIC_MODEL__")}
    more = {"SEMANTIC_CONFIG": str(config), "SEMANTIC_MODEL__ID": MODELS[0]}
    return with_constants(plain | more | hook.environment, hook.constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A fault, and the seconds from its end until a new job was answered."""

    planned: PlannedFault
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a run."""

    history: History
    recoveries: tuple[Recovery, ...]
    restarts: int


class Chaos:
    """Runs a plan against a started service.

    Args:
        service: A service that is ready.
        seed: Determines the load.
        clients: Number of client threads.
        requests: The requests that clients choose from.
        log: Receives a line for each step.
        most_s: No fault starts later than this many seconds after the first.
        hook: Receives webhooks; with it the load also has responses, tool calls and batches.
    """

    def __init__(
        self,
        service: Service,
        *,
        seed: int,
        clients: int,
        requests: Sequence[RequestSpec],
        log: Callable[[str], None],
        most_s: float = math.inf,
        hook: HookReceiver | None = None,
    ) -> None:
        self._hook = hook
        self._service = service
        self._seed = seed
        self._clients = clients
        self._requests = requests
        self._log = log
        self._most_s = most_s
        self._probes: list[Operation] = []
        self._probe_names = (f"chaos/{seed}-probe-{number}" for number in itertools.count())
        self._restarts = 0

    def run(self, plan: Sequence[PlannedFault]) -> Run:
        """Run the load and the plan, stop the service, and return the history."""
        recoveries: list[Recovery] = []
        history = self.record(
            lambda load, faults: recoveries.extend(self._inject_all(plan, load, faults))
        )
        return Run(history=history, recoveries=tuple(recoveries), restarts=self._restarts)

    def record(self, work: Callable[[Load, FaultInjector], None]) -> History:
        """Run the load as long as ``work`` runs, stop the service, and return the history."""
        baseline = self._record_baseline()
        load = Load(
            self._service.base_url,
            seed=self._seed,
            requests=self._requests,
            clients=self._clients,
            hook=None if self._hook is None else self._hook.url,
        )
        injector = FaultInjector(self._service, load.streams)
        try:
            work(load, injector)
        finally:
            operations = load.finish()
        self._wait_for_ends(injector.swaps)
        outcomes = self._outcomes()
        code = self._service.stop()
        assert code == 0, f"ended with {code}:\n{self._service.log()}"
        return History(
            operations=(*operations, *self._probes),
            outcomes=outcomes,
            events=tuple(self._events()),
            baseline=baseline,
            chain=self._verify(),
            messages=() if self._hook is None else tuple(self._hook.messages),
            swaps=tuple(injector.swaps),
        )

    def _record_baseline(self) -> dict[RequestSpec, str]:
        client = self._client("undisturbed")
        texts: dict[RequestSpec, str] = {}
        calls = () if self._hook is None else sample_calls(self._seed, len(self._requests))
        for number, request in enumerate((*self._requests, *calls)):
            name = f"chaos/{self._seed}-undisturbed-{number}"
            kind = Kind.TOOLS if request.calls_tool else Kind.POLLED
            done = client.operate(name, kind, request, keyed=True)
            self._probes.append(done)
            job = httpx.get(f"{self._service.base_url}/v1/jobs/{done.accepted[0]}").json()
            assert job["status"] == "completed", job
            texts[request] = _text_of(job)
        client.close()
        self._log(f"{len(texts)} answers undisturbed, {sum(map(len, texts.values()))} characters")
        return texts

    def _inject_all(
        self, plan: Sequence[PlannedFault], load: Load, injector: FaultInjector
    ) -> Iterator[Recovery]:
        waiting: list[tuple[PlannedFault, float]] = []
        last_at = time.monotonic() + self._most_s
        for fault, after in zip(plan, [*plan[1:], None], strict=True):
            if not waiting and time.monotonic() > last_at:
                return
            if injector.is_worn():
                code = injector.restart()
                assert code == 0, f"ended with {code}:\n{self._service.log()}"
                self._restarts += 1
            time.sleep(fault.gap_s)
            began = time.monotonic()
            injector.inject(fault)
            # Recovery is measured from the signal of a kill, and from the end of other faults.
            waiting.append((fault, began if fault.is_kill else time.monotonic()))
            if after is not None and after.hasty:
                continue
            self._probe()
            now = time.monotonic()
            for planned, since in waiting:
                yield Recovery(planned=planned, seconds=now - since)
                self._log(
                    f"{planned.number:4}/{len(plan)}  {planned.fault:<10} recovered in"
                    f" {now - since:5.1f} s, {load.count} operations done"
                )
            waiting.clear()

    def _probe(self) -> None:
        client = self._client("probe")
        name = next(self._probe_names)
        done = client.operate(name, Kind.PROBE, PROBE, keyed=True)
        client.close()
        self._probes.append(done)

    def _wait_for_ends(self, swaps: Sequence[str]) -> None:
        """Wait for all jobs, webhooks and swaps to end; the checker reports those that do not."""
        deadline = time.monotonic() + JOBS_END_WITHIN_S
        with httpx.Client(base_url=self._service.base_url, timeout=60) as client:
            while time.monotonic() < deadline:
                with suppress(httpx.TransportError):  # the api may start anew after a last fault
                    jobs = [_listed(client, status=status) for status in ("queued", "running")]
                    query = {"state": "pending", "limit": "1"}
                    hooks = client.get("/v1/webhooks", params=query).json()
                    swap = client.get(f"/admin/swaps/{swaps[-1]}").json() if swaps else {}
                    is_open = any([*jobs, hooks["data"], swap.get("ended_at", True) is None])
                    if not is_open and self._is_all_sent():
                        return
                time.sleep(0.2)

    def _is_all_sent(self) -> bool:
        """Whether the receiver has all messages: one is pending only once the api made it."""
        return self._hook is None or not unsent(self._events(), self._hook.messages)

    def _outcomes(self) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        with httpx.Client(base_url=self._service.base_url, timeout=60) as client:
            for listed in _listed(client):
                job = client.get(listed["links"]["self"]).raise_for_status().json()
                outcomes[job["id"]] = Outcome(
                    job=job["id"],
                    status=job["status"],
                    text=_text_of(job) if job["output"] else None,
                    error=job["error"]["message"] if job["error"] else None,
                )
        return outcomes

    def _events(self) -> Iterator[Event]:
        """Yield the events of the log, with the texts that name clients."""
        engine = reader_engine(f"sqlite:///{self._service.data_dir / 'events.sqlite3'}")
        texts = LogReader(engine)
        try:
            for line in self._semantic("ls", "--export").stdout.splitlines():
                fields = json.loads(line)
                names = ("position", "stream", "version", "type", "data")
                event = Event(**{name: fields[name] for name in names})
                if (digest := event.data.get("client_name")) is not None:
                    client = texts.get(Digest(digest)).decode()
                    event = replace(event, data={**event.data, "client": client})
                yield event
        finally:
            engine.dispose()

    def _verify(self) -> str:
        done = self._semantic("verify")
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def _semantic(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._service.semantic("log", *words)

    def _client(self, name: str) -> Client:
        return Client(self._service.base_url, OpenStreams(), random.Random(f"{name} {self._seed}"))


def _listed(client: httpx.Client, **query: str) -> list[Any]:
    jobs: list[Any] = []
    while True:
        before = {"before": jobs[-1]["id"]} if jobs else {}
        answer = client.get("/v1/jobs", params={"limit": "100"} | query | before)
        page = answer.raise_for_status().json()
        jobs += page["data"]
        if not page["has_more"]:
            return jobs


def _text_of(job: Any) -> str:
    """Return the text of a job's answer, with the arguments of its tool calls."""
    output = job["output"]
    calls = [call["arguments"] for call in output.get("tool_calls", ())]
    return "".join((str(output["text"]), *calls))
