"""What ``semantic doctor`` reports about a running service."""

from __future__ import annotations

from ops.cli.service.doctor import Check, check_health


def test_each_reason_is_a_finding() -> None:
    health = {
        "status": "degraded",
        "reasons": ["disk: 0.4 GB are free", "admission: paused: maintenance"],
    }
    assert list(check_health(health)) == [
        Check("health", "warn", "degraded: disk: 0.4 GB are free"),
        Check("health", "warn", "degraded: admission: paused: maintenance"),
    ]


def test_a_healthy_service_is_fine() -> None:
    (found,) = check_health({"status": "ok", "reasons": []})
    assert found.verdict == "ok"


def test_a_service_that_does_not_answer_is_reported() -> None:
    (found,) = check_health(None)
    assert (found.verdict, "does not answer" in found.detail) == ("warn", True)
