"""Results of mutmut are read as it writes them, and the page keeps those of other packages."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.page import (
    BEGIN,
    END,
    Tally,
    more_survivors,
    read,
    recorded_survivors,
    with_results,
)
from tests.mutation.results import ROOT, Change, Outcome, changes, mutants, outcome, reviewed

MODULE = "domain/job/eta.py"
MUTATED = '''
def x_rounded__mutmut_orig(seconds, digits=1):
    """Return it."""
    return round(seconds, digits)

def x_rounded__mutmut_1(seconds, digits=2):
    """Return it."""
    return round(seconds, digits)

class Estimator:
    async def xǁEstimatorǁ__init____mutmut_orig(self):
        self.jobs = 0
        self.rate = None

    async def xǁEstimatorǁ__init____mutmut_1(self):
        self.jobs = 1
        self.rate = None
'''
NAMES = {
    "domain.job.eta.x_rounded__mutmut_1": 0,
    "domain.job.eta.xǁEstimatorǁ__init____mutmut_1": 1,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    file = tmp_path / MODULE
    file.parent.mkdir(parents=True)
    file.write_text(MUTATED)
    file.with_name("eta.py.meta").write_text(json.dumps({"exit_code_by_key": NAMES}))
    return tmp_path


@pytest.mark.parametrize("under", ["domain", "domain/job", MODULE])
def test_mutants_of_packages_and_modules_are_read(directory: Path, under: str) -> None:
    found = [*mutants(directory, under)]
    assert [(one.module, one.name) for one in found] == [(MODULE, name) for name in NAMES]
    assert [one.outcome for one in found] == [Outcome.SURVIVED, Outcome.KILLED]


def test_change_has_the_lines_that_differ(directory: Path) -> None:
    first, second = changes(directory, MODULE, [*NAMES]).values()
    assert first == Change(
        function="domain.job.eta.rounded",
        was="def rounded(seconds, digits=1):",
        becomes="def rounded(seconds, digits=2):",
    )
    assert second == Change(
        function="domain.job.eta.Estimator.__init__", was="self.jobs = 0", becomes="self.jobs = 1"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Outcome.SURVIVED),
        (1, Outcome.KILLED),
        (-24, Outcome.KILLED),
        (33, Outcome.UNTESTED),
        (None, Outcome.NOT_RUN),
    ],
)
def test_exit_codes_mean_outcomes(code: int | None, expected: Outcome) -> None:
    assert outcome(code) is expected


def test_page_keeps_the_results_of_other_modules() -> None:
    first = Tally(outcomes=Counter({Outcome.KILLED: 8, Outcome.SURVIVED: 2}), equivalent=5)
    page = with_results(read(), {"domain/a/x.py": first}, day="2026-01-01", commit="abc")
    second = Tally(outcomes=Counter({Outcome.KILLED: 3}))
    page = with_results(page, {"domain/b/y.py": second}, day="2026-01-02", commit="def")
    assert "| `domain/a/x.py` | 15 | 8 | 5 | 2 | 0 | 80.0 | 2026-01-01 | `abc` |" in page
    assert "| `domain/b/y.py` | 3 | 3 | 0 | 0 | 0 | 100.0 | 2026-01-02 | `def` |" in page
    before = recorded_survivors(read())
    assert recorded_survivors(page) == {**before, "domain/a/x.py": 2, "domain/b/y.py": 0}
    better = with_results(page, {"domain/a/x.py": second}, day="2026-01-03", commit="ghi")
    assert recorded_survivors(better) == {**before, "domain/a/x.py": 0, "domain/b/y.py": 0}
    assert "`abc`" not in better
    assert better.count(BEGIN) == better.count(END) == 1


def test_only_modules_that_were_run_before_are_compared() -> None:
    few, many = (Tally(outcomes=Counter({Outcome.SURVIVED: count})) for count in (2, 3))
    page = with_results(read(), {"domain/a/x.py": few}, day="2026-01-01", commit="abc")
    assert more_survivors(page, {"domain/a/x.py": few, "domain/a/new.py": many}) == {}
    assert more_survivors(page, {"domain/a/x.py": many}) == {"domain/a/x.py": 3}


def test_page_lists_modules_that_exist() -> None:
    assert recorded_survivors(read())
    assert all((ROOT / name).is_file() for name in recorded_survivors(read()))


def functions(module: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each function of a module, as changes have them."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
        for one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}.{one.name}", ast.unparse(one)


def module_of(function: str) -> str:
    parts = function.split(".")
    while not ROOT.joinpath(*parts).with_suffix(".py").is_file():
        parts.pop()
    return ".".join(parts)


def test_every_equivalent_mutant_is_of_the_present_code() -> None:
    entries = reviewed()
    texts = dict(
        one for name in {module_of(it.function) for it in entries} for one in functions(name)
    )
    for change, reason in entries.items():
        lines = {line.strip() for line in texts[change.function].splitlines()}
        assert {*change.was.splitlines()} <= lines, change
        assert reason
