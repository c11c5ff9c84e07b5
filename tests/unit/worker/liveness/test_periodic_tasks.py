"""Periodic actions of the worker outlive what they raise."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from domain.errors import QueueUnavailable
from tests.support.polling import scaled
from worker.liveness.periodic_tasks import PeriodicTask

WITHIN_S = 60.0


class Action:
    """Raises these errors in turn, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.succeeded = threading.Event()

    def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.succeeded.set()


def lines_of(*errors: Exception) -> list[tuple[str, bool]]:
    """Return level and presence of a traceback of each line, once the action has succeeded."""
    action = Action(*errors)
    with capture_logs() as lines, PeriodicTask("pulse", 0.0, action):
        assert action.succeeded.wait(scaled(WITHIN_S)), "the action was not called again"
    return [(line["log_level"], bool(line.get("exc_info"))) for line in lines]


def test_action_that_raises_an_os_error_is_called_again() -> None:
    assert lines_of(OSError("the disk does not answer")) == [("error", True)]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([OSError(), OSError(), OSError()], [("error", True)]),
        ([QueueUnavailable(), QueueUnavailable()], [("warning", False)]),
        ([OSError(), ValueError()], [("error", True), ("error", True)]),
        ([QueueUnavailable(), OSError()], [("warning", False), ("error", True)]),
    ],
)
def test_each_kind_of_error_in_a_row_is_logged_once(
    errors: list[Exception], expected: list[tuple[str, bool]]
) -> None:
    assert lines_of(*errors) == expected
