"""Parts stand still for longer than their leases."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from bench.chaos.model import make_exact_model
from bench.chaos.run import environment
from tests.support.builders.log_files import verify
from tests.support.polling import pause, scaled
from tests.support.processes.patient_client import answer
from tests.support.processes.service import Service

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(scaled(1800))]

#: Longer than any lease: workers of others count as lost after 15 s.
STOPPED_S = 20.0


def test_every_part_may_stand_still_for_longer_than_its_lease(
    own_service: Callable[..., Service], tmp_path: Path
) -> None:
    service = own_service(**environment(make_exact_model(tmp_path / "model")))
    expected = answer(service)

    def stop(part: psutil.Process) -> None:
        part.send_signal(signal.SIGSTOP)
        pause(STOPPED_S, reason="longer than a lease is what the part stands still")
        if part.is_running():
            part.send_signal(signal.SIGCONT)

    for name in ("worker.main", "api.main", "ops.broker"):
        assert answer(service, partial(stop, service.part(name))) == expected
        assert answer(service) == expected
    (server,) = service.part("ops.broker").children()
    assert answer(service, partial(stop, server)) == expected
    assert answer(service, partial(stop, psutil.Process(service.process.pid))) == expected
    assert answer(service) == expected
    assert service.stop() == 0
    verify(f"sqlite:///{service.data_dir / 'events.sqlite3'}")
