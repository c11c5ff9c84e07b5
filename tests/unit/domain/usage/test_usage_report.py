"""The rows of a usage report, their order and limit, and their form as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from domain.usage.figures import UsageFigures, UsageGroup
from domain.usage.fold import UsageChange, UsageKey
from domain.usage.report import COUNTS, report_usage, usage_row
from domain.values import Owner
from tests.support.fakes.projections import InMemoryUsageViews

FIGURES = UsageFigures(
    completed=3,
    failed=1,
    cancelled=2,
    expired=4,
    prompt_tokens=300,
    cached_tokens=100,
    completion_tokens=1_003,
    hits=8,
    started_jobs=5,
    timed_jobs=3,
    queue_us=10_000,
    restore_us=4_000,
    prefill_us=6_001,
    first_token_us=9_000,
    decode_us=3_000_000,
    total_us=70_000,
)


def change(
    *,
    hour: str = "2026-01-01T10",
    model: str = "m",
    agent: str = "",
    owner: str = "",
    prompt: int = 0,
    completion: int = 0,
) -> UsageChange:
    figures = UsageFigures(completed=1, prompt_tokens=prompt, completion_tokens=completion)
    return UsageChange(key=UsageKey(hour, model, agent, owner), figures=figures)


def views_of(*changes: UsageChange) -> InMemoryUsageViews:
    views = InMemoryUsageViews()
    views.changes = list(changes)
    return views


def names(report: Mapping[str, Any]) -> list[str]:
    return [row["name"] for row in report["data"]]


def test_a_row_has_its_counts_as_they_are() -> None:
    row = usage_row("ann", FIGURES)
    assert (row["name"], row["jobs"]) == ("ann", 10)
    assert {name: row[name] for name in COUNTS} == {
        "completed": 3,
        "failed": 1,
        "cancelled": 2,
        "expired": 4,
        "attempts": 0,
        "failed_attempts": 0,
        "prompt_tokens": 300,
        "cached_tokens": 100,
        "completion_tokens": 1_003,
        "reasoning_tokens": 0,
        "kept_tokens": 0,
        "hits": 8,
        "ram_tokens": 0,
        "disk_tokens": 0,
        "misses_diverged": 0,
        "misses_gone": 0,
        "misses_model_changed": 0,
        "missed_tokens": 0,
        "started_jobs": 5,
        "timed_jobs": 3,
    }
    rates = {"cached_ratio", "mean_ms", "decode_tokens_per_s"}
    assert row.keys() - set(COUNTS) == {"name", "jobs"} | rates


def test_each_mean_is_over_the_jobs_that_have_the_duration() -> None:
    assert usage_row("", FIGURES)["mean_ms"] == {
        "queue": 2.0,
        "restore": 0.5,
        "prefill": 2.0,
        "first_token": 3.0,
        "decode": 1_000.0,
        "total": 7.0,
    }


def test_means_have_microseconds_and_the_cached_share_four_digits() -> None:
    figures = UsageFigures(
        completed=7, total_us=10_000, prompt_tokens=700_000, cached_tokens=123_456
    )
    row = usage_row("", figures)
    assert row["mean_ms"]["total"] == 1.429
    assert row["cached_ratio"] == 0.1764


def test_what_was_not_measured_has_no_mean_and_no_rate() -> None:
    row = usage_row("", UsageFigures())
    assert set(row["mean_ms"].values()) == {None}
    assert (row["cached_ratio"], row["decode_tokens_per_s"]) == (0.0, None)


@pytest.mark.parametrize(
    ("completion_tokens", "timed_jobs", "decode_us", "rate"),
    [
        (1_003, 3, 3_000_000, 333.33),
        (4, 3, 1, 1_000_000.0),
        (3, 3, 1_000_000, 0.0),
        (2, 3, 1_000_000, 0.0),
        (1_003, 3, 0, None),
    ],
)
def test_the_rate_of_tokens_is_without_the_first_token_of_each_job(
    completion_tokens: int, timed_jobs: int, decode_us: int, rate: float | None
) -> None:
    figures = UsageFigures(
        completion_tokens=completion_tokens, timed_jobs=timed_jobs, decode_us=decode_us
    )
    assert usage_row("", figures)["decode_tokens_per_s"] == rate


def test_a_report_has_its_rows_its_total_and_its_first_hour() -> None:
    one = UsageFigures(completed=1, prompt_tokens=5)
    views = views_of(change(model="m", prompt=5), change(model="n"))
    report = report_usage(views, UsageGroup.MODEL, since="2026-01-01T10:30:00Z", limit=1)
    assert report == {
        "object": "usage",
        "by": "model",
        "since": "2026-01-01T10:00:00Z",
        "data": [usage_row("m", one)],
        "total": usage_row("total", one + UsageFigures(completed=1)),
        "has_more": True,
    }


def test_hours_are_the_latest_ones_in_order() -> None:
    views = views_of(
        *(change(hour=f"2026-01-01T{hour}", prompt=20 - hour) for hour in (12, 10, 11))
    )
    for limit, hours in ((1, ["12"]), (2, ["11", "12"]), (3, ["10", "11", "12"])):
        report = report_usage(views, UsageGroup.HOUR, since=None, limit=limit)
        assert names(report) == [f"2026-01-01T{hour}" for hour in hours]
        assert report["has_more"] is (limit < 3)


def test_days_are_the_latest_ones_in_order() -> None:
    views = views_of(
        change(hour="2026-01-01T10", prompt=9),
        change(hour="2026-01-02T10", prompt=5),
        change(hour="2026-01-02T11", prompt=2),
        change(hour="2026-01-03T00", prompt=8),
    )
    report = report_usage(views, UsageGroup.DAY, since=None, limit=2)
    assert [(row["name"], row["prompt_tokens"]) for row in report["data"]] == [
        ("2026-01-02", 7),
        ("2026-01-03", 8),
    ]


@pytest.mark.parametrize(
    ("group", "listed"), [(UsageGroup.AGENT, ["d", "b"]), (UsageGroup.MODEL, ["n", "m"])]
)
def test_agents_and_models_with_the_most_tokens_of_prompts_and_answers_come_first(
    group: UsageGroup, listed: Sequence[str]
) -> None:
    views = views_of(
        change(agent="a", model="l", prompt=5, completion=1),
        change(agent="c", model="m", prompt=3, completion=4),
        change(agent="b", model="m", prompt=4, completion=3),
        change(agent="d", model="n", prompt=1, completion=99),
    )
    report = report_usage(views, group, since=None, limit=2)
    assert names(report) == listed
    assert report["has_more"]


def test_the_total_includes_rows_beyond_the_limit() -> None:
    views = views_of(
        change(agent="a", prompt=5, completion=1), change(agent="b", prompt=7, completion=2)
    )
    report = report_usage(views, UsageGroup.AGENT, since=None, limit=1)
    both = UsageFigures(completed=2, prompt_tokens=12, completion_tokens=3)
    assert report["total"] == usage_row("total", both)
    full = report_usage(views, UsageGroup.AGENT, since=None, limit=2)
    assert (full["total"], full["has_more"]) == (report["total"], False)


def test_the_whole_hour_of_the_first_instant_counts() -> None:
    views = views_of(
        change(hour="2026-01-01T09"), change(hour="2026-01-01T10"), change(hour="2026-01-01T11")
    )
    report = report_usage(views, UsageGroup.HOUR, since="2026-01-01T10:59:59Z", limit=9)
    assert names(report) == ["2026-01-01T10", "2026-01-01T11"]
    assert report["since"] == "2026-01-01T10:00:00Z"
    assert report_usage(views, UsageGroup.HOUR, since=None, limit=9)["since"] is None


def test_only_jobs_of_the_named_key_count() -> None:
    views = views_of(change(owner="k", prompt=5), change(owner="other", prompt=7))
    own = report_usage(views, UsageGroup.MODEL, since=None, limit=9, owner=Owner("k"))
    assert own["total"]["prompt_tokens"] == 5
    every = report_usage(views, UsageGroup.MODEL, since=None, limit=9)
    assert every["total"]["prompt_tokens"] == 12


def test_a_log_without_ended_jobs_has_an_empty_report() -> None:
    report = report_usage(views_of(), UsageGroup.DAY, since=None, limit=9)
    empty = {"data": [], "total": usage_row("total", UsageFigures()), "has_more": False}
    assert report == {"object": "usage", "by": "day", "since": None} | empty
