"""Find public names that no process reaches: ``python -m tests.architecture.reachable``.

A definition is live when its name stands in live code, in its own package or another one. Live code
begins with the statements that run where a process starts: modules with ``__main__`` and what they
import. The analysis knows names, not types: two methods of one name live and die together.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "worker", "domain", "ops", "migrations")
#: Decorators that hand a function to no register: such a function still needs a caller.
_PLAIN = {
    *("abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "dataclass"),
    *("asynccontextmanager", "final", "lru_cache", "override", "property", "staticmethod"),
    *("runtime_checkable", "total_ordering", "unique", "wraps"),
}
#: Bases whose subclasses are called by the name of their methods in our own code only.
_OWN_BASES = {"Enum", "Exception", "Generic", "IntEnum", "NamedTuple", "Protocol", "StrEnum"}
#: Called by what the analysis does not see, by file and name.
_ALLOWED = {
    **dict.fromkeys(
        (
            "worker/engine/mlx/kv/packed_cache.py quantised",
            "worker/engine/mlx/rows/ragged_cache.py maybe_trim_front",
            *(
                f"worker/engine/mlx/kv/window_cache.py {name}"
                for name in ("is_trimmable", "maybe_trim_front", "start_position")
            ),
            *(
                f"worker/engine/mlx/{file}.py {name}"
                for file in ("kv/packed_cache", "kv/window_cache", "rows/ragged_cache")
                for name in ("keys_and_values", "make_mask", "update_and_fetch")
            ),
        ),
        "mlx-lm calls it on each cache, or what is called so calls it",
    ),
    **dict.fromkeys(
        (
            "worker/engine/mlx/rows/ragged_cache.py swapaxes",
            "worker/engine/mlx/rows/ragged_cache.py RaggedFactor",
        ),
        "mlx-lm's latent attention calls it on keys",
    ),
    **dict.fromkeys(
        (
            "domain/kv/pool.py check_integrity",
            "domain/kv/relief.py check_integrity",
        ),
        "the invariant of a machine's steps",
    ),
}
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass
class _Scope:
    """A definition, or the statements of a module: the names it uses, and what it defines.

    Attributes:
        file: Path below the root.
        line: Of the definition; 0 for a module.
        name: Of the definition; empty for a module.
        public: Whether the name has no underscore in front.
        uses: Names in its own code.
        always: Definitions that live and die with it: a decorator registers them.
        by_name: Definitions that need a name in live code.
    """

    file: str
    line: int
    name: str
    public: bool
    uses: set[str] = field(default_factory=set)
    always: list[_Scope] = field(default_factory=list)
    by_name: dict[str, list[_Scope]] = field(default_factory=lambda: defaultdict(list))

    @property
    def label(self) -> str:
        """Where to look."""
        return f"{self.file}:{self.line} {self.name}" if self.line else self.file

    @property
    def place(self) -> str:
        """The key of ``_ALLOWED``: no line, which changes with each edit above it."""
        return f"{self.file} {self.name}"


def unreachable(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """Return ``file:line name`` of each public definition that no process reaches."""
    modules = {
        path: _module(path, str(path.relative_to(root)), packages)
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
    }
    names = {_dotted(path.relative_to(root)): scope for path, scope in modules.items()}
    live = _Liveness()
    live.enter(*(scope for path, scope in modules.items() if _is_start(path)))
    while live.grew(names):
        pass
    return sorted(
        scope.label for scope in live.dead(modules.values()) if scope.place not in _ALLOWED
    )


class _Liveness:
    """What is live so far."""

    def __init__(self) -> None:
        self._seen = set[int]()
        self._scopes = list[_Scope]()
        self._used = set[str]()

    def enter(self, *scopes: _Scope) -> None:
        for scope in scopes:
            if id(scope) in self._seen:
                continue
            self._seen.add(id(scope))
            self._scopes.append(scope)
            self._used |= scope.uses
            self.enter(*scope.always)

    def grew(self, modules: dict[str, _Scope]) -> bool:
        """Enter what the live code names; return whether that was anything new."""
        before = len(self._scopes)
        below = tuple(name for name in self._used if name.endswith("."))
        self.enter(*(modules[name] for name in modules if name in self._used))
        self.enter(*(scope for name, scope in modules.items() if name.startswith(below)))
        for scope in list(self._scopes):
            for name in scope.by_name.keys() & self._used:
                self.enter(*scope.by_name[name])
        return len(self._scopes) > before

    def dead(self, scopes: Iterable[_Scope]) -> Iterator[_Scope]:
        for scope in scopes:
            if id(scope) not in self._seen:
                if scope.public:
                    yield scope
                continue
            yield from self.dead([inner for group in scope.by_name.values() for inner in group])


def _module(path: Path, file: str, packages: tuple[str, ...]) -> _Scope:
    tree = ast.parse(path.read_text())
    scope = _Scope(file, 0, "", public=not path.name.startswith("__"))
    _Reader(file, tree, packages).fill(scope, tree.body)
    return scope


class _Reader:
    """Reads the scopes of one module."""

    def __init__(self, file: str, tree: ast.Module, packages: tuple[str, ...]) -> None:
        self._file = file
        self._foreign = set(_foreign_names(tree, packages)) - _OWN_BASES

    def fill(self, scope: _Scope, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self._define(scope, statement)
                case _:
                    scope.uses |= set(_names(statement))

    def _define(
        self, scope: _Scope, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        public = not node.name.startswith("_")
        inner = _Scope(self._file, node.lineno, node.name, public=public)
        for decorator in node.decorator_list:
            scope.uses |= set(_names(decorator))
        if isinstance(node, ast.ClassDef):
            self._read_class(inner, node)
        else:
            inner.uses |= {used for part in ast.iter_child_nodes(node) for used in _names(part)}
            inner.uses.discard(node.name)
        if node.name.startswith("__") or _is_registered(node):
            scope.always.append(inner)
        else:
            scope.by_name[node.name].append(inner)

    def _read_class(self, scope: _Scope, node: ast.ClassDef) -> None:
        for base in (*node.bases, *node.keywords):
            scope.uses |= set(_names(base))
        self.fill(scope, node.body)
        # A library calls the methods of a class that inherits from one of its own, and reads the
        # columns of a table.
        if any(name in self._foreign for base in node.bases for name in _names(base)):
            scope.always += [inner for group in scope.by_name.values() for inner in group]
            scope.by_name.clear()


def _foreign_names(tree: ast.Module, packages: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                if module.partition(".")[0] not in packages:
                    yield from (alias.asname or alias.name for alias in aliases)
            case _:
                pass


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                yield module
                yield from (f"{module}.{alias.name}" for alias in aliases)
                yield from (alias.name for alias in aliases if alias.asname)
            case ast.keyword(arg=str(name)):
                yield name
            # importlib.import_module(f"ops.cli.{module}"): each module below the prefix.
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text.endswith("."):
                yield text
            case ast.Constant(value=str(text)) if _DOTTED.fullmatch(text):
                yield text
                yield text.rpartition(".")[2]
            case _:
                pass


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether a decorator takes the definition, or the schema a table."""
    if isinstance(node, ast.ClassDef) and any(one.arg == "table" for one in node.keywords):
        return True
    return not all(_PLAIN & set(_names(decorator)) for decorator in node.decorator_list)


def _is_start(path: Path) -> bool:
    text = path.read_text()
    return (
        path.name == "__main__.py"
        or 'if __name__ == "__main__"' in text
        or "migrations" in path.parts
    )


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    found = unreachable()
    print(*found, sep="\n")  # noqa: T201 - a command
    sys.exit(1 if found else 0)
