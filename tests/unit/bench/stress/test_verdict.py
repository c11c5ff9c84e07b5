"""Targets are judged as they read, and the page shows what was measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.comparison.conversation import QUESTIONS
from bench.stress.cases import CASES, PLAN
from bench.stress.client import Reply, question
from bench.stress.page import BEGIN, END, write_page
from bench.stress.verdict import (
    Check,
    Outcome,
    answered,
    no_failure,
    percentiles,
    well_formed_refusals,
    within,
)

ANSWER = Reply(at_s=0, ms=10, status=200)
REFUSED = Reply(at_s=0, ms=1, status=429, error="rate_limit_error", retry_after="2")
LOST = Reply(at_s=0, ms=1, status=0, error="ConnectError()")
FAILED = Reply(at_s=0, ms=1, status=500, error="api_error")


@pytest.mark.parametrize("first", [0, 300, 1050])
def test_parts_of_a_load_ask_each_question_equally_often(first: int) -> None:
    asked = Counter(
        question(f"sustained-{number % 5} {number}")[0]["content"].rpartition(". ")[2]
        for number in range(first, first + 600)
    )
    assert asked.keys() == set(QUESTIONS)
    assert max(asked.values()) < 1.2 * min(asked.values())


def test_the_plan_has_twelve_cases_and_no_name_twice() -> None:
    assert len(PLAN) == 12
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("check", "reached"),
    [
        (answered([ANSWER, REFUSED], 0.5), True),
        (answered([ANSWER, REFUSED, REFUSED], 0.5), False),
        (no_failure([ANSWER, REFUSED]), True),
        (no_failure([ANSWER, LOST]), False),
        (no_failure([ANSWER, FAILED]), False),
        (well_formed_refusals([ANSWER, REFUSED], required=True), True),
        (well_formed_refusals([ANSWER], required=False), True),
        (well_formed_refusals([ANSWER], required=True), False),
        (well_formed_refusals([Reply(at_s=0, ms=1, status=429)], required=False), False),
        (within([10.0] * 18 + [3000.0] * 2, 0.95, 2000), False),
        (within([10.0] * 99 + [3000.0], 0.95, 2000), True),
        (within([], 0.95, 2000), False),
    ],
)
def test_target_is_judged(check: Check, *, reached: bool) -> None:
    assert check.reached == reached


def test_a_missed_time_is_named_and_fails_no_run() -> None:
    slow = within([3000.0], 0.95, 2000)
    outcome = Outcome(checks=(no_failure([ANSWER]), slow))
    assert outcome.passed
    assert outcome.verdict == "**fell short**: p95 < 2 s"
    assert not Outcome(checks=(no_failure([LOST]),)).passed
    assert Outcome(checks=(no_failure([ANSWER]),)).verdict == "reached"


def test_percentiles_of_nothing_are_nothing() -> None:
    assert percentiles([]) == ()
    assert percentiles([float(ms) for ms in range(100)]) == (50.0, 95.0, 99.0)


def test_page_has_a_row_for_each_case_and_keeps_its_text(tmp_path: Path) -> None:
    page = tmp_path / "stress.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    versions = {"mlx": "1"}
    conditions = {"quiet": False, "at": "now", "commit": "abc", "system": "Linux", "cores": 2}
    conditions |= {"memory_gb": 8, "python": "3", "versions": versions, "busy_percent": 90.0}
    result = {
        "command": "python -m bench.stress --case full",
        "scale": 1,
        "took_s": 3.0,
        "conditions": conditions,
        "verdict": "reached",
        "checks": [{"target": "no 5xx", "figure": "none"}],
        "head": ["agents", ">p50 ms"],
        "rows": [[10, 5.5]],
        "note": "",
    }
    write_page(page, {"full": result})
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "no 5xx: none | reached (loaded machine) |" in text
    assert "| 10 | 5.5 |" in text
    assert text.count("not run yet") == len(CASES) - 1
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no place for the table"):
        write_page(page, {})
