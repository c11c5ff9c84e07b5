"""The audit separates "no known vulnerability" from "not checked"."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.supply_chain.audit import FOUND, UNCHECKED, audit, locked_files
from tests.supply_chain.locked import ROOT, RUNTIME, locked

#: A ``pip-audit`` that keeps the requirements without a marker, as if no other one held here.
KEEPS = """
import json, sys
text = open(sys.argv[sys.argv.index("--requirement") + 1]).read()
pins = [line.split()[0] for line in text.splitlines() if "==" in line and ";" not in line]
names = [pin.partition("==")[0] for pin in pins]
if len(set(names)) < len(names):
    sys.exit("a package has two requirements")
if text.count("--hash=sha256:") < len(pins):
    sys.exit("a package has no hash")
found, left_out = {found!r}, {left_out!r}
listed = [
    dict(name=name, version=version, vulns=found.get(name, []))
    for name, _, version in (pin.partition("==") for pin in pins)
    if name not in left_out
]
print(json.dumps(dict(dependencies=listed, fixes=[])))
"""


@pytest.fixture
def database(tmp_path: Path) -> Any:
    """Return a function that makes a ``pip-audit`` with given outputs."""

    def make(stdout: str, stderr: str = "") -> Path:
        program = tmp_path / "pip-audit"
        (tmp_path / "out").write_text(stdout)
        (tmp_path / "err").write_text(stderr)
        script = f"#!/bin/sh\ncat {tmp_path}/out; cat {tmp_path}/err >&2\n"
        program.write_text(script)
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def reading(tmp_path: Path) -> Any:
    """Return a function that makes a ``pip-audit`` that answers for the file it is given."""

    def make(found: dict[str, Any] | None = None, left_out: tuple[str, ...] = ()) -> Path:
        program = tmp_path / "pip-audit"
        script = KEEPS.replace("{found!r}", repr(found or {}))
        program.write_text(f"#!{sys.executable}{script.replace('{left_out!r}', repr(left_out))}")
        program.chmod(0o755)
        return program

    return make


@pytest.mark.parametrize("requirements", locked_files(), ids=lambda file: file.name)
def test_every_locked_package_is_asked_about_on_any_platform(
    reading: Any, capsys: pytest.CaptureFixture[str], requirements: Path
) -> None:
    assert audit(reading(), requirements) == 0
    count = sum(len(versions) for versions in locked(requirements).values())
    assert f"{requirements.name}: {count} packages, 0 known" in capsys.readouterr().out


def test_known_vulnerability_fails_and_is_named(
    reading: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    vulnerability = {"id": "PYSEC-2026-1", "fix_versions": ["99"]}
    assert audit(reading({"mlx-metal": [vulnerability]}), RUNTIME) == FOUND
    (pin,) = locked(RUNTIME)["mlx-metal"]
    assert f"mlx-metal {pin.version}: PYSEC-2026-1, fixed in 99" in capsys.readouterr().out


def test_package_without_an_answer_was_not_checked(
    reading: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(reading(left_out=("mlx-metal",)), RUNTIME) == UNCHECKED
    assert "no answer for mlx-metal==" in capsys.readouterr().err


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
