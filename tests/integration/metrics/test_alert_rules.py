"""Prometheus itself accepts the rules and the example, and each alert fires on synthetic series."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.promtool import promtool

PROMETHEUS = Path(__file__).parents[3] / "ops" / "deploy" / "prometheus"


def test_alert_rules_and_the_example_are_valid() -> None:
    promtool("check", "config", "prometheus.yml", cwd=PROMETHEUS)
    assert "SUCCESS: 19 rules found" in promtool("check", "rules", "alerts.yml", cwd=PROMETHEUS)


def test_each_alert_fires() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml", cwd=PROMETHEUS)
