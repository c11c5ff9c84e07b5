"""The page about metrics lists what the code exports."""

from __future__ import annotations

from tests.architecture.metrics_table import BEGIN, PAGE, with_tables


def test_tables_of_metrics_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    assert BEGIN in page
    assert page == with_tables(page), "run: make packages"
