"""What a case gets: a service of its own, a client, and the size of its load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.chaos.model import make_exact_model
from bench.stress.client import StressClient
from bench.stress.verdict import Outcome
from tests.support.processes.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a case.

    Attributes:
        service: A service that is ready and idle.
        client: Sends requests to it.
        scale: Share of the load and of the time of the whole case.
    """

    service: Service
    client: StressClient
    scale: float = 1.0

    def count(self, number: int) -> int:
        """Return how many of ``number`` requests or turns this run has."""
        return max(2, round(number * self.scale))

    def seconds(self, whole_s: float) -> float:
        """Return how long this run lasts instead of ``whole_s``."""
        return whole_s * self.scale


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        work: Sends the load; its name is that of the case, and its docstring begins with the load.
        minutes: How long it takes on two quiet cores, about.
        env: Settings of its service.
        exact: Whether the model computes in float32, so that equal questions have equal answers.
    """

    work: Callable[[Run], Coroutine[Any, Any, Outcome]]
    minutes: float
    env: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False

    @property
    def name(self) -> str:
        """What ``--case`` takes."""
        return self.work.__name__.replace("_", "-")

    @property
    def load(self) -> str:
        """The load in words."""
        return (self.work.__doc__ or "").splitlines()[0].removesuffix(".")


def run_case(case: Case, folder: Path, *, scale: float = 1.0) -> Outcome:
    """Run a case on a service of its own.

    Args:
        folder: An empty directory for the service and its model; its logs stay there.
        scale: Share of the load and of the time.
    """
    env = dict(case.env)
    if case.exact:
        env["SEMANTIC_MODEL__ID"] = str(make_exact_model(folder / "model"))
    service = Service(folder / "data", env=env).start()

    async def work() -> Outcome:
        async with StressClient(service.base_url) as client:
            return await case.work(Run(service=service, client=client, scale=scale))

    try:
        return asyncio.run(work())
    finally:
        service.stop()
