"""What the pages name exists: files, modules, targets; two pages name a test in each section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.packages import ROOT
from tests.support.sharers import SHARERS

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
#: Pages that promise only what a test shows.
PROMISES = ("security.md", "durability.md")
#: A name with one of these stands for several files.
_PATTERNS = ("*", "vN")
_FILE = re.compile(r"`((?:api|worker|domain|ops|migrations|tests|bench)/[\w/.*]*)`")
_MODULE = re.compile(r"python -m ((?:api|worker|ops|tests|bench)\.[\w.]+)")
_TARGET = re.compile(r"`make ([a-z][a-z-]*)[` ]")
_TEST = re.compile(r"tests/[\w/]+\.py")
_CASE = re.compile(r"^\s*(async )?def test_|TestCase$", flags=re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each section that promises something."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if title != "Untested cases":
            yield title, body


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_modules_and_targets_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    # The log of changes has names of earlier versions.
    files = set() if page.name == "changelog.md" else set(_FILE.findall(text))
    missing = {
        name
        for name in files
        if not any(one in name for one in _PATTERNS) and not (ROOT / name).exists()
    }
    for module in _MODULE.findall(text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            missing.add(module)
    makefile = (ROOT / "Makefile").read_text()
    for target in _TARGET.findall(text):
        if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE):
            missing.add(f"make {target}")
    assert missing == set()


@pytest.mark.parametrize("page", PROMISES)
def test_each_section_of_promises_names_tests(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    without = [title for title, body in sections(text) if not _TEST.search(body)]
    assert without == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_named_test_has_tests(page: Path) -> None:
    named = {name for name in _TEST.findall(page.read_text()) if "/test_" in name}
    empty = {name for name in named if not _CASE.search((ROOT / name).read_text())}
    assert empty == set()


def test_files_that_share_services_exist() -> None:
    assert [name for name in SHARERS if not (ROOT / name).exists()] == []
