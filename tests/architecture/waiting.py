"""Refuse sleeps, bare clocks and unscaled deadlines in tests.

``python -m tests.architecture.waiting``
"""

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
_SCALES = "scaled(…); unscaled if the time is the behaviour itself"
#: Calls that take a deadline as a positional argument, and which one it is. All calls may take it
#: as ``timeout``, except these of brokers, whose timeout is how long a fetch holds its connection.
_DEADLINES = {
    **dict.fromkeys(("exception", "join", "result", "settimeout", "timeout", "wait"), 0),
    **dict.fromkeys(("set_page_load_timeout", "set_script_timeout"), 0),
    **dict.fromkeys(("WebDriverWait", "wait_for"), 1),
}
_FETCHES = {"blpop", "consume", "submit"}
#: HTTP clients, whose timeout is five seconds where the call gives none.
_HTTP = {"httpx", "httpx2"}
_ASKS = {"AsyncClient", "Client", "delete", "get", "patch", "post", "put", "request", "stream"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A use of a sleep, a clock or a deadline that is the same on every machine.

    Attributes:
        number: Of the line, from 1.
        name: What is used.
    """

    number: int
    name: str

    @property
    def instead(self) -> str:
        """What to use."""
        if self.name.startswith("timeout"):
            return _SCALES
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
    found = [one for node in nodes for one in (*_of_node(node, modules), *_deadlines(node))]
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


def _deadlines(call: ast.AST) -> Iterator[Finding]:
    """Find deadlines that are a number, or a constant in seconds, and HTTP calls without one."""
    if not isinstance(call, ast.Call):
        return
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    place = _DEADLINES.get(name, len(call.args))
    given = call.args[place : place + 1]
    given += [one.value for one in call.keywords if one.arg == "timeout" and name not in _FETCHES]
    yield from (Finding(one.lineno, f"timeout {ast.unparse(one)}") for one in given if _fixed(one))
    match call.func:
        case ast.Attribute(value=ast.Name(id=module)) if module in _HTTP and name in _ASKS:
            if not {"timeout", "transport", None} & {one.arg for one in call.keywords}:
                yield Finding(call.lineno, f"timeout of {module}.{name}")


def _fixed(limit: ast.expr) -> bool:
    if isinstance(limit, ast.Constant):
        return isinstance(limit.value, int | float) and limit.value > 0
    name = getattr(limit, "attr", getattr(limit, "id", ""))
    return name.isupper() and name.endswith("_S")


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
