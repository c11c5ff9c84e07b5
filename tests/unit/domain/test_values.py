"""Values that several parts of the domain add up, complete or compare."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from domain.values import (
    CacheFigures,
    DraftFigures,
    JobStatus,
    Sampling,
    SamplingWish,
    Usage,
    digest_of,
    rfc3339,
)

_DEFAULTS = Sampling(temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, seed=9)


def test_parameters_that_a_caller_leaves_out_come_from_the_model_but_never_the_seed() -> None:
    assert SamplingWish(seed=4).resolve(_DEFAULTS) == replace(_DEFAULTS, seed=4)


def test_parameters_of_the_caller_stay_also_where_they_are_zero() -> None:
    wish = SamplingWish(temperature=0.0, top_p=0.5, top_k=0, min_p=0.0, seed=0)
    whole = Sampling(temperature=0.0, top_p=0.5, top_k=0, min_p=0.0, seed=0)
    assert wish.resolve(_DEFAULTS) == whole


@pytest.mark.parametrize(
    ("sampling", "is_greedy"),
    [
        (Sampling(temperature=0), True),
        (Sampling(top_p=0), True),
        (Sampling(temperature=0.1, top_p=0.1), False),
    ],
)
def test_sampling_without_temperature_or_nucleus_mass_is_greedy(
    sampling: Sampling, *, is_greedy: bool
) -> None:
    assert sampling.is_greedy is is_greedy


def test_usage_adds_every_count() -> None:
    first = Usage(
        prompt_tokens=1, cached_tokens=2, completion_tokens=3, reasoning_tokens=4, kept_tokens=5
    )
    second = Usage(
        prompt_tokens=10,
        cached_tokens=20,
        completion_tokens=30,
        reasoning_tokens=40,
        kept_tokens=50,
    )
    assert first + second == Usage(
        prompt_tokens=11,
        cached_tokens=22,
        completion_tokens=33,
        reasoning_tokens=44,
        kept_tokens=55,
    )


@pytest.mark.parametrize("status", JobStatus)
def test_three_states_of_a_job_can_still_change(status: JobStatus) -> None:
    assert status.is_terminal is (status.value not in {"held", "queued", "running"})


def test_fill_of_the_memory_is_what_cannot_be_freed() -> None:
    figures = CacheFigures(ram_blocks=2, ram_used_bytes=80, ram_budget_bytes=100, ram_held_bytes=25)
    assert figures.fill == 0.25
    assert replace(figures, ram_budget_bytes=0).fill == 0.0


def test_each_draft_is_counted_with_its_tokens() -> None:
    figures = DraftFigures()
    figures.record(8, 3)
    figures.record(5, 0)
    assert figures == DraftFigures(drafts=2, drafted_tokens=13, accepted_tokens=3)


def test_instant_has_six_digits_so_that_texts_sort() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert rfc3339(moment) == "2026-01-02T03:04:05.000000Z"
    assert rfc3339(moment + timedelta(microseconds=7)) == "2026-01-02T03:04:05.000007Z"


def test_address_of_a_text_names_the_algorithm() -> None:
    assert digest_of(b"") == (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
