from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from domain.webhook.delivery import (
    SCHEDULE_S,
    DeliveryResult,
    Webhook,
    answer_of_status,
    next_try,
    webhook_id,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def hook(attempts: int) -> Webhook:
    return Webhook(
        id=webhook_id("event", "https://example.com/"),
        subject="job-1",
        event="job.completed",
        url="https://example.com/",
        host="example.com:443",
        position=1,
        body=b"{}",
        created_at="",
        attempts=attempts,
    )


def test_names_are_the_same_on_every_try_and_differ_by_receiver() -> None:
    assert webhook_id("e", "https://a/") == webhook_id("e", "https://a/")
    names = {webhook_id(event, url) for event in "ef" for url in ("https://a/", "https://b/")}
    assert len(names) == 4
    assert all(len(name) == len("webhook-") + 32 for name in names)


def test_success_is_2xx_only_and_410_is_final() -> None:
    for status in (200, 202, 204, 299):
        assert answer_of_status(status) == DeliveryResult(status=status)
    for status in (100, 199, 300, 301, 302, 307, 399, 400, 404, 429, 500, 503):
        answer = answer_of_status(status)
        assert answer.error
        assert answer.status == status
        assert not answer.is_final
        assert ("redirects" in answer.error) is (300 <= status < 400)
    assert answer_of_status(410).is_final
    assert answer_of_status(429, 30.0).retry_after_s == 30.0


@pytest.mark.parametrize("tries", range(1, len(SCHEDULE_S) + 1))
def test_waits_follow_the_schedule_up_to_a_fifth_longer(tries: int) -> None:
    wait = next_try(hook(tries), DeliveryResult(error="x"), NOW, SCHEDULE_S) - NOW
    least = timedelta(seconds=SCHEDULE_S[tries - 1])
    assert least <= wait <= least * 1.2
    assert next_try(hook(tries), DeliveryResult(error="x"), NOW, SCHEDULE_S) - NOW == wait


def test_a_receiver_can_ask_for_a_longer_wait_but_not_for_days() -> None:
    def wait_s(retry_after_s: float) -> float:
        answer = DeliveryResult(status=429, error="x", retry_after_s=retry_after_s)
        return (next_try(hook(1), answer, NOW, SCHEDULE_S) - NOW).total_seconds()

    assert wait_s(600) == 600
    assert wait_s(1) >= SCHEDULE_S[0]
    assert wait_s(1e12) == 24 * 3600


def test_the_schedule_lasts_about_a_day() -> None:
    assert 20 * 3600 < sum(SCHEDULE_S) < 26 * 3600
    assert list(SCHEDULE_S) == sorted(SCHEDULE_S)


def test_tries_of_a_webhook_are_spans_of_their_own_in_the_trace_of_its_request() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    first, second = (replace(hook(tries), trace=trace).traceparent() for tries in (1, 2))
    other = replace(hook(1), trace=trace, id=webhook_id("x", "https://a/")).traceparent()
    assert len({first, second, other, trace}) == 4
    for one in (first, second, other):
        assert one is not None
        assert one.split("-")[1] == trace.split("-")[1]
    assert hook(1).traceparent() is None


def test_try_that_is_asked_for_at_once_keeps_to_the_schedule() -> None:
    answers = (DeliveryResult(error="x"), DeliveryResult(error="x", retry_after_s=0.0))
    waits = [next_try(hook(1), one, NOW, [0.25]) - NOW for one in answers]
    assert waits[0] == waits[1] < timedelta(seconds=0.31)


def test_jitter_follows_from_the_first_byte_of_a_digest() -> None:
    seed = hashlib.sha256(f"{hook(1).id}/1".encode()).digest()
    wait = next_try(hook(1), DeliveryResult(error="x"), NOW, [100.0]) - NOW
    assert wait.total_seconds() == pytest.approx(100 * (1 + 0.2 * seed[0] / 255))
