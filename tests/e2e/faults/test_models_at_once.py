"""Two workers of one log with different models: each job goes to a worker that has its model."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients.service_log import ended
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled, wait_until
from tests.support.processes.machines import Machine
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import free_port

pytestmark = pytest.mark.redis

WITHIN_S = 120.0
#: Jobs of each model; with one of them alone a worker of the other model might be lucky.
JOBS = 4


class Site:
    """An api, and two workers with the models ``a`` and ``b``."""

    def __init__(self, redis_url: str, directory: Path) -> None:
        for seed, name in enumerate(("a", "b")):
            make_tiny_llama(directory / name, hidden=64, layers=2, context=2048, seed=seed)
        config, port = directory / "semantic.toml", free_port()
        tables = (f'[models.{name}]\nsource = "{directory / name}"\n' for name in ("a", "b"))
        config.write_text("".join(tables))
        shared = {
            "SEMANTIC_CONFIG": str(config),
            "SEMANTIC_MODEL__ID": "a",
            "SEMANTIC_LOG__URL": f"sqlite:///{directory / 'shared.sqlite3'}",
            "SEMANTIC_REDIS__URL": redis_url,
            "SEMANTIC_REDIS__PREFIX": f"t{uuid.uuid4().hex[:8]}",
            "SEMANTIC_SERVER__PORT": str(port),
        }
        shared = with_constants(shared, {"worker.process.RECONCILE_S": 1.0})
        self.machines = [
            Machine(part, directory / f"machine-{name}", shared)
            for part, name in (("api", "api"), ("worker", "one"), ("worker", "two"))
        ]
        self._numbers = count()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(WITHIN_S))

    def start(self) -> None:
        for machine in self.machines:
            machine.start()
        wait_until(lambda: [*self.models().values()] == ["a", "a"], within_s=WITHIN_S)

    def close(self) -> None:
        self.http.close()
        codes = [machine.stop() for machine in self.machines]
        assert codes == [0, 0, 0], "\n".join(machine.log_tail() for machine in self.machines)

    def models(self) -> dict[str, str]:
        """Return the loaded model of each ready worker, by place."""
        try:
            workers = self.http.get("/admin/engine").json()["workers"]
        except httpx.TransportError:
            return {}
        return {one["place"]: one["model"] for one in workers if one["state"] == "ready"}

    def swap(self, model: str, **query: str) -> dict[str, Any]:
        """Swap and return the swap at its end."""
        swap = self.http.post(f"/admin/models/{model}/load", params=query).json()["id"]

        def state() -> dict[str, Any]:
            return dict(self.http.get(f"/admin/swaps/{swap}").json())

        return wait_until(state, lambda one: one["ended_at"] is not None, within_s=WITHIN_S)

    def submit(self, model: str | None) -> str:
        # A repeat of a request would join the job of the first.
        prompt = f"Tell me story {next(self._numbers)}."
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "seed": 1}
        reply = self.http.post("/v1/jobs", json=body | ({} if model is None else {"model": model}))
        assert reply.status_code == 202, reply.text
        return str(reply.json()["id"])

    def ended(self, job: str) -> dict[str, Any]:
        return ended(self.http, job, within_s=WITHIN_S)


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(redis_url, tmp_path)
    try:
        site.start()
        yield site
    finally:
        site.close()


def test_a_job_goes_to_the_worker_that_has_its_model(site: Site) -> None:
    first, second = site.models()
    swap = site.swap("b", worker=second)
    assert (swap["state"], swap["worker"]) == ("done", second)
    wait_until(lambda: site.models() == {first: "a", second: "b"}, within_s=WITHIN_S)
    jobs = {model: [site.submit(model) for _ in range(JOBS)] for model in ("a", "b", None)}
    answered = {
        model: {(job["status"], job["answered_by"]) for job in map(site.ended, ids)}
        for model, ids in jobs.items()
    }
    assert answered["a"] == {("completed", "a")}
    assert answered["b"] == {("completed", "b")}
    assert answered[None] <= {("completed", "a"), ("completed", "b")}
    # A swap of all workers gives both the same model again.
    assert site.swap("b")["state"] == "done"
    wait_until(lambda: site.models() == {first: "b", second: "b"}, within_s=WITHIN_S)
