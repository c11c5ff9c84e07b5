"""Periodic actions of the api outlive what they raise."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from api.loops.periodic_tasks import PeriodicTasks
from domain.errors import LogUnavailable
from tests.support.polling import scaled

WITHIN_S = 60.0


class Action:
    """Raises these errors in turn, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.succeeded = asyncio.Event()

    async def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.succeeded.set()


def lines_of(*errors: Exception) -> list[tuple[str, bool]]:
    """Return level and presence of a traceback of each line, once the action has succeeded."""

    async def run() -> None:
        action = Action(*errors)
        tasks = PeriodicTasks("upkeep", 0.0, action, logger=structlog.get_logger())
        tasks.start()
        await asyncio.wait_for(action.succeeded.wait(), scaled(WITHIN_S))
        await tasks.close()

    with capture_logs() as lines:
        asyncio.run(run())
    assert all(line["task"] == "upkeep" for line in lines)
    return [(line["log_level"], bool(line.get("exc_info"))) for line in lines]


def test_action_that_raises_an_os_error_is_called_again() -> None:
    assert lines_of(OSError("no file descriptor is left")) == [("error", True)]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([OSError(), OSError(), OSError()], [("error", True)]),
        ([LogUnavailable(), LogUnavailable()], [("warning", False)]),
        ([OSError(), ValueError()], [("error", True), ("error", True)]),
        ([LogUnavailable(), OSError()], [("warning", False), ("error", True)]),
    ],
)
def test_each_kind_of_error_in_a_row_is_logged_once(
    errors: list[Exception], expected: list[tuple[str, bool]]
) -> None:
    assert lines_of(*errors) == expected
