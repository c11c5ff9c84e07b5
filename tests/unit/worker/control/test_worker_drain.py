"""How long a worker that ends waits for its contexts."""

from __future__ import annotations

import pytest

from ops.exit_codes import ExitCode
from worker.control.worker_drain import SAVE_S, STOP_SAVE_S, PlannedExit, last_saves_s

_SWAP = PlannedExit(ExitCode.SWAPPED, 300.0)


@pytest.mark.parametrize(
    ("planned", "is_asked_to_stop", "seconds"),
    [(None, False, STOP_SAVE_S), (_SWAP, False, SAVE_S), (_SWAP, True, STOP_SAVE_S)],
)
def test_a_planned_exit_waits_longer_than_a_stop(
    planned: PlannedExit | None, *, is_asked_to_stop: bool, seconds: float
) -> None:
    assert last_saves_s(planned, is_asked_to_stop=is_asked_to_stop) == seconds
