"""The audit separates "no known vulnerability" from "not checked"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.supply_chain.audit import FOUND, UNCHECKED, audit
from tests.supply_chain.locked import ROOT, RUNTIME, locked


@pytest.fixture
def database(tmp_path: Path) -> Any:
    """Return a function that makes a ``pip-audit`` with given outputs."""

    def make(stdout: str, stderr: str = "", code: int = 0) -> Path:
        program = tmp_path / "pip-audit"
        (tmp_path / "out").write_text(stdout)
        (tmp_path / "err").write_text(stderr)
        script = f"#!/bin/sh\ncat {tmp_path}/out; cat {tmp_path}/err >&2; exit {code}\n"
        program.write_text(script)
        program.chmod(0o755)
        return program

    return make


def listed(**fields: Any) -> str:
    package = {"name": "redis", "version": "8.1.0", "vulns": [], **fields}
    return json.dumps({"dependencies": [package], "fixes": []})


def test_packages_without_a_known_vulnerability_pass(database: Any) -> None:
    assert audit(database(listed()), RUNTIME) == 0


def test_known_vulnerability_fails_and_is_named(
    database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    vulnerability = {"id": "PYSEC-2026-1", "fix_versions": ["8.1.1"]}
    assert audit(database(listed(vulns=[vulnerability]), code=1), RUNTIME) == FOUND
    assert "redis 8.1.0: PYSEC-2026-1, fixed in 8.1.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stdout", "stderr", "reason"),
    [
        ("", "Traceback\nConnectionError: no address for the host", "no address for the host"),
        (
            json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}], "fixes": []}),
            "",
            "1 packages, the first: not found",
        ),
        (json.dumps({"dependencies": [], "fixes": []}), "", "it lists no package"),
    ],
)
def test_audit_that_reaches_no_database_is_no_success(
    database: Any, capsys: pytest.CaptureFixture[str], stdout: str, stderr: str, reason: str
) -> None:
    assert audit(database(stdout, stderr), RUNTIME) == UNCHECKED
    assert reason in capsys.readouterr().err


def test_audit_without_its_program_is_no_success(tmp_path: Path) -> None:
    assert audit(tmp_path / "missing", RUNTIME) == UNCHECKED


@pytest.mark.parametrize(
    ("name", "program"),
    [("audit", "pip-audit"), ("docs", "mkdocs-material"), ("mutation", "mutmut")],
)
def test_programs_beside_the_service_are_locked_with_hashes(name: str, program: str) -> None:
    require_locked(RUNTIME.with_name(f"requirements-{name}.txt"), program)


@pytest.mark.parametrize(
    ("example", "program"), [("openai_agents", "openai-agents"), ("chat_page", "gradio")]
)
def test_packages_of_examples_are_locked_with_hashes(example: str, program: str) -> None:
    require_locked(ROOT / "docs" / "examples" / example / "requirements.txt", program)


def require_locked(requirements: Path, program: str) -> None:
    packages = locked(requirements)
    assert program in packages
    assert all(one.digests for versions in packages.values() for one in versions)
