"""Cuts the power of a whole service under load, and starts it again on what is left."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from bench.chaos.client import job_body
from bench.chaos.history import RequestSpec, Violation
from bench.chaos.load import sample_requests
from bench.chaos.model import make_exact_model
from bench.chaos.run import environment
from bench.power_cut.cuts import Cut, Recording, cut
from bench.power_cut.journal import Kind, compile_recorder, mark, read_journal, recorded_environment
from ops.log.admin.verify import verify_log, verify_payloads
from ops.log.database import reader_engine
from tests.support.clients.service_log import ended
from tests.support.processes.service import Service

_REQUESTS: Final = 12
_AT_ONCE: Final = 4
_ENDS_WITHIN_S: Final = 300.0
_DEADLINES_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServicePromises:
    """Accepted jobs with the number of their request, and the texts of those whose end was seen."""

    accepted: dict[str, int] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def add(self, content: dict[str, Any]) -> None:
        """Take up one mark."""
        if "accepted" in content:
            self.accepted[content["accepted"]] = content["request"]
        else:
            self.ended[content["ended"]] = content["text"]

    def expected(self) -> dict[int, str]:
        """Return the text of each request that has an answer."""
        return {self.accepted[job]: text for job, text in self.ended.items()}


def record_service(directory: Path) -> Recording:
    """Run a service under load, record it, and kill it."""
    # The data directory itself is recorded: it is there before the service starts.
    root, journal = directory.resolve() / "root", directory.resolve() / "journal"
    root.mkdir(mode=0o700)
    library = compile_recorder(directory)
    model = make_exact_model(directory / "model")
    recorded = recorded_environment(library, root=root, journal=journal)
    service = Service(root, env=environment(model) | recorded).start()
    try:
        requests = sample_requests(1, _REQUESTS)
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            # Each request twice: every one has its answer in the end.
            work = partial(_run_job, service.base_url, journal, requests)
            for done in threads.map(work, [*range(_REQUESTS), *range(_REQUESTS)]):
                assert done is None
    finally:
        service.kill()
    return Recording(root=root, journal=journal)


def cut_service(recording: Recording, directory: Path, *, cuts: int, seed: int) -> Iterator[Cut]:
    """Yield power cuts of a recorded service, each after a new start on what was left."""
    rng = random.Random(f"service {seed}")
    records = list(read_journal(recording.journal))
    marks = [at for at, one in enumerate(records, start=1) if one.kind is Kind.MARK]
    whole = ServicePromises()
    for at in marks:
        whole.add(json.loads(records[at - 1].second))
    places = sorted(min(len(records), rng.choice(marks) + rng.randrange(40)) for _ in range(cuts))
    model, expected, promises = directory / "model", whole.expected(), ServicePromises()
    yield from cut(
        recording,
        directory,
        places=places,
        seed=seed,
        promise=promises.add,
        broken=lambda root: _broken(root, model, promises, expected),
    )


def _run_job(base_url: str, journal: Path, requests: tuple[RequestSpec, ...], number: int) -> None:
    with httpx.Client(base_url=base_url, timeout=_DEADLINES_S) as client:
        reply = client.post("/v1/jobs", json=job_body(requests[number]))
        assert reply.status_code == httpx.codes.ACCEPTED, reply.text
        job = str(reply.json()["id"])
        mark(journal, accepted=job, request=number)
        found = ended(client, job, within_s=_ENDS_WITHIN_S)
        assert found["status"] == "completed", found
        mark(journal, ended=job, text=found["output"]["text"])


def _broken(
    root: Path, model: Path, promises: ServicePromises, expected: dict[int, str]
) -> Iterator[Violation]:
    """Start a service on a rebuilt directory, and wait for the end of every accepted job."""
    try:
        with (
            Service(root, env=environment(model)) as service,
            httpx.Client(base_url=service.base_url, timeout=_DEADLINES_S) as client,
        ):
            for job, number in promises.accepted.items():
                if client.get(f"/v1/jobs/{job}").status_code == httpx.codes.NOT_FOUND:
                    yield Violation("every accepted job ends", job, "is not there")
                    continue
                found = ended(client, job, within_s=_ENDS_WITHIN_S)
                text = (found.get("output") or {}).get("text")
                if found.get("status") != "completed" or text != expected[number]:
                    what = f"is {found.get('status')}: {text!r} for {expected[number]!r}"
                    yield Violation("every accepted job ends", job, what)
    except AssertionError as error:
        yield Violation("the service starts", root.name, str(error))
    engine = reader_engine(f"sqlite:///{root / 'events.sqlite3'}")
    try:
        verify_log(engine)
        verify_payloads(engine)
    finally:
        engine.dispose()
