"""The files of locked requirements agree, and name packages as dependents only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tests.supply_chain.locked import RUNTIME, LockedPackage, locked

FILES = sorted(RUNTIME.parent.glob("requirements*.txt"))


def differences(first: Path, second: Path) -> Iterator[str]:
    """Return the packages of both files that have other versions under the same markers."""
    here, there = locked(first), locked(second)
    for name in sorted({*here} & {*there}):
        one, other = versions(here[name]), versions(there[name])
        if {*one} == {*other} and one != other:
            yield f"{name}: {one} in {first.name}, {other} in {second.name}"


def versions(packages: list[LockedPackage]) -> dict[str, str]:
    """Return the versions of a package by their markers."""
    return {package.marker: package.version for package in packages}


@pytest.mark.parametrize(
    ("first", "second"),
    [*combinations(FILES, 2)],
    ids=lambda file: file.stem.removeprefix("requirements"),
)
def test_packages_of_two_files_have_the_same_versions(first: Path, second: Path) -> None:
    assert list(differences(first, second)) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_of_constraints_are_no_dependents(file: Path) -> None:
    needing = {one for found in locked(file).values() for each in found for one in each.needed_by}
    assert not needing & {"c", "r", "ops", "deploy"}
