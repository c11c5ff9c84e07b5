"""Checks a release and writes its formula: ``python -m tests.supply_chain.release notes v1.2.3``.

``notes`` compares a tag with the version of ``pyproject.toml`` and prints the section of the
changelog. ``formula`` fills in the template of ``ops/deploy/homebrew`` for the files in ``dist``.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

from tests.supply_chain.locked import ROOT, RUNTIME

CHANGELOG: Final = ROOT / "docs" / "changelog.md"
TEMPLATE: Final = ROOT / "ops" / "deploy" / "homebrew" / "semantic.rb.in"
_HEADING: Final = re.compile(r"^## (?P<name>\S+)[^\n]*$", re.MULTILINE)
_UNRELEASED: Final = "Unreleased"


class NotReady(Exception):
    """The tree is not that of the release; the message is the reason."""


def version() -> str:
    """Return the version of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def sections(changelog: str) -> dict[str, str]:
    """Return the text of each version's section, by version."""
    marks = [*_HEADING.finditer(changelog)]
    ends = [mark.start() for mark in marks[1:]] + [len(changelog)]
    return {
        mark["name"]: changelog[mark.end() : end].strip()
        for mark, end in zip(marks, ends, strict=True)
    }


def notes(tag: str, changelog: str, project_version: str) -> str:
    """Return the changelog of a release.

    Args:
        tag: The tag, ``v`` and the version.
        changelog: The text of the changelog.
        project_version: The version in ``pyproject.toml``.

    Raises:
        NotReady: Tag, version and changelog do not agree.
    """
    if tag != f"v{project_version}":
        message = f"the tag {tag} is not v{project_version}, the version of pyproject.toml"
        raise NotReady(message)
    found = sections(changelog)
    if not found.get(project_version):
        message = f"the changelog has no section {project_version}"
        raise NotReady(message)
    if found.get(_UNRELEASED):
        message = f"changes are listed under {_UNRELEASED}: move them to {project_version}"
        raise NotReady(message)
    return found[project_version]


def formula(template: str, wheel: Path, requirements: Path, *, homepage: str, tag: str) -> str:
    """Return the Homebrew formula of a release.

    Args:
        template: The text of the template.
        wheel: The wheel of the release.
        requirements: The locked requirements of the release.
        homepage: Address of the repository; its releases have the files.
        tag: The tag of the release.
    """
    files = f"{homepage}/releases/download/{tag}"
    values = {
        "homepage": homepage,
        "version": wheel.name.split("-")[1],
        "url": f"{files}/{wheel.name}",
        "sha256": _sha256(wheel),
        "requirements_url": f"{files}/{requirements.name}",
        "requirements_sha256": _sha256(requirements),
    }
    text = template
    for name, value in values.items():
        text = text.replace(f'"{{{name}}}"', f'"{value}"')
    return text.partition("\n")[2] if text.startswith("# Template") else text


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> int:
    """Run one of the two commands; return 1 if the tree is not that of the release."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.supply_chain.release", description=__doc__
    )
    parser.add_argument("command", choices=("notes", "formula"))
    parser.add_argument("tag", help="of the release, such as v1.2.3")
    parser.add_argument("--homepage", default="", help="address of the repository")
    given = parser.parse_args()
    try:
        text = notes(given.tag, CHANGELOG.read_text(encoding="utf-8"), version())
    except NotReady as error:
        print(f"not ready for a release: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    if given.command == "notes":
        print(text)  # noqa: T201 - a command
        return 0
    wheel = ROOT / "dist" / f"semantic-{version()}-py3-none-any.whl"
    template = TEMPLATE.read_text(encoding="utf-8")
    ready = formula(template, wheel, RUNTIME, homepage=given.homepage, tag=given.tag)
    wheel.with_name("semantic.rb").write_text(ready, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
