"""A short run of chaos: every fault strikes a working service, and every promise is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.chaos.checker import check
from bench.chaos.faults import make_plan, possible_faults
from bench.chaos.history import Kind
from bench.chaos.load import hook_receiver, sample_requests
from bench.chaos.model import make_exact_model
from bench.chaos.run import Chaos, mixed_environment
from tests.support.polling import scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.timeout(scaled(1200))

#: Determines which two faults come beside the kills: a swap and a freeze.
SEED = 6


def test_every_promise_is_kept_while_everything_is_killed(
    own_service: Callable[..., Service], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(possible_faults(), kills=5, others=2, seed=SEED)
    with hook_receiver(SEED) as hook:
        model = make_exact_model(tmp_path / "model")
        service = own_service(**mixed_environment(model, hook))
        requests = sample_requests(SEED, 4)
        chaos = Chaos(service, seed=SEED, clients=4, requests=requests, log=print, hook=hook)
        run = chaos.run(plan)
    violations = check(run.history)
    assert not violations, [*violations, capfd.readouterr().out]
    # All of it took place: the faults, and work that they disturbed.
    assert [one.planned for one in run.recoveries] == list(plan)
    types = Counter(event.type for event in run.history.events)
    assert types["JobCompleted"] > len(plan)
    assert types["BatchEnded"], types
    assert run.history.messages
    assert {one.kind for one in run.history.operations} == {*Kind}
