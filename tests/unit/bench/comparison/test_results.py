from __future__ import annotations

from bench.comparison.measurements import MEASUREMENTS
from bench.comparison.measurements.base import Row
from bench.comparison.results import Results

WARM = Row(key="warm", title="warm", form="{:.0f} ms")
VERDICT = Row(key="verdict", title="verdict", form="{}")


def test_table_shows_the_median_of_each_server() -> None:
    results = Results()
    for figure in (10.0, 1000.0, 30.0):
        results.add("warm", "ours", figure)
    results.add("warm", "theirs", 5.0)

    assert list(results.table([WARM], ["ours", "theirs"])) == [
        "| | ours | theirs |",
        "|---|--:|--:|",
        "| warm | 30 ms | 5 ms |",
    ]


def test_cell_of_a_server_that_always_failed_says_why() -> None:
    results = Results()
    results.fail("warm", "theirs", "HTTP 500: a | b\nand more")

    assert list(results.table([WARM], ["theirs"]))[-1] == (
        "| warm | failed: HTTP 500: a / b and more |"
    )


def test_long_reason_is_cut() -> None:
    results = Results()
    results.fail("warm", "theirs", "x" * 500)

    line = list(results.table([WARM], ["theirs"]))[-1]

    assert len(line) < 120
    assert "…" in line


def test_cell_of_a_server_that_failed_sometimes_says_how_often() -> None:
    results = Results()
    results.add("warm", "theirs", 4.0)
    results.fail("warm", "theirs", "no answer")

    assert list(results.table([WARM], ["theirs"]))[-1] == "| warm | 4 ms (failed 1 of 2) |"


def test_cell_that_nobody_measured_is_empty() -> None:
    assert list(Results().table([WARM], ["ours"]))[-1] == "| warm | - |"


def test_verdict_is_the_commonest_one() -> None:
    results = Results()
    for figure in ("recomputed", "stale KV", "recomputed"):
        results.add("verdict", "ours", figure)

    assert list(results.table([VERDICT], ["ours"]))[-1] == "| verdict | recomputed |"


def test_json_keeps_every_figure_and_failure() -> None:
    results = Results()
    results.add("warm", "ours", 1.0)
    results.add("warm", "ours", 2.0)
    results.fail("verdict", "ours", "no answer")

    assert results.as_json() == {
        "ours": {
            "warm": {"figures": [1.0, 2.0], "failures": []},
            "verdict": {"figures": [], "failures": ["no answer"]},
        }
    }


def test_rows_of_all_measurements_have_names_of_their_own() -> None:
    keys = [row.key for measurement in MEASUREMENTS for row in measurement.rows]

    assert len(keys) == len(set(keys))
