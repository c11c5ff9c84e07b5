"""How much of a long enumeration every run of the tests has, and what is left to the night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import settings


def in_turn(
    names: str,
    rows: Sequence[object],
    columns: Mapping[str, object],
    *,
    at_night: Sequence[object] = (),
) -> pytest.MarkDecorator:
    """Parametrize with pairs: by day each row with one column, in turn; at night with every one.

    Args:
        names: Of the two parameters.
        rows: With a name each, or texts.
        columns: By what a test's name has of them.
        at_night: Rows that are left to the night.
    """
    cases = [
        pytest.param(
            row,
            column,
            id=f"{getattr(row, 'name', row)}-{name}",
            marks=() if number == at % len(columns) and at < len(rows) else pytest.mark.nightly,
        )
        for at, row in enumerate((*rows, *at_night))
        for number, (name, column) in enumerate(columns.items())
    ]
    return pytest.mark.parametrize(names, cases)


def by_day(count: int, *, night: int) -> int:
    """Return ``count``, and ``night`` with ``--nightly``, whose profile is loaded by then."""
    return night if settings.get_current_profile_name() == "nightly" else count


def examples(count: int, *, night: int) -> settings:
    """Return the number of generated examples of a test."""
    return settings(max_examples=by_day(count, night=night))
