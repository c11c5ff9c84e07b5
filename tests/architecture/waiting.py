"""Refuse sleeps and bare clocks in tests: ``python -m tests.architecture.waiting``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The module that waits and reads clocks for all tests.
EXEMPT = "tests/support/polling.py"
_CLOCKS = {"monotonic", "perf_counter", "time"}
REFUSED = {
    "asyncio": {"sleep"},
    "time": {"sleep", *_CLOCKS, *(f"{clock}_ns" for clock in _CLOCKS)},
}
_SLEEPS = "wait_until, eventually or let_tasks_run; pause if the time is the behaviour itself"
_READS = "wait_until for a deadline, now_s for an instant"


@dataclass(frozen=True, slots=True)
class Finding:
    """A use of a sleep or a clock.

    Attributes:
        number: Of the line, from 1.
        name: What is used.
    """

    number: int
    name: str

    @property
    def instead(self) -> str:
        """What to use."""
        return _SLEEPS if self.name.endswith(("sleep", "wait")) else _READS


def check(text: str) -> list[Finding]:
    """Return the findings of one file by line."""
    nodes = list(ast.walk(ast.parse(text)))
    modules = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in REFUSED
    }
    found = [one for node in nodes for one in _of_node(node, modules)]
    return sorted(found, key=lambda one: one.number)


def _of_node(node: ast.AST, modules: dict[str, str]) -> Iterator[Finding]:
    match node:
        case ast.ImportFrom(module=str(module), names=names):
            for alias in names:
                if alias.name in REFUSED.get(module, ()):
                    yield Finding(node.lineno, f"{module}.{alias.name}")
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            module = modules.get(name, "")
            if attribute in REFUSED.get(module, ()):
                yield Finding(node.lineno, f"{module}.{attribute}")
        # An event that nothing can set is a sleep, unless it is waited for without an end.
        case ast.Call(func=ast.Attribute(value=ast.Call(func=made), attr="wait")) if ast.unparse(
            made
        ).endswith("Event") and (node.args or node.keywords):
            yield Finding(node.lineno, "Event().wait")


def main(arguments: Sequence[str] = ()) -> int:
    """Print the findings in tests, or in those below the paths given; 1 if there are any."""
    code = 0
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if file == EXEMPT or (arguments and not file.startswith(tuple(arguments))):
            continue
        for one in check(path.read_text(encoding="utf-8")):
            code = 1
            print(f"{file}:{one.number}: {one.name}; use {one.instead}")  # noqa: T201 - a command
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
