"""Compiles modules with the values of ``PLANTED_CONSTANTS`` in the place of their constants' own.

See ``tests.support.processes.planted_constants``. Python imports this at the start of a process,
before any module of the service.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

#: The values by module and name.
PLANTED: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    os.environ.get("PLANTED_CONSTANTS", "{}")
)


class PlantingLoader(SourceFileLoader):
    """Loads a module past the cache of compiled modules, which other processes use."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled module.

        Raises:
            ImportError: A constant is not assigned once, at the top level of the module.
        """
        tree = ast.parse(self.get_data(self.path))
        for name, value in PLANTED[fullname].items():
            places = [node for node in tree.body if _assigned(node) == name]
            if len(places) != 1:
                raise ImportError(f"{fullname} has no constant {name}")
            (node,) = places
            text = repr(tuple(value) if isinstance(value, list) else value)
            node.value = ast.parse(text, mode="eval").body  # type: ignore[attr-defined]  # of both kinds
        code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec")
        return code


class PlantingFinder:
    """Finds the modules with planted constants."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of such a module, ``None`` for any other."""
        spec = PathFinder.find_spec(name, path, target) if name in PLANTED else None
        if spec is not None and spec.origin is not None:
            spec.loader = PlantingLoader(name, spec.origin)
        return spec


def _assigned(node: ast.stmt) -> str | None:
    """Return the name that a statement assigns, if it is one."""
    if isinstance(node, ast.AnnAssign):
        target: ast.expr = node.target
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


if PLANTED:
    sys.meta_path.insert(0, PlantingFinder)
