"""A release needs a tag, a version and a section of the changelog that agree."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.supply_chain.large_files import ALLOWED, BYTES_MAX, too_large
from tests.supply_chain.locked import ROOT
from tests.supply_chain.release import (
    CHANGELOG,
    TEMPLATE,
    NotReady,
    formula,
    notes,
    sections,
    version,
)
from tests.supply_chain.secret_scan import files_of

READY = (
    "# Changelog\n\n## Unreleased\n\n"
    "## 1.2.3 - 2026-11-23\n\n### Fixed\n- A bug.\n\n## 1.2.2\n- x\n"
)


def test_notes_are_the_section_of_the_version() -> None:
    assert notes("v1.2.3", READY, "1.2.3") == "### Fixed\n- A bug."


@pytest.mark.parametrize(
    ("tag", "changelog", "reason"),
    [
        ("1.2.3", READY, "is not v1.2.3"),
        ("v1.2.4", READY, "is not v1.2.3"),
        ("v1.2.3", READY.replace("1.2.3", "1.2.1"), "no section 1.2.3"),
        ("v1.2.3", READY.replace("### Fixed\n- A bug.", ""), "no section 1.2.3"),
        ("v1.2.3", READY.replace("Unreleased", "Unreleased\n- New."), "under Unreleased"),
    ],
)
def test_release_that_is_not_ready_is_refused(tag: str, changelog: str, reason: str) -> None:
    with pytest.raises(NotReady, match=reason):
        notes(tag, changelog, "1.2.3")


def test_changelog_has_a_section_for_the_version_and_for_the_next_one() -> None:
    assert {"Unreleased", version()} <= {*sections(CHANGELOG.read_text())}


def test_formula_has_addresses_and_digests_of_the_release(tmp_path: Path) -> None:
    wheel = tmp_path / "semantic-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    requirements = tmp_path / "requirements.txt"
    requirements.write_bytes(b"requirements")
    template = TEMPLATE.read_text()
    text = formula(template, wheel, requirements, homepage="https://git.example/s", tag="v1.2.3")
    assert "{" not in text.replace("#{", "")
    assert f"https://git.example/s/releases/download/v1.2.3/{wheel.name}" in text
    assert text.count("sha256") == 2
    assert 'version "1.2.3"' in text


def test_large_file_needs_a_review(tmp_path: Path) -> None:
    for name, size in {"small": BYTES_MAX, "large": BYTES_MAX + 1}.items():
        (tmp_path / name).write_bytes(bytes(size))
    (found,) = too_large(tmp_path, ["small", "large", "deleted"])
    assert found.startswith("large: 300,001 bytes")


def test_reviewed_file_has_a_limit_too(tmp_path: Path) -> None:
    (name, limit) = next(iter(ALLOWED.items()))
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(limit + 1))
    assert len([*too_large(tmp_path, [name])]) == 1


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Return a copy of the tree with the version and the changelog of the release 9.8.7."""
    tree = tmp_path / "tree"
    for name in files_of(ROOT):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    project, changelog = tree / "pyproject.toml", tree / CHANGELOG.relative_to(ROOT)
    project.write_text(project.read_text().replace(f'"{version()}"', '"9.8.7"', 1))
    heading = "## Unreleased\n\n## 9.8.7 - 2026-11-23\n"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", heading, 1))
    return tree


@pytest.mark.nightly
def test_prepared_tree_becomes_the_files_of_a_release(prepared: Path) -> None:
    place = f"BIN={Path(sys.executable).parent}"
    done = subprocess.run(
        ["make", "release", "TAG=v9.8.7", "HOMEPAGE=https://git.example/s", "DEV=", place],
        cwd=prepared,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    dist = prepared / "dist"
    wheel = dist / "semantic-9.8.7-py3-none-any.whl"
    others = {"semantic.cdx.json", "semantic.rb", "notes.md", "requirements.txt"}
    names = {wheel.name, "semantic-9.8.7.tar.gz", *others}
    assert {file.name for file in dist.iterdir()} == names
    with ZipFile(wheel) as archive:
        metadata = archive.read("semantic-9.8.7.dist-info/METADATA").decode()
    assert "\nVersion: 9.8.7\n" in metadata
    bill = json.loads((dist / "semantic.cdx.json").read_text())
    assert bill["metadata"]["component"]["version"] == "9.8.7"
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in (dist / "semantic.rb").read_text()
    assert (dist / "notes.md").read_text().startswith(sections(CHANGELOG.read_text())["Unreleased"])
