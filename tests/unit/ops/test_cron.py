"""Time zones of cron expressions."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from ops.cron import CronsimTable


@pytest.fixture
def _no_zones_of_the_system() -> Iterator[None]:
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("_no_zones_of_the_system")
def test_zones_are_known_where_the_system_has_none() -> None:
    midnight = datetime(2026, 7, 1, tzinfo=UTC)
    first = CronsimTable().check("0 3 * * *", "Europe/Berlin", midnight)
    assert first == datetime(2026, 7, 1, 1, tzinfo=UTC)
