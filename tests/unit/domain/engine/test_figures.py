"""Counts of what an engine has done."""

from __future__ import annotations

from domain.engine.figures import WorkCounts

_EARLIER = WorkCounts(
    generated_tokens=1,
    computed_tokens=20,
    prompt_tokens=300,
    cached_tokens=40,
    first_tokens=5,
    first_token_ms=60.5,
)
_LATER = WorkCounts(
    generated_tokens=11,
    computed_tokens=120,
    prompt_tokens=1300,
    cached_tokens=1040,
    first_tokens=9,
    first_token_ms=160.75,
)


def test_every_count_is_added() -> None:
    assert (
        WorkCounts(
            generated_tokens=12,
            computed_tokens=140,
            prompt_tokens=1600,
            cached_tokens=1080,
            first_tokens=14,
            first_token_ms=221.25,
        )
        == _EARLIER + _LATER
    )


def test_every_count_is_taken_since_an_earlier_one() -> None:
    assert _LATER.since(_EARLIER) == WorkCounts(
        generated_tokens=10,
        computed_tokens=100,
        prompt_tokens=1000,
        cached_tokens=1000,
        first_tokens=4,
        first_token_ms=100.25,
    )


def test_means_need_a_prompt() -> None:
    assert WorkCounts().first_token_mean_ms is None
    assert WorkCounts().cached_share is None
    assert _EARLIER.first_token_mean_ms == 12.1
    assert _LATER.cached_share == 0.8
