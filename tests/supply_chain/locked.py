"""Reads the locked requirements: every package with its version, hashes and dependents."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
RUNTIME: Final = ROOT / "ops" / "deploy" / "requirements.txt"
DEVELOPMENT: Final = ROOT / "ops" / "deploy" / "requirements-dev.txt"
#: Extras that a user may install; ``dev`` is for tests and checks only.
EXTRAS: Final = ("otel", "postgres")
_PIN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?: *; *(?P<marker>.*))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One pinned package.

    Attributes:
        name: Its normalised name.
        version: The pinned version.
        marker: The platforms that need it, as an environment marker; empty for all.
        digests: SHA-256 of each allowed file, in hexadecimal.
        needed_by: The packages that require it; ``semantic`` for a direct dependency.
    """

    name: str
    version: str
    marker: str
    digests: tuple[str, ...]
    needed_by: tuple[str, ...]


def normalised(name: str) -> str:
    """Return the name of a package as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(file: Path) -> dict[str, list[LockedPackage]]:
    """Return the packages of a file of locked requirements, by name; one entry for each version."""
    packages: dict[str, list[LockedPackage]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", file.read_text(encoding="utf-8")):
        pin = _PIN.match(block)
        if pin is None:
            continue
        package = LockedPackage(
            name=normalised(pin["name"]),
            version=pin["version"],
            marker=(pin["marker"] or "").rstrip(" \\"),
            digests=tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", block)),
            needed_by=tuple(_dependents(block)),
        )
        packages.setdefault(package.name, []).append(package)
    return packages


def of_extra(extra: str) -> tuple[str, ...]:
    """Return the names of the packages that an extra adds to the runtime, in order."""
    packages, runtime = locked(DEVELOPMENT), locked(RUNTIME)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["optional-dependencies"][extra]
    names = {normalised(re.split(r"[\[=]", line)[0]) for line in asked}
    while True:
        more = {
            name
            for name, versions in packages.items()
            if names & {needing for one in versions for needing in one.needed_by}
        }
        if more <= names:
            return tuple(sorted(names - {*runtime}))
        names |= more


def _dependents(block: str) -> Iterator[str]:
    _, _, comment = block.partition("# via")
    comment = re.sub(r"-[cr] \S+", "", comment)  # files, no packages
    for name in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[a-z]+\])?(?: \([^)]*\))?", comment):
        yield normalised(re.split(r"[ \[]", name)[0])
