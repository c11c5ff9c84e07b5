"""The rooms stay small; ruff checks complexity, this checks length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 600
FILE_STATEMENTS_MAX = 300
FUNCTION_LINES_MAX = 60
PACKAGES = ("api", "worker", "domain", "ops", "migrations", "bench", "tests", "docs")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_no_file_is_longer_than_the_limit() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert too_long == {}


def test_no_file_has_more_statements_than_the_limit() -> None:
    too_many = {
        str(path.relative_to(ROOT)): statements
        for path in sources()
        if (statements := _statements(path)) > FILE_STATEMENTS_MAX
    }
    assert too_many == {}


def _statements(path: Path) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text())))


def test_no_function_is_longer_than_the_limit() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {length}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert too_long == []


@pytest.mark.parametrize("package", ["api", "worker", "domain", "ops", "migrations"])
def test_every_package_says_what_it_is(package: str) -> None:
    for init in (ROOT / package).rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text())), init


def test_no_global_statement_and_no_dump_modules() -> None:
    forbidden_names = {"utils", "helpers", "common", "misc"}
    for path in sources():
        if path.is_relative_to(ROOT / "tests"):
            continue
        assert path.stem not in forbidden_names, path
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Global), f"{path}:{node.lineno}"
