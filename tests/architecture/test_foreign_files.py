"""Files from outside are data: no product module can execute them, unpickle them or map them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("api", "worker", "domain", "ops", "migrations")
#: Modules that make objects or code of bytes.
MODULES = frozenset(
    {
        *("cloudpickle", "code", "codeop", "dill", "imp", "joblib", "marshal", "pickle"),
        *("runpy", "shelve", "torch", "zipimport"),
    }
)
#: Names, and attributes of any object, that execute text, or read a format that holds objects.
CALLS = frozenset(
    {
        *("eval", "exec", "compile", "execfile", "exec_module", "load_module"),
        *("spec_from_file_location", "module_from_spec", "unsafe_load", "safe_open"),
    }
)
#: Attributes of this name belong to expressions and arrays, except those of ``builtins``.
METHODS = frozenset({"compile", "eval"})
#: Options that must be ``False`` wherever they are given.
OPTIONS = frozenset({"trust_remote_code", "allow_pickle"})
#: The only modules that map a file or read arrays with MLX, and the reason.
MAPS = {"worker/liveness/stuck_step.py": "writes the file itself, to its whole length"}
#: The only module that opens a file with the library of safetensors, and the reason.
HEADERS = {"worker/engine/mlx/model/loader.py": "checks the header of weights and unmaps them"}
LOADS = {
    "worker/engine/mlx/kv/row_target.py": "reads from memory that the module itself wrote",
    "worker/engine/mlx/model/draft_head.py": "reads the files of weights that mlx-lm has read so",
}


@pytest.fixture(scope="module")
def trees() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def executed(tree: ast.Module) -> Iterator[object]:
    """Yield each name by which a module could execute a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CALLS:
            owner = node.value.id if isinstance(node.value, ast.Name) else "?"
            if node.attr not in METHODS or owner == "builtins":
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in CALLS:
            yield node.id
    yield from (
        option for option, value in options(tree) if option in OPTIONS and not refuses(value)
    )


def options(tree: ast.Module) -> Iterator[tuple[object, ast.expr]]:
    """Yield each keyword argument and each entry of a dict, with its value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            yield node.arg, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield getattr(key, "value", None), value


def refuses(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def loads_arrays(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "load"
        and isinstance(node.value, ast.Name)
        and node.value.id in {"mx", "np", "numpy"}
        for node in ast.walk(tree)
    )


def test_no_module_can_execute_or_unpickle_a_file(trees: list[tuple[str, ast.Module]]) -> None:
    found = [
        (path, what)
        for path, tree in trees
        for what in (*(MODULES & {*imported(tree)}), *executed(tree))
    ]
    assert found == [(path, "safe_open") for path in HEADERS]


def test_files_are_mapped_and_arrays_are_loaded_only_where_their_writer_is_known(
    trees: list[tuple[str, ast.Module]],
) -> None:
    assert {path for path, tree in trees if "mmap" in imported(tree)} == {*MAPS}
    assert {path for path, tree in trees if loads_arrays(tree)} == {*LOADS}


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from dill import loads",
        "import torch.nn",
        "eval(text)",
        "builtins.exec(text)",
        "importlib.util.spec_from_file_location('m', path)",
        "load(path, trust_remote_code=True)",
        "load(path, trust_remote_code=wish)",
        "load(path, {'trust_remote_code': True})",
        "safetensors.safe_open(path)",
    ],
)
def test_planted_execution_is_found(planted: str) -> None:
    tree = ast.parse(planted)
    assert MODULES & {*imported(tree)} or [*executed(tree)]
