"""The examples in the docstrings of ``domain`` are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import domain

MODULES = [one.name for one in pkgutil.walk_packages(domain.__path__, "domain.") if not one.ispkg]


def examples(name: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(name))
    return [one for one in found if one.examples]


@pytest.mark.parametrize("name", [name for name in MODULES if examples(name)])
def test_examples_of_a_module_are_true(name: str) -> None:
    runner = doctest.DocTestRunner()
    for one in examples(name):
        runner.run(one)
    assert runner.summarize(verbose=False).failed == 0


def test_modules_with_examples_are_found() -> None:
    assert "domain.kv.hashing" in MODULES
    assert examples("domain.kv.hashing")
