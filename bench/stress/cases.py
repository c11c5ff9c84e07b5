"""The twelve cases of ``bench.stress``, and how one is run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.chaos.model import make_exact_model
from bench.chaos.run import SHORT_ITEMS, SMALL_CACHES
from bench.stress import agents, bursts, sustained
from bench.stress.client import Outcome, Run, StressClient
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

#: Places for more requests than the memory has room for.
_SMALL_MEMORY: Final = with_constants(
    {"SEMANTIC_ENGINE__KV_BUDGET_MB": "5", "SEMANTIC_ENGINE__MAX_BATCH_SIZE": "64"},
    {"api.access.limits.MEMORY_WAIT_S": 1.0},
)
_SMALL_CACHES: Final = with_constants(SMALL_CACHES, SHORT_ITEMS)
_SHORT_QUEUE: Final = {"SEMANTIC_JOBS__QUEUE_LIMIT": str(bursts.QUEUE_LIMIT)}
_KEYS: Final = {
    "SEMANTIC_API_KEY": agents.KEYS[0],
    "SEMANTIC_SERVER__API_KEYS": json.dumps(
        [f"agent-{number}={key}" for number, key in enumerate(agents.KEYS)]
    ),
}


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

    async def work(service: Service) -> Outcome:
        async with StressClient(service.base_url) as client:
            return await case.work(Run(service=service, client=client, scale=scale))

    with Service(folder / "data", env=env) as service:
        return asyncio.run(work(service))


CASES: Final = (
    Case(bursts.concurrent, minutes=1, env=_SHORT_QUEUE),
    Case(bursts.full, minutes=1.5, env=_SMALL_MEMORY),
    Case(bursts.steady, minutes=4),
    Case(bursts.recovery, minutes=1.5),
    Case(agents.rapid, minutes=2),
    Case(agents.isolation, minutes=1, env=_KEYS, exact=True),
    Case(agents.latency, minutes=1),
    Case(agents.hits, minutes=1),
    Case(sustained.hour, minutes=61, env=_SMALL_CACHES),
    Case(sustained.per_minute, minutes=10.5),
    Case(sustained.memory, minutes=31, env=_SMALL_CACHES),
    Case(sustained.drift, minutes=11, env=_SMALL_CACHES),
)
