"""The rooms stay small; ruff checks complexity, this checks length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.figures import statements_in

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


class Measured(NamedTuple):
    """What the tests below ask of a file."""

    statements: int
    long_functions: list[str]
    globals_at: list[int]


@pytest.fixture(scope="module")
def measured() -> dict[Path, Measured]:
    """Parse each file once, and keep no tree."""
    return {path: measure(path) for path in sources()}


def measure(path: Path) -> Measured:
    statements = list(statements_in(ast.parse(path.read_text())))
    return Measured(
        statements=len(statements),
        long_functions=[
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {length}"
            for node in statements
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
        ],
        globals_at=[node.lineno for node in statements if isinstance(node, ast.Global)],
    )


def test_no_file_has_more_statements_than_the_limit(measured: dict[Path, Measured]) -> None:
    too_many = {
        str(path.relative_to(ROOT)): one.statements
        for path, one in measured.items()
        if one.statements > FILE_STATEMENTS_MAX
    }
    assert too_many == {}


def test_no_function_is_longer_than_the_limit(measured: dict[Path, Measured]) -> None:
    assert [long for one in measured.values() for long in one.long_functions] == []


def test_statements_in_all_kinds_of_blocks_are_measured() -> None:
    text = """
async def one():
    try:
        with a, b: pass
    except E:
        global c
    else:
        for d in e: pass
        else:
            while f:
                if g: pass
                elif h: pass
    finally:
        match i:
            case 1:
                class J: pass
"""
    tree = ast.parse(text)
    everything = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    assert sorted(map(ast.dump, statements_in(tree))) == sorted(map(ast.dump, everything))


@pytest.mark.parametrize("package", ["api", "worker", "domain", "ops", "migrations"])
def test_every_package_says_what_it_is(package: str) -> None:
    for init in (ROOT / package).rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text())), init


def test_no_global_statement_and_no_dump_modules(measured: dict[Path, Measured]) -> None:
    forbidden_names = {"utils", "helpers", "common", "misc"}
    for path, one in measured.items():
        if path.is_relative_to(ROOT / "tests"):
            continue
        assert path.stem not in forbidden_names, path
        assert not one.globals_at, (path, one.globals_at)
