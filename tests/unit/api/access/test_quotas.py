"""Quotas of keys: open jobs, and bytes of stored texts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from api.access.quotas import FRESH_S, REFUSAL_FRESH_S, KeyQuotas
from domain.errors import QuotaExceeded, RateLimited
from domain.events.batch import FileCreated
from domain.events.event import Event
from domain.values import Digest, Owner
from tests.support.builders.job_events import submitted

MB = 2**20
MINE, OTHER = Owner("mine"), Owner("other")


@dataclass
class World:
    """The sums of a log, and a clock."""

    jobs: dict[Owner, int] = field(default_factory=dict)
    stored: dict[Owner, int] = field(default_factory=dict)
    now_s: float = 1000.0
    measured: int = 0

    def open_jobs(self, owner: Owner) -> int:
        return self.jobs.get(owner, 0)

    def stored_bytes(self, owner: Owner) -> int:
        self.measured += 1
        return self.stored.get(owner, 0)

    def quotas(self, *, jobs: int | None = None, mb: int | None = None) -> KeyQuotas:
        return KeyQuotas(
            sums=self,
            jobs_at_once=jobs,
            stored_bytes_max=None if mb is None else mb * MB,
            now_s=lambda: self.now_s,
        )


def _job(owner: Owner | None) -> list[Event]:
    return [replace(submitted(), owner=owner)]


def _file(owner: Owner) -> list[Event]:
    name = FileCreated(purpose="batch", filename="f", bytes=1, content=Digest("d"), owner=owner)
    return [name]


def test_a_key_with_enough_open_jobs_waits_and_others_do_not() -> None:
    world = World(jobs={MINE: 2, OTHER: 1})
    quotas = world.quotas(jobs=2)
    with pytest.raises(RateLimited, match="this key may have 2 jobs open at once"):
        quotas.admit(_job(MINE), 10)
    quotas.admit(_job(OTHER), 10)
    quotas.admit(_job(None), 10)
    quotas.admit(_file(MINE), 10)


def test_a_key_that_stores_enough_is_refused_for_good() -> None:
    world = World(stored={MINE: MB - 10})
    quotas = world.quotas(mb=1)
    quotas.admit(_file(MINE), 10)
    with pytest.raises(QuotaExceeded, match=r"stores 1.0 MiB of at most 1 MiB") as refused:
        quotas.admit(_job(MINE), 1)
    assert not refused.value.retryable
    quotas.admit(_job(OTHER), MB)


def test_what_is_accepted_counts_before_the_next_measure() -> None:
    world = World()
    quotas = world.quotas(mb=1)
    for _ in range(4):
        quotas.admit(_job(MINE), MB // 4)
    assert world.measured == 1
    with pytest.raises(QuotaExceeded):
        quotas.admit(_job(MINE), 1)


def test_deletions_count_soon() -> None:
    world = World(stored={MINE: MB})
    quotas = world.quotas(mb=1)
    with pytest.raises(QuotaExceeded):
        quotas.admit(_job(MINE), 1)
    world.stored[MINE] = 0
    world.now_s += REFUSAL_FRESH_S + 0.1
    quotas.admit(_job(MINE), 1)
    world.stored[MINE] = MB
    world.now_s += FRESH_S + 0.1
    with pytest.raises(QuotaExceeded):
        quotas.admit(_job(MINE), 1)


def test_without_quotas_nothing_is_counted() -> None:
    world = World(jobs={MINE: 10**6}, stored={MINE: 10**12})
    world.quotas().admit(_job(MINE), 10**9)
    assert world.measured == 0
