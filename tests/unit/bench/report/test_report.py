"""The page is written from figures alone, and its plots are well-formed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.report.page import BEGIN, END, write_page
from bench.report.parts import PARTS
from bench.report.plots import bars, lines

ROUND = {"tokens_per_s": 90.0, "ttft_p50_ms": 60.0, "cpu_ms_a_token": 9.0}
TREND = {
    "level": 100.0,
    "last": 101.0,
    "percent_per_hour": 1.0,
    "noise_percent": 2.0,
    "grows": True,
}
FIGURES: dict[str, Any] = {
    "serving": {
        "bursts": [
            {"streams": 1, "contender": name, "rounds": [ROUND, ROUND | {"tokens_per_s": speed}]}
            for name, speed in (("semantic", 88.0), ("raw BatchGenerator", 100.0))
        ],
        "prefill": {},
    },
    "comparison": {
        "conditions": "Linux.",
        "results": {
            "semantic": {
                "cold": {"figures": [900.0, 1100.0], "failures": []},
                "sigkill": {"figures": [170.0], "failures": []},
                "swapped": {"figures": ["new weights"], "failures": []},
            },
            "other": {"cold": {"figures": [], "failures": ["it ended"]}},
        },
    },
    "memory": {
        "rotation": [
            {
                "shape": "S",
                "budget": "0.8x all",
                "at_once": True,
                "agents": 3,
                "figures": {"peak_bytes": 9e6, "budget_bytes": 8e6, "step_bytes": 2e6},
            }
        ]
    },
    "promises": {"rows": [{"what": "accept", "of": 9, "p50": 7.0, "p99": 9.0, "most": 9.5}]},
    "swap": {
        "median_ms": {"drain": 2000, "total": 9000},
        "failed_streams": 0,
        "streams": 8,
        "changed_texts": 0,
        "rss_cold_mb": 195,
        "rss_after_mb": 196,
        "swaps": 2,
    },
    "soak": {
        "minutes": 5,
        "trends": {"worker rss, MB": TREND},
        "grown": ["worker rss, MB"],
        "samples": [{"t_s": at, "worker rss, MB": 100.0 + at} for at in range(9)],
        "latencies": [(1.0, 50.0), (2.0, 60.0)],
        "latency_drift": 1.1,
        "violations": [],
        "errors": [],
        "operations": {"turns": 5},
        "swap_ms": [900.0],
    },
    "idle": {"processes": {"all": {"cpu_percent": 0.9, "wakeups_per_s": 60.0}}},
}
CONDITIONS = {
    "system": "Linux x86_64",
    "cores": 2,
    "memory_gb": 16,
    "python": "3.11",
    "versions": {"mlx": "1"},
    "commit": "abc",
    "at": "now",
    "busy_percent": 40.0,
    "quiet": False,
}


def result(name: str) -> dict[str, Any]:
    return {"command": f"bench.{name}", "conditions": CONDITIONS, "figures": FIGURES[name]}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "benchmarks.md"
    file.write_text(f"# Before\n\n{BEGIN}\nearlier figures\n{END}\n\nAfter\n")
    return file


def test_page_has_five_headlines_and_a_section_with_plots_for_each_part(page: Path) -> None:
    results = {part.name: result(part.name) for part in PARTS}
    write_page(page, results)
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("After\n")
    assert "earlier figures" not in text
    head = text.partition("###")[0]
    assert head.count("(not quiet)") == 5
    for part in PARTS:
        assert f"Report: {part.title.lower()}" in text
    assert "| 1 | semantic | 89 (88-90) |" in text
    links = [line.partition("(")[2].rstrip(")") for line in text.splitlines() if line[:2] == "!["]
    assert len(links) == 9
    for link in links:
        ET.parse(page.parent / link)  # noqa: S314 - our own file
    write_page(page, results)
    assert page.read_text() == text


def test_page_shows_the_parts_that_have_figures(page: Path) -> None:
    write_page(page, {"promises": result("promises")})
    assert page.read_text().count("### ") == 1


def test_page_without_a_place_for_the_report_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.md"
    file.write_text("# Other\n")
    with pytest.raises(ValueError, match="no place"):
        write_page(file, {})
    assert file.read_text() == "# Other\n"


def test_plots_of_nothing_and_of_zeros_are_well_formed() -> None:
    for svg in (
        lines("<none>", {}, unit="MB", x_unit="s"),
        lines("zero", {"a&b": [(0.0, 0.0)]}, unit="MB", x_unit="s"),
        bars("none", [], unit="ms"),
        bars("zero", [("a", 0.0)], unit="ms"),
    ):
        ET.fromstring(svg)  # noqa: S314 - our own text
