"""What mutmut found: the changes of ``domain/`` that the tests notice, and those that they do not.

mutmut writes each module into ``mutants/`` with a copy of every function for each change of it,
and beside it a file with the exit code of the tests for each copy.
"""

from __future__ import annotations

import ast
import difflib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
REVIEWED: Final = Path(__file__).with_name("equivalent.toml")
#: Separates class and method in the names that mutmut gives to copies.
_CLASS_MARK: Final = "ǁ"
_ORIGINAL: Final = "__mutmut_orig"
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Outcome(StrEnum):
    """What became of one mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    UNTESTED = "no test"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one function.

    Attributes:
        function: Module and qualified name, such as ``domain.job.eta.Estimator.of``.
        was: The lines of the function that the change removes, as ``ast.unparse`` writes them.
        becomes: The lines that it adds.
    """

    function: str
    was: str
    becomes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mutant of a run.

    Attributes:
        module: Path of the module, such as ``domain/job/eta.py``.
        name: The name that ``mutmut show`` takes.
        outcome: What the tests made of it.
    """

    module: str
    name: str
    outcome: Outcome


def mutants(directory: Path, under: str) -> Iterator[Mutant]:
    """Yield the mutants of all modules below a path, in order.

    Args:
        directory: The directory ``mutants`` of a run.
        under: A package or a module, such as ``domain/job`` or ``domain/job/eta.py``.
    """
    start = directory / under
    metas = start.rglob("*.py.meta") if start.is_dir() else [directory / f"{under}.meta"]
    for meta in sorted(metas):
        module = meta.relative_to(directory).as_posix().removesuffix(".meta")
        for name, code in json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"].items():
            yield Mutant(module=module, name=name, outcome=outcome(code))


def outcome(code: int | None) -> Outcome:
    """Return what an exit code of mutmut means; time-outs and crashes are noticed changes."""
    match code:
        case None | 2 | 34:
            return Outcome.NOT_RUN
        case 0:
            return Outcome.SURVIVED
        case 5 | 33:
            return Outcome.UNTESTED
        case _:
            return Outcome.KILLED


def changes(directory: Path, module: str, names: list[str]) -> dict[str, Change]:
    """Return what mutants of one module change, by name.

    Args:
        directory: The directory ``mutants`` of a run.
        module: Path of the module.
        names: Names of its mutants.
    """
    tree = ast.parse((directory / module).read_text(encoding="utf-8"))
    copies = {one.name: one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS)}
    found = {}
    for name in names:
        copy = name.rpartition(".")[2]
        original = copy.partition("__mutmut_")[0] + _ORIGINAL
        found[name] = _change(module, copies[original], copies[copy])
    return found


def _change(
    module: str,
    original: ast.FunctionDef | ast.AsyncFunctionDef,
    copy: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Change:
    mangled = original.name.removesuffix(_ORIGINAL)
    parts = mangled.removeprefix("x").strip(_CLASS_MARK).split(_CLASS_MARK)
    parts[-1] = parts[-1] if _CLASS_MARK in mangled else mangled.removeprefix("x_")
    before = ast.unparse(original).replace(original.name, parts[-1]).splitlines()
    after = ast.unparse(copy).replace(copy.name, parts[-1]).splitlines()
    lines = [*difflib.ndiff(before, after)]
    return Change(
        function=".".join([*Path(module).with_suffix("").parts, *parts]),
        was="\n".join(line[2:].strip() for line in lines if line.startswith("- ")),
        becomes="\n".join(line[2:].strip() for line in lines if line.startswith("+ ")),
    )


def reviewed(file: Path = REVIEWED) -> dict[Change, str]:
    """Return the equivalent mutants with the reason why no test can notice them."""
    entries: list[dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    return {
        Change(function=one["function"], was=one["was"], becomes=becomes): one["reason"]
        for one in entries
        for becomes in one["becomes"]
    }
