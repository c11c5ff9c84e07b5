"""A slice of a long run adds one row below the earlier ones, and the rows add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.long_runs import END, PAGE, LongRun, next_seed, sums, with_run

CHAOS = LongRun(commit="abc", module="bench.chaos", arguments="--kills 100", seed=1)
LIVES = LongRun(commit="abc", module="tests.simulation", arguments="", seed=1, seeds=2000)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    file.write_text(f"# Runs\n| date |\n{END}\nend\n")
    return file


def test_slice_is_added_below_the_earlier_ones(page: Path) -> None:
    CHAOS.record("100 kills, 0 violations", page)
    replace(CHAOS, seed=2).record("90 kills, 1 violations", page)
    LIVES.record("2,000 lives; 0 violations", page)
    head, _, first, second, third, *rest = page.read_text().splitlines()
    assert head == "# Runs"
    assert first.endswith(
        "| `abc` | `python -m bench.chaos --kills 100 --seed 1` | 1 | 100 kills, 0 violations |"
    )
    assert second.endswith("| 2 | 90 kills, 1 violations |")
    assert "| `python -m tests.simulation --seed 1` | 1 to 2000 |" in third
    assert rest == [END, "end"]


def test_next_slice_begins_after_the_recorded_seeds(page: Path) -> None:
    assert next_seed(page.read_text(), "tests.simulation") == 1
    CHAOS.record("100 kills", page)
    LIVES.record("2,000 lives", page)
    replace(LIVES, seed=2001, seeds=10).record("10 lives", page)
    assert next_seed(page.read_text(), "tests.simulation") == 2011
    assert next_seed(page.read_text(), "bench.chaos") == 2


def test_slices_add_up(page: Path) -> None:
    for seed in (1, 2):
        replace(CHAOS, seed=seed).record(f"1,0{seed}0 kills, 5 other faults; 1 violations", page)
    LIVES.record("2,000 lives; 0 violations", page)
    assert sums(page.read_text()) == {
        "bench.chaos": {"slices": 2, "kills": 2030, "other faults": 10, "violations": 2},
        "tests.simulation": {"slices": 1, "lives": 2000, "violations": 0},
    }


def test_page_without_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line"):
        with_run("# Runs", ("a",))


def test_page_of_the_repository_takes_runs() -> None:
    assert with_run(PAGE.read_text(encoding="utf-8"), ("a",)).count("| a |\n") == 1
