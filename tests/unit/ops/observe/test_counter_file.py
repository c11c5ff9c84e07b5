"""Totals over processes: none decreases, wherever a process is killed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.observe.counter_file import CounterFile, Figures, added

LIVES = st.lists(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a_total", "b_total"]),
            st.dictionaries(st.sampled_from(["", "ram"]), st.integers(0, 9).map(float)),
        ),
        max_size=4,
    ),
    max_size=5,
)


@given(lives=LIVES)
def test_published_totals_never_decrease_and_are_complete(
    lives: list[list[Figures]],
) -> None:
    """Each life is a process that counts, publishes and is killed without a farewell."""
    with tempfile.TemporaryDirectory() as folder:
        seen: dict[tuple[str, str], float] = {}
        expected: Figures = {}
        for increments in lives:
            file = CounterFile(Path(folder) / "counters.json")
            counted: Figures = {}
            for increment in increments:
                counted, expected = added(counted, increment), added(expected, increment)
                for family, values in file.publish(counted).items():
                    for label, total in values.items():
                        assert total >= seen.get((family, label), 0.0)
                        seen[family, label] = total
                        assert total == expected[family][label]


def test_unchanged_totals_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "counters.json"
    file = CounterFile(path)
    file.publish({"a_total": {"": 1.0}})
    path.unlink()
    file.publish({"a_total": {"": 1.0}})
    assert not path.exists()
    file.publish({"a_total": {"": 2.0}})
    assert json.loads(path.read_text()) == {"a_total": {"": 2.0}}


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"a_total": 7}', '{"a_total": {"": "x"}}', '{"a_total": {"": null}}'],
)
def test_broken_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "counters.json"
    path.write_text(content)
    assert CounterFile(path).publish({"b_total": {"": 2.0}}) == {"b_total": {"": 2.0}}


def test_disk_that_takes_no_file_costs_no_total(tmp_path: Path) -> None:
    file = CounterFile(tmp_path / "missing" / "counters.json")
    assert file.publish({"a_total": {"": 1.0}}) == {"a_total": {"": 1.0}}
    assert file.publish({"a_total": {"": 3.0}}) == {"a_total": {"": 3.0}}


def test_totals_without_a_file_are_those_of_the_process() -> None:
    assert CounterFile(None).publish({"a_total": {"": 1.0}}) == {"a_total": {"": 1.0}}
