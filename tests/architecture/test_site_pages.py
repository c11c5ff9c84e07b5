"""The pages that are generated from the code have all of it, and every page has its place."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest

from api.operations import OPERATIONS
from docs.site.pages import FILES
from docs.site.settings_reference import groups
from domain.log import codec
from ops.cli.main import NAMES
from ops.cli.service.config import origins
from ops.settings.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
VENDOR = DOCS / "site" / "assets" / "vendor"
EVENT_MODULES = tuple((ROOT / "domain" / "events").glob("*.py"))


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {path: render() for path, render in FILES.items()}


def headings(page: str) -> set[str]:
    return {line.lstrip("# ").strip("`") for line in page.splitlines() if line.startswith("#")}


def test_every_event_and_its_fields_are_in_the_catalogue(pages: dict[str, str]) -> None:
    page = pages["reference/events.md"]
    found = headings(page)
    for path in EVENT_MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                assert node.name in found, node.name
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                for field in fields:
                    assert f"| `{ast.unparse(field.target)}` |" in page, (node.name, field.target)
    assert set(codec.SCHEMA_VERSIONS) <= found


def test_every_setting_is_in_the_reference_with_a_description(pages: dict[str, str]) -> None:
    page = pages["reference/settings.md"]
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert {one.name for one in origins(Settings(), {})} <= set(rows)
    assert [name for name, row in rows.items() if row.endswith("|  |")] == []


def test_descriptions_of_settings_are_whole_sentences() -> None:
    single, grouped = groups()
    tables = [single, *(group["properties"] for group in grouped.values())]
    described = [(name, one["description"]) for part in tables for name, one in part.items()]
    assert [name for name, text in described if not re.fullmatch(r"[A-Z].*\.", text)] == []


def test_every_command_is_in_the_reference(pages: dict[str, str]) -> None:
    found = headings(pages["reference/cli.md"])
    assert {f"semantic {name}" for name in NAMES} <= found
    assert {"semantic log verify", "semantic models plan", "semantic jobs show"} <= found


def test_every_route_is_in_the_reference(pages: dict[str, str]) -> None:
    assert {one.route for one in OPERATIONS} <= headings(pages["reference/api.md"])
    document = json.loads(pages["reference/openapi.json"])
    assert {one.path for one in OPERATIONS} == set(document["paths"])


def test_every_page_has_a_place_in_the_navigation(pages: dict[str, str]) -> None:
    navigation = (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    placed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(pages)
    records = {path for path in there if re.match(r"adr/\d", path)}
    assert sorted(placed) == sorted(one for one in there - records if one.endswith(".md"))
    assert {f"adr/{name}" for name in re.findall(r"\]\((\d[^)]*)\)", pages["adr/index.md"])} >= (
        records
    )


def test_events_and_settings_that_the_flows_name_exist(pages: dict[str, str]) -> None:
    flows = (DOCS / "flows.md").read_text(encoding="utf-8")
    assert flows.count("```mermaid") == 10
    endings = "Submitted|Started|Completed|Failed|Requested|Ended|Advanced|Served|Loaded|Created"
    endings += "|RolledBack|Lost|Stopped|Draining|Saved|Restored|Missed|Evicted|Rejected|Finalizing"
    named = set(re.findall(rf"\b(?:[A-Z][a-z]+)+(?:{endings})\b", flows))
    assert len(named) > 20
    assert named <= headings(pages["reference/events.md"])


def test_vendored_scripts_are_the_pinned_ones() -> None:
    pins = json.loads((VENDOR / "pins.json").read_text(encoding="utf-8"))["files"]
    assert {path.name for path in VENDOR.iterdir()} - {"pins.json"} == set(pins)
    for name, pin in pins.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == pin["sha256"], name
        assert pin["license"] == "MIT"
