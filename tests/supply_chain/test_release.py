"""A release needs a tag, a version and a section of the changelog that agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supply_chain.large_files import ALLOWED, BYTES_MAX, too_large
from tests.supply_chain.release import (
    CHANGELOG,
    TEMPLATE,
    NotReady,
    formula,
    notes,
    sections,
    version,
)

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
