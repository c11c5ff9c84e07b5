"""The rates of an hour."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from domain.usage.figures import UsageFigures
from domain.usage.report import hour_name, rates_of_hour

SUMS = UsageFigures(
    completed=2,
    started_jobs=4,
    timed_jobs=2,
    prompt_tokens=7200,
    cached_tokens=3600,
    completion_tokens=1800,
    queue_us=1_000_000,
    first_token_us=3_000_000,
)


def test_past_hour_is_divided_by_its_length() -> None:
    rates = rates_of_hour(SUMS, 0, 10_000).rates
    assert (rates.tokens_per_s, rates.prompt_tokens_per_s) == (0.5, 1.0)
    assert (rates.first_token_ms, rates.cached_share) == (1750, 0.5)


def test_present_hour_is_divided_by_what_has_passed_of_it() -> None:
    assert rates_of_hour(SUMS, 0, 900).rates.tokens_per_s == 2.0
    assert rates_of_hour(SUMS, 0, 0).rates.tokens_per_s == 1800


def test_hour_without_jobs_has_no_means() -> None:
    rates = rates_of_hour(UsageFigures(), 0, 10_000).rates
    assert (rates.tokens_per_s, rates.first_token_ms, rates.cached_share) == (0, None, None)


def test_name_of_an_hour_is_that_of_the_sums() -> None:
    assert hour_name(1_795_374_000) == "2026-11-22T19"
    assert rates_of_hour(SUMS, 1_795_374_000, 1_795_380_000).at_s == 1_795_374_000


def test_name_of_an_hour_is_the_same_in_every_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert hour_name(1_795_374_000) == "2026-11-22T19"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_means_of_few_jobs_have_no_offset() -> None:
    answered = replace(SUMS, started_jobs=0)
    assert rates_of_hour(answered, 0, 10_000).rates.first_token_ms == 1500
    known = replace(SUMS, cached_tokens=7200)
    assert rates_of_hour(known, 0, 10_000).rates.prompt_tokens_per_s == 0
