"""The check of coverage by layer finds a layer below its floor."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.coverage_floor import FLOORS, WHOLE, least_covered, main, shares
from tests.supply_chain.locked import ROOT


def report(*, domain: int, others: int = 100, whole: int = 100) -> dict[str, Any]:
    def file(covered: int) -> dict[str, Any]:
        lines, branches = covered - covered // 4, covered // 4
        return {
            "summary": {
                "covered_lines": lines,
                "covered_branches": branches,
                "num_statements": 75,
                "num_branches": 25,
                "missing_lines": 75 - lines,
                "missing_branches": 25 - branches,
            }
        }

    files = {f"{layer}/module.py": file(others) for layer in FLOORS}
    files |= {name: file(whole) for name in WHOLE}
    return {"files": files | {"domain/module.py": file(domain)}}


def test_lines_and_branches_count_alike() -> None:
    # Three of the modules that are run whole are in the domain, too.
    assert shares(report(domain=96))["domain"] == pytest.approx(99)
    assert next(least_covered(report(domain=96))) == ("domain/module.py", 4)


@pytest.mark.parametrize(("domain", "status"), [(80, 0), (79, 1)])
def test_a_layer_below_its_floor_fails(tmp_path: Path, domain: int, status: int) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(report(domain=domain)))
    assert main([str(path)]) == status


def test_a_module_of_a_critical_path_that_is_not_run_whole_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(report(domain=100, whole=99)))
    assert main([str(path)]) == 1
    assert "domain/kv/pool.py is not run whole" in capsys.readouterr().out


def test_a_layer_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no file of domain, ops, worker"):
        shares({"files": {"api/module.py": report(domain=100)["files"]["api/module.py"]}})


#: A process that ends at once, as those of the service may, in a directory of its own.
CHILD = "import domain.usage.figures, os; os._exit(0)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"


def test_a_process_elsewhere_is_measured_and_prints_nothing(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    (tmp_path / "parent.py").write_text(PARENT)
    options = [f"--rcfile={ROOT / 'pyproject.toml'}", f"--data-file={tmp_path / 'data'}"]
    env = {name: one for name, one in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "coverage", "run", *options, "parent.py"],
        cwd=tmp_path,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    measured = {path for file in tmp_path.glob("data.*") for path in paths(file)}
    assert str(ROOT / "domain" / "usage" / "figures.py") in measured


def paths(data: Path) -> list[str]:
    """Return the files that a data file of coverage.py has."""
    with contextlib.closing(sqlite3.connect(data)) as connection:
        return [path for (path,) in connection.execute("SELECT path FROM file")]
