"""The size of a costly test: of its examples, or of what it counts."""

from __future__ import annotations

from hypothesis import settings


def by_day(count: int, *, night: int) -> int:
    """Return ``count``, and ``night`` with ``--nightly``, whose profile is loaded by then."""
    return night if settings.get_current_profile_name() == "nightly" else count
