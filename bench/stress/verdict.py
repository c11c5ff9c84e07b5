"""Targets of a case, what was measured, and the verdict. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.figures import percentile
from bench.stress.client import Reply

SHARES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One target of a case.

    Attributes:
        target: What is required.
        figure: What was measured.
        reached: Whether it is as required.
        timed: Whether it depends on the speed of the machine; such a target fails no run.
    """

    target: str
    figure: str
    reached: bool
    timed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a case.

    Attributes:
        checks: Its targets.
        head: Titles of its table, if it has one; those of numbers begin with ``>``.
        rows: Rows of that table.
        note: What explains a target that the machine misses.
    """

    checks: Sequence[Check]
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = field(default_factory=tuple)
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether every target is reached that does not depend on the machine's speed."""
        return all(one.reached or one.timed for one in self.checks)

    @property
    def verdict(self) -> str:
        """``reached``, or which targets are not."""
        missed = [one.target for one in self.checks if not one.reached]
        return f"**fell short**: {'; '.join(missed)}" if missed else "reached"


def answered(replies: Sequence[Reply], least: float) -> Check:
    """Require a share of answers among all replies."""
    share = sum(one.is_answer for one in replies) / len(replies)
    return Check(
        target=f"≥ {least:.0%} answered",
        figure=f"{share:.1%} of {len(replies)}",
        reached=share >= least,
    )


def no_failure(replies: Iterable[Reply]) -> Check:
    """Require that no reply is a 5xx, and that no connection is lost."""
    failures = Counter(one.status or str(one.error) for one in replies if one.is_failure)
    return Check(
        target="no 5xx, no lost connection",
        figure=", ".join(f"{count} of {what}" for what, count in failures.items()) or "none",
        reached=not failures,
    )


def well_formed_refusals(replies: Iterable[Reply], *, required: bool) -> Check:
    """Require that each 429 names its error and when to retry.

    Args:
        replies: All replies.
        required: Whether there must be one.
    """
    refused = [one for one in replies if one.status == 429]
    good = [
        one
        for one in refused
        if one.error == "rate_limit_error" and int(one.retry_after or "0") >= 1
    ]
    least = "some 429, " if required else ""
    return Check(
        target=f"{least}each 429 with type and Retry-After",
        figure=f"{len(good)} of {len(refused)}",
        reached=len(good) == len(refused) and bool(refused or not required),
    )


def refused_by(replies: Iterable[Reply], what: str) -> Check:
    """Require that some request was refused because ``what`` was full."""
    number = sum(f"{what} is full" in one.message for one in replies)
    return Check(target=f"429 for a full {what}", figure=str(number), reached=number > 0)


def within(ms: Sequence[float], share: float, most_ms: float) -> Check:
    """Require a percentile of latencies; depends on the machine."""
    value = percentile(ms, share) if ms else float("inf")
    return Check(
        target=f"p{share * 100:g} < {most_ms / 1000:g} s",
        figure=f"{value / 1000:.2f} s",
        reached=value < most_ms,
        timed=True,
    )


def alive(*, states: Sequence[bool], path: str) -> Check:
    """Require that every health check succeeded."""
    return Check(
        target=f"{path} answers 200",
        figure=f"{sum(states)} of {len(states)}",
        reached=bool(states) and all(states),
    )


def latencies(replies: Iterable[Reply]) -> list[float]:
    """Return the milliseconds of the answers."""
    return [one.ms for one in replies if one.is_answer]


def percentiles(ms: Sequence[float]) -> tuple[float, ...]:
    """Return p50, p95 and p99 in milliseconds; nothing without values."""
    return tuple(round(percentile(ms, share), 1) for share in SHARES) if ms else ()
