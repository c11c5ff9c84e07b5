"""Hooks and workflows run the same make targets as a developer, and their files are valid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # pyyaml ships no types

from tests.supply_chain.locked import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
COMPOSE = ROOT / "ops" / "deploy" / "container" / "compose.yaml"
#: What the jobs of a workflow may write, by its name.
WRITES = {"release": {"contents", "id-token", "attestations"}, "pages": {"pages", "id-token"}}
#: Commands of a workflow that are no make target.
OTHERS = {"sudo .github/packages.sh"}


def targets() -> set[str]:
    """Return the targets of the Makefile that its help lists."""
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        yield from job["steps"]


def test_a_commit_passes_what_make_check_passes() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repo,) = config["repos"]
    (hook,) = repo["hooks"]
    assert (repo["repo"], hook["entry"], hook["language"]) == ("local", "make check", "system")
    assert hook["always_run"]
    assert not hook["pass_filenames"]


def test_make_check_looks_for_secrets_and_large_files() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck: ")[2].partition("\n\n")[0]
    assert "tests.supply_chain.secret_scan" in recipe
    assert "tests.supply_chain.large_files" in recipe


def test_make_lets_python_keep_compiled_files() -> None:
    done = subprocess.run(
        ["make", "-s", "-f", "Makefile", "-f", "-", "shown"],
        cwd=ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        input="shown:\n\t@printenv PYTHONDONTWRITEBYTECODE || echo none\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "none\n"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_runs_make_targets(workflow: Path) -> None:
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    made = [command.split()[1] for command in commands if command.startswith("make ")]
    assert {*made} - {'"$TARGET"'} <= targets()
    rest = {command for command in commands if not command.startswith(("make ", "gh release "))}
    assert rest <= OTHERS


def test_nightly_targets_exist() -> None:
    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    long = {one["target"] for one in nightly["jobs"]["long"]["strategy"]["matrix"]["include"]}
    assert long <= targets()
    assert {"nightly", "chaos", "simulation", "fuzz", "soak", "coverage"} <= long
    assert {"mutation", "flakes", "dist-check", "sbom"} <= long


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_gets_no_more_rights_than_it_needs(workflow: Path) -> None:
    config = yaml.safe_load(workflow.read_text())
    rights = [
        config["permissions"],
        *(job.get("permissions", {}) for job in config["jobs"].values()),
    ]
    writes = {name for one in rights for name, right in one.items() if right == "write"}
    assert writes == WRITES.get(workflow.stem, set())
    checkouts = [step for step in steps(workflow) if "checkout" in step.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS), ("vendor.compose-spec", [COMPOSE])],
    ids=["workflows", "compose"],
)
def test_files_satisfy_their_published_schema(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_services_of_the_composition_are_reached_as_meant() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert {name for name, one in services.items() if "ports" in one} == {"api"}
    (port,) = services["api"]["ports"]
    assert port.startswith("127.0.0.1:")
    assert {name for name, one in services.items() if one["networks"] == ["data"]} == {
        "postgres",
        "redis",
    }


def test_python_versions_of_the_runners_are_those_of_the_classifiers() -> None:
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    matrix = ci["jobs"]["fast"]["strategy"]["matrix"]
    listed = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert matrix["python"][: len(listed)] == listed
    assert {os.split("-")[0] for os in matrix["os"]} == {"ubuntu", "macos"}
