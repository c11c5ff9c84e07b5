"""Services with small random models: one that sees images, and one with models to swap between."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx

from domain.model.swaps import ModelSwaps
from domain.model.wanted_model import (
    SwapState,
    WantedModel,
)
from ops.clock import RandomIds, SystemClock
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.clients.service_log import ended
from tests.support.models.adapters import make_adapter
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.models.tiny_vision import make_tiny_qwen3_5
from tests.support.polling import scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

#: Longest wait for something that takes seconds on an idle machine.
WAIT_S = 180.0


class TwoModels:
    """``semantic serve`` with the models ``a``, which it loads, ``b`` and the broken ``corrupt``.

    Args:
        directory: For models, configuration and data.
        env: Further settings.
        constants: Planted constants beside the time between two looks of a worker.
        adapters: Names of models that are ``a`` with a random adapter.
    """

    def __init__(
        self,
        directory: Path,
        *,
        env: Mapping[str, str] | None = None,
        constants: Mapping[str, object] | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        for seed, name in enumerate(("a", "b", "corrupt")):
            make_tiny_llama(directory / name, hidden=128, layers=4, context=4096, seed=seed)
        # The header fits the file, so that only the load finds the fault.
        weights = directory / "corrupt" / "model.safetensors"
        arrays = mx.load(str(weights))
        assert isinstance(arrays, dict)
        arrays.popitem()
        mx.save_safetensors(str(weights), arrays)
        config = directory / "semantic.toml"
        tables = (
            f'[models.{name}]\nsource = "{directory / name}"\n' for name in ("a", "b", "corrupt")
        )
        adapted = (
            f'[models.{name}]\nsource = "{directory / "a"}"\nadapter = "{directory / name}"\n'
            for name in adapters
        )
        for seed, name in enumerate(adapters):
            make_adapter(directory / name, directory / "a", seed=seed)
        config.write_text(
            "".join((*tables, *adapted)) + f'[models.gone]\nsource = "{directory / "gone"}"\n'
        )
        self.service = Service(
            directory / "data",
            env=with_constants(
                {"SEMANTIC_CONFIG": str(config), "SEMANTIC_MODEL__ID": "a", **(env or {})},
                {"worker.process.RECONCILE_S": 1.0, **(constants or {})},
            ),
        ).start()
        self.http = httpx.Client(base_url=self.service.base_url, timeout=scaled(WAIT_S))
        self._log: SqlEventLog = open_log(
            f"sqlite:///{directory / 'data' / 'events.sqlite3'}", clock=SystemClock()
        )
        self._swaps = ModelSwaps(self._log, RandomIds())

    def close(self) -> int:
        """Stop everything; return the exit code of the service."""
        self.http.close()
        self._log.close()
        return self.service.stop()

    @property
    def wanted(self) -> WantedModel:
        """The wanted model in the log."""
        return self._swaps.read()

    def swap(self, model: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run ``semantic models swap``."""
        return self.service.semantic("models", "swap", model, *more)

    def status(self) -> dict[str, Any]:
        """Return what ``semantic status`` reports."""
        found: dict[str, Any] = json.loads(self.service.semantic("status", "--json").stdout)
        return found

    def request(self, model: str, *, drain_s: int = 60) -> dict[str, Any]:
        """Request a swap and return it."""
        path = f"/admin/models/{model}/load"
        reply = self.http.post(path, params={"drain_s": drain_s})
        assert reply.status_code == 202, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def wait_for(self, swap_id: str, *states: SwapState) -> SwapState:
        """Wait until a swap is in one of the states, or over."""

        def state() -> SwapState:
            swap = self.wanted.get(swap_id)
            assert swap is not None
            return swap.state

        return wait_until(
            state,
            lambda state: state in states or not state.is_open,
            within_s=WAIT_S,
            what=f"{swap_id} in one of {states}",
            describe=self.service.log,
            look_every_s=0.003,  # a state may last for milliseconds
        )

    def wait_served(self, model: str | None = None) -> str:
        """Wait until a worker is ready and listed, with a model if one is named; return its model.

        The list may be a quarter of a second older than the state.
        """
        self.service.wait_ready()
        served: list[str] = []

        def is_served() -> bool:
            served[:] = self._loaded()
            return len(served) == 1 and model in {None, *served}

        wait_until(is_served)
        return served[0]

    def _loaded(self) -> list[str]:
        listed = self.http.get("/admin/models").json()["data"]
        return [str(model["name"]) for model in listed if model["state"] == "loaded"]

    def submit(self, prompt: str, *, tokens: int, model: str | None = None) -> str:
        """Submit a job, by default one that any model may answer, and return its id."""
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "seed": 1,
            **({} if model is None else {"model": model}),
        }
        reply = self.http.post("/v1/jobs", content=json.dumps(body))
        assert reply.status_code == 202, reply.text
        return str(reply.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        found: dict[str, Any] = self.http.get(f"/v1/jobs/{job_id}").json()
        return found

    def ended(self, job_id: str) -> dict[str, Any]:
        """Wait for the end of a job and return it."""
        return ended(self.http, job_id, within_s=WAIT_S, describe=self.service.log)


def seeing_service(directory: Path) -> Iterator[Service]:
    """Yield a running service of ``tiny-vl``, a network that sees images; it ends in order."""
    model = make_tiny_qwen3_5(directory / "tiny-vl")
    env = {"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_MODEL__NAME": "tiny-vl"}
    running = Service(directory / "data", env=env).start()
    yield running
    assert running.stop() == 0, running.log()
