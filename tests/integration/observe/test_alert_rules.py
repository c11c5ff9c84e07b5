"""Prometheus itself accepts the rules and the example, and each alert fires on synthetic series."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.processes.promtool import promtool

DEPLOY = Path(__file__).parents[3] / "ops" / "deploy"
PROMETHEUS = DEPLOY / "prometheus"


def test_alert_rules_and_the_example_are_valid() -> None:
    promtool("check", "config", "prometheus.yml", cwd=PROMETHEUS)
    assert "SUCCESS: 21 rules found" in promtool("check", "rules", "alerts.yml", cwd=PROMETHEUS)


def test_each_alert_fires() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml", cwd=PROMETHEUS)


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    panels = json.loads((DEPLOY / "grafana" / "semantic.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    records = [
        {"record": f"check:query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    # JSON is YAML.
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(file))
