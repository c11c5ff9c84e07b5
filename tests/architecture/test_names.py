"""One public name, one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "worker", "domain", "ops", "migrations")
#: Names that two top-level folders may share, each with the reason why they mean one thing.
SHARED: dict[str, str] = {}


@cache
def public_classes(folder: str) -> dict[str, list[str]]:
    """Return the files that define each public class of a top-level folder."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    return places


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_two_public_classes_of_a_folder_share_a_name(folder: str) -> None:
    shared = {name: files for name, files in public_classes(folder).items() if len(files) > 1}
    assert shared == {}


def test_no_two_public_classes_of_the_product_share_a_name_but_for_the_exceptions() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for name, files in public_classes(folder).items():
            places[name] += files
    shared = {name for name, files in places.items() if len(files) > 1}
    assert shared == set(SHARED)
