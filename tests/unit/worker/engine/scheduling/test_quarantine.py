"""Quarantine: only a sequence that fails alone is a culprit, and the search always ends."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduling.quarantine import (
    CULPRITS_MAX,
    ROUNDS_MAX,
    STEPS_TO_CLEAR,
    Quarantine,
)

STEPS_MAX = 1000
TOKENS = 6


def quarantine() -> Quarantine[str]:
    return Quarantine(job_of=lambda name: name)


def clear(one: Quarantine[str], name: str) -> str | None:
    """Take a sequence beyond the point of the failure; return what leaves the batch."""
    assert [one.record_success([name]) for _ in range(STEPS_TO_CLEAR - 1)] == [None] * (
        STEPS_TO_CLEAR - 1
    )
    return one.record_success([name])


def test_newest_sequence_runs_alone_first() -> None:
    one = quarantine()
    assert one.record_failure(["a", "b", "c"]) is None
    assert one.is_active
    assert [one.admits(name) for name in "abcd"] == [False, False, True, False]


def test_culprit_ends_the_search_and_the_others_continue_together() -> None:
    one = quarantine()
    one.record_failure(["a", "b", "c"])
    assert clear(one, "c") == "c"
    assert one.record_failure(["b"]) == "b"
    assert not one.is_active
    assert all(one.admits(name) for name in "abc")


def test_last_cleared_sequence_stays_in_the_batch() -> None:
    one = quarantine()
    one.record_failure(["a", "b"])
    assert clear(one, "b") == "b"
    assert clear(one, "a") is None
    assert not one.is_active


def test_step_without_progress_clears_no_sequence() -> None:
    one = quarantine()
    one.record_failure(["a", "b"])
    for _ in range(10):
        assert one.record_success([]) is None
    assert one.admits("b")


def test_sequence_that_ended_is_not_tried() -> None:
    one = quarantine()
    one.record_failure(["a", "b", "c"])
    one.forget("b")
    one.forget("c")
    assert one.admits("a")
    one.forget("a")
    assert not one.is_active


def test_engine_that_fails_only_with_several_sequences_is_at_fault_in_the_end() -> None:
    one = quarantine()
    for number in range(ROUNDS_MAX):
        assert not one.is_hopeless(), number
        one.record_failure(["a", "b"])
        clear(one, "b")
        clear(one, "a")
    assert one.is_hopeless()


def test_jobs_that_fail_alone_in_a_row_show_a_fault_of_the_engine() -> None:
    one = quarantine()
    for name in "abcde"[:CULPRITS_MAX]:
        assert not one.is_hopeless()
        assert one.record_failure([name]) == name
    assert one.is_hopeless()


def test_one_job_that_keeps_failing_is_no_fault_of_the_engine() -> None:
    one = quarantine()
    for _ in range(3 * CULPRITS_MAX):
        one.record_failure(["a"])
    assert not one.is_hopeless()


@given(st.sets(st.integers(0, 7), max_size=2), st.integers(1, 8), st.integers(0, TOKENS - 1))
def test_exactly_the_poisoned_sequences_are_struck(
    poisoned: Collection[int], count: int, at: int
) -> None:
    """A poisoned sequence breaks every step in which it computes its token ``at``."""
    one = quarantine()
    tokens = {str(name): 0 for name in range(count)}
    struck: set[str] = set()
    running: list[str] = []
    for _ in range(STEPS_MAX):
        places = 1 if one.is_active else count
        joining = [name for name in sorted(tokens) if name not in running and one.admits(name)]
        running = sorted([*running, *joining][: max(places, len(running))])
        if not running:
            break
        if any(int(name) in poisoned and tokens[name] == at for name in running):
            culprit = one.record_failure(running)
            assert not one.is_hopeless()
            if culprit is not None:
                struck.add(culprit)
                del tokens[culprit]
            running = []
            continue
        for name in running:
            tokens[name] += 1
        ended = [name for name in running if tokens[name] == TOKENS]
        advanced = list(running)
        for name in ended:
            one.forget(name)
            running.remove(name)
            del tokens[name]
        cleared = one.record_success(advanced)
        if cleared is not None:
            running.remove(cleared)
    assert not tokens, "the search does not end"
    assert struck == {str(name) for name in poisoned if name < count}
