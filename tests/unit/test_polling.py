"""Waiting returns what was accepted, and its failure shows what was seen last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.polling import (
    SLOWNESS,
    SLOWNESS_MAX,
    eventually,
    measured_slowness,
    scaled,
    wait_until,
)


@pytest.fixture
def numbers() -> Iterator[int]:
    return iter(range(100))


def test_value_is_the_one_that_was_accepted(numbers: Iterator[int]) -> None:
    assert wait_until(lambda: next(numbers), lambda number: number == 3) == 3
    assert next(numbers) == 4, "nothing was read after it"


def test_first_true_value_is_accepted_by_default() -> None:
    values = iter((None, "", "here"))
    assert wait_until(lambda: next(values)) == "here"


def test_none_is_never_accepted() -> None:
    values = iter((None, 0))
    assert wait_until(lambda: next(values), lambda _: True) == 0


def test_failure_shows_the_last_value_and_what_describes_it() -> None:
    with pytest.raises(AssertionError, match="the job did not come") as failed:
        wait_until(lambda: "seen", refuse_all, within_s=0, what="the job", describe=lambda: "log")
    assert "last seen: 'seen'\nlog" in str(failed.value)


def refuse_all(_: object) -> bool:
    return False


def test_look_is_made_after_the_deadline_has_passed(numbers: Iterator[int]) -> None:
    """A process that had no turn until then still sees what has come."""
    assert wait_until(lambda: next(numbers) + 1, within_s=0) == 1


def test_ignored_errors_count_as_not_yet() -> None:
    errors = [ConnectionError(), ConnectionError()]

    def look() -> str:
        if errors:
            raise errors.pop()
        return "there"

    assert wait_until(look, ignore=ConnectionError) == "there"


def test_ignored_error_is_shown_and_another_ends_the_wait() -> None:
    def refuse() -> str:
        raise ConnectionError("refused")

    with pytest.raises(AssertionError, match="last seen: ConnectionError"):
        wait_until(refuse, within_s=0, ignore=ConnectionError)
    with pytest.raises(ConnectionError, match="refused"):
        wait_until(refuse, ignore=KeyError)


def test_tasks_run_while_one_waits() -> None:
    async def scenario() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, done.set)
        assert await eventually(done.is_set)

    asyncio.run(scenario())


def test_deadlines_grow_with_the_slowness_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "2.5")
    assert scaled(60) == 150
    monkeypatch.delenv(SLOWNESS)
    assert scaled(60) == 60


def test_slowness_is_at_least_one_and_bounded() -> None:
    assert 1 <= measured_slowness() <= SLOWNESS_MAX
