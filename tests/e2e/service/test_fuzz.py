"""A slice of the fuzz corpus against a running service; ``bench.fuzz`` sends all of it."""

from __future__ import annotations

from collections.abc import Callable

from bench.fuzz.__main__ import GROWTH_MAX, WORKER_GROWTH_MAX, Run
from tests.support.processes.service import Service

BODIES = 300
CONNECTIONS = 100


def test_bad_bodies_get_typed_answers_and_leave_nothing_behind(
    own_service: Callable[..., Service],
) -> None:
    service = own_service(SEMANTIC_JOBS__MAX_TOKENS_DEFAULT="2")
    run = Run(service, seed=11, bodies=BODIES, connections=CONNECTIONS)
    grown_bytes = run.send_all(clients=4)
    assert run.faults == []
    assert sum(run.statuses.values()) == BODIES + CONNECTIONS
    assert run.statuses["400"] > BODIES // 4
    assert grown_bytes["api"] < GROWTH_MAX
    assert grown_bytes["worker"] < WORKER_GROWTH_MAX
    assert service.stop() == 0, service.log()
