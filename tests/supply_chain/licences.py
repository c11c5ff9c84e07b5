"""Licences in ``docs/licences.md`` and ``NOTICE``: ``python -m tests.supply_chain.licences``.

The licence of each package is reviewed once, in ``licences.toml``. A package without a review, a
release whose metadata states another licence, and a licence that is not accepted are errors.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final

from tests.supply_chain.locked import EXTRAS, ROOT, RUNTIME, locked, of_extra

PAGE: Final = ROOT / "docs" / "licences.md"
BEGIN: Final = "<!-- licences: begin (make packages) -->"
END: Final = "<!-- licences: end -->"
NOTICE: Final = ROOT / "NOTICE"
#: The last paragraph of NOTICE begins so; the list of the packages is behind it.
_REQUIRED: Final = "Packages that an installation requires"
_NOTICE_COLUMNS: Final = 100
VENDORED: Final = ROOT / "api" / "ui" / "static" / "vendor" / "pins.json"
#: Licences without a condition on the programs that use a package.
PERMISSIVE: Final = frozenset(
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause CC0-1.0 CNRI-Python ISC MIT PSF-2.0 Zlib".split()  # noqa: SIM905
)
#: libgfortran: the exception frees programs that contain it from the conditions of the GPL.
_WITH_EXCEPTION: Final = "GPL-3.0-or-later WITH GCC-exception-3.1"
#: Licences whose conditions hold for the package's own files, and the packages that have them.
WEAK_COPYLEFT: Final = {
    "MPL-2.0": frozenset({"certifi", "orjson", "tqdm"}),
    "LGPL-3.0-or-later": frozenset({"dramatiq"}),
    "LGPL-3.0-only": frozenset({"psycopg", "psycopg-binary"}),
}
_REVIEWED: Final = Path(__file__).with_name("licences.toml")
_CLASSIFIER: Final = "License :: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """The reviewed licence of a package.

    Attributes:
        spdx: The SPDX expression.
        declared: The statement in the package's metadata.
    """

    spdx: str
    declared: str


def reviewed() -> dict[str, Licence]:
    """Return the reviewed licences by package."""
    entries = tomllib.loads(_REVIEWED.read_text(encoding="utf-8"))["packages"]
    return {
        name: Licence(spdx=entry, declared=entry) if isinstance(entry, str) else Licence(**entry)
        for name, entry in entries.items()
    }


def shipped() -> dict[str, str]:
    """Return the packages that users may install: name to the extra, empty for the runtime."""
    names = {name: extra for extra in EXTRAS for name in of_extra(extra)}
    return dict(sorted((names | dict.fromkeys(locked(RUNTIME), "")).items()))


def declared_by(name: str) -> str | None:
    """Return the licence in an installed package's metadata; ``None`` if it is not installed."""
    try:
        fields: Any = metadata(name)
    except PackageNotFoundError:
        return None
    given = fields.get("License-Expression") or (fields.get("License") or "").strip()
    if given:
        return str(given).split("\n", maxsplit=1)[0]
    lines = [line for line in fields.get_all("Classifier") or () if line.startswith(_CLASSIFIER)]
    return "; ".join(
        line.removeprefix(_CLASSIFIER).removeprefix("OSI Approved :: ") for line in lines
    )


def problems(packages: dict[str, str], licences: dict[str, Licence]) -> Iterator[str]:
    """Yield what needs a person: unknown, changed and refused licences, and stale reviews."""
    for name in packages:
        licence = licences.get(name)
        if licence is None:
            yield f"{name} has no reviewed licence; its metadata has {declared_by(name)!r}"
            continue
        declared = declared_by(name)
        if declared is not None and declared != licence.declared:
            yield f"{name} was reviewed with {licence.declared!r} and now declares {declared!r}"
        for one in _parts(licence.spdx):
            if one not in PERMISSIVE and name not in WEAK_COPYLEFT.get(one, ()):
                yield f"{name} has the licence {one}, which is not accepted"
    for name in sorted({*licences} - {*packages}):
        yield f"{name} has a review and is no package of the service"


def vendored() -> dict[str, tuple[str, str]]:
    """Return the vendored scripts of the page: package to version and licence."""
    files = json.loads(VENDORED.read_text(encoding="utf-8"))["files"].values()
    return {file["package"]: (file["version"], file["license"]) for file in files}


def by_licence() -> list[tuple[str, str]]:
    """Return each licence with its packages, the one of most packages first."""
    licences = reviewed()
    names: dict[str, list[str]] = {}
    for name, extra in shipped().items():
        mark = f" (extra `{extra}`)" if extra else ""
        names.setdefault(licences[name].spdx, []).append(f"{name}{mark}")
    ordered = sorted(names.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [(spdx, ", ".join(packages)) for spdx, packages in ordered]


def table() -> str:
    """Return the tables between their two marks."""
    parts = [BEGIN, "", "| licence | packages |", "|---|---|"]
    parts += [f"| {spdx} | {packages} |" for spdx, packages in by_licence()]
    parts += ["", "| script of the page | version | licence |", "|---|---|---|"]
    for name, (version, spdx) in sorted(vendored().items()):
        parts.append(f"| {name} | {version} | {spdx} |")
    return "\n".join((*parts, "", END))


def with_table(page: str) -> str:
    """Return a page with the present tables between its marks."""
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return marks.sub(lambda _: table(), page)


def with_packages(notice: str) -> str:
    """Return the notice with the present packages behind its last paragraph."""
    head, mark, last = notice.partition(_REQUIRED)
    wrap = textwrap.TextWrapper(
        width=_NOTICE_COLUMNS,
        initial_indent="    ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    lists = [f"{spdx}\n{wrap.fill(packages.replace('`', ''))}\n" for spdx, packages in by_licence()]
    return "".join((head, mark, last.partition("\n\n")[0].rstrip(), "\n\n", *lists))


def _parts(spdx: str) -> list[str]:
    return [one for one in re.split(r"[ ()]+|AND|OR", spdx.replace(_WITH_EXCEPTION, "")) if one]


def main() -> int:
    """Write the page and the notice; return 1 if a licence needs a person."""
    found = list(problems(shipped(), reviewed()))
    for line in found:
        print(line, file=sys.stderr)  # noqa: T201 - a command
    if not found:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        NOTICE.write_text(with_packages(NOTICE.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
