"""The dashboard and the alert rules name metrics and labels that the code exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from ops.observe.families import FAMILIES, Family
from tests.support.processes.promtool import sample_names

ROOT = Path(__file__).parents[4]
DEPLOY = ROOT / "ops" / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
ALERT_TESTS = DEPLOY / "prometheus" / "alerts.test.yml"
DASHBOARD = DEPLOY / "grafana" / "semantic.json"
#: Labels that the scraper adds, and the bounds of buckets.
OTHER_LABELS = {"job", "instance", "le"}
SAMPLES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in sample_names(family)
}


def named(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of an expression with the labels that it selects by."""
    for name, selector in re.findall(r"(semantic_\w+|vllm:\w+)(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))


def expressions(value: Any) -> Iterator[str]:
    """Yield every expression of a dashboard."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in {"expr", "definition"}:
                yield part
            else:
                yield from expressions(part)
    elif isinstance(value, list):
        for part in value:
            yield from expressions(part)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def unknown(expression: str) -> list[str]:
    found = []
    for name, labels in named(expression):
        family = SAMPLES.get(name)
        if family is None:
            found.append(name)
        elif labels - set(family.labels) - OTHER_LABELS:
            found.append(f"{name} {labels}")
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_uses_metrics_of_the_code_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert unknown(rule["expr"]) == []
    assert "semantic_" in rule["expr"] or "up{" in rule["expr"]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description"}


def test_each_alert_has_a_test_in_which_it_is_quiet_and_one_in_which_it_fires() -> None:
    cases = [
        case
        for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_series_of_the_alert_tests_are_those_of_the_code() -> None:
    for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"]:
        for series in test["input_series"]:
            assert unknown(series["series"]) == []
            for name, labels in named(series["series"]):
                assert set(SAMPLES[name].labels) <= labels, "a real series has all labels"


def test_dashboard_uses_metrics_of_the_code() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    found = list(expressions(dashboard))
    assert len(found) > 30
    assert [one for text in found for one in unknown(text)] == []


def test_dashboard_shows_what_the_contract_names() -> None:
    shown = {
        name for text in expressions(json.loads(DASHBOARD.read_text())) for name, _ in named(text)
    }
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    for name in (
        "request_total",
        "time_to_first_token_seconds",
        "request_queue_depth",
        "batch_size",
    ):
        assert f"semantic_{name}" in bases


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= taken
        assert panel["type"] == "row" or panel["description"]
