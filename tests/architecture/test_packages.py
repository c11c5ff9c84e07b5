"""The page for engineers names every package."""

from __future__ import annotations

from tests.architecture.packages import BEGIN, PAGE, ROOT, packages, with_table

#: Modules and packages of one folder; "about 15" of the house plan.
MODULES_MAX = 16


def test_table_of_packages_is_that_of_the_code() -> None:
    page = PAGE.read_text()
    assert BEGIN in page
    assert page == with_table(page), "run: make packages"


def test_each_package_is_described_in_one_to_three_lines() -> None:
    lengths = {path: len(line) for path, line in packages()}
    assert {path for path, length in lengths.items() if not 20 <= length <= 300} == set()


def test_no_package_holds_too_many_modules() -> None:
    too_many = {}
    for path, _ in packages():
        folder = ROOT / path
        inside = [one for one in folder.glob("*.py") if one.name != "__init__.py"]
        inside += [one.parent for one in folder.glob("*/__init__.py")]
        if len(inside) > MODULES_MAX and path != "migrations/versions":
            too_many[path] = len(inside)
    assert too_many == {}
