"""Find entries of docstrings that repeat a signature: ``python -m tests.architecture.docstrings``.

An entry of ``Args``, ``Attributes``, ``Returns`` or ``Yields`` states what the signature cannot: a
unit, a shape, a range, an order. One whose words all stand in the name and the type is empty.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "worker", "domain", "ops", "migrations", "bench")
SECTIONS = ("Args:", "Attributes:", "Returns:", "Yields:")
#: The event catalogue of the site is made of these entries: each field of an event needs one.
_CATALOGUE = "domain/events/"
#: Descriptions that are no sentence and name no fact.
REFUSED = re.compile(
    r"(as above|see above|the same for [^;,]*|of (the|an?) \w+( \w+)?)\.", re.IGNORECASE
)
# Words without a meaning of their own.
_SMALL = {"a", "an", "and", "are", "as", "be", "for", "from", "in", "is", "it", "its", "of", "on"}
_SMALL |= {"one", "that", "the", "their", "this", "to", "which", "with"}

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Finding:
    """An entry without content.

    Attributes:
        file: Path below the root.
        line: First line of the entry, from 1.
        lines: How many lines the entry takes.
        name: Of the argument or attribute.
    """

    file: str
    line: int
    lines: int
    name: str


def findings(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> Iterator[Finding]:
    """Yield the empty entries of the packages."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            file = str(path.relative_to(root))
            if file.startswith(_CATALOGUE):
                continue
            text = path.read_text()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, Defined):
                    yield from _of_definition(file, text.splitlines(), node)


def _of_definition(file: str, lines: list[str], node: Defined) -> Iterator[Finding]:
    if ast.get_docstring(node) is None:
        return
    string = node.body[0]
    types = dict(_types(node))
    for line, count, name, text in _entries(lines, string.lineno, string.end_lineno or 0):
        if REFUSED.fullmatch(text) or _is_empty(name, text, types.get(name, "")):
            yield Finding(file, line, count, name)


def _entries(lines: list[str], first: int, last: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield line, number of lines, name and description of each entry of a docstring."""
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    within = False
    entry: tuple[int, str, list[str]] | None = None
    for number in range(first, last + 1):
        line = lines[number - 1]
        depth = len(line) - len(line.lstrip())
        found = re.match(r"\s+(\*{0,2}\w+)(?: \([^)]*\))?: (.*)", line)
        is_start = within and depth == indent + 4 and found is not None
        if entry and (is_start or depth <= indent + 4):
            yield entry[0], number - entry[0], entry[1], " ".join(entry[2])
            entry = None
        if depth == indent and line.strip():
            within = line.strip() in SECTIONS
        elif is_start and found is not None:
            entry = number, found[1].lstrip("*"), [found[2]]
        elif entry and line.strip():
            entry[2].append(line.strip())


def _types(node: Defined) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            match inner:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    yield name, ast.unparse(annotation)
                case ast.FunctionDef(name="__init__"):
                    yield from _types(inner)
                case _:
                    pass
        return
    arguments = node.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield one.arg, ast.unparse(one.annotation) if one.annotation else ""


def _is_empty(name: str, text: str, annotation: str) -> bool:
    known = {_stem(word) for word in _words(f"{name} {annotation}")}
    return {_stem(word) for word in _words(text)} <= known | _SMALL


def _words(text: str) -> Iterator[str]:
    yield from (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", text))


def _stem(word: str) -> str:
    return re.sub(r"(?<=\w{2})(ies|es|s|ed|ing)$", "", word)


def main() -> int:
    """Print the findings; 1 if there are any."""
    found = list(findings())
    for one in found:
        print(f"{one.file}:{one.line}: {one.name}: repeats its signature")  # noqa: T201 - a command
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
