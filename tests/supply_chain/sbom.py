"""Writes the CycloneDX bill of materials: ``python -m tests.supply_chain.sbom dist/sbom.cdx.json``.

It is made of the locked requirements, the reviewed licences and the vendored scripts alone, so it
needs no network, and the same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.supply_chain.licences import VENDORED, reviewed, shipped, vendored
from tests.supply_chain.locked import ROOT, RUNTIME, LockedPackage, locked

#: Version of the CycloneDX specification.
SPEC: Final = "1.6"
#: Namespace of the serial number, which derives from the content.
_NAMESPACE: Final = uuid.UUID("8c9e2a6b-8b0e-4b57-9d2a-5d5f3a0f0c11")


def bill_of_materials() -> dict[str, Any]:
    """Return the bill of the runtime, its extras and the scripts of the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {
        "type": "application",
        "bom-ref": project["name"],
        "name": project["name"],
        "version": project["version"],
        "licenses": [{"license": {"id": project["license"]}}],
    }
    extras, licences = shipped(), reviewed()
    versions = _packages(extras)
    components = [
        _component(one, licences[name].spdx, extras[name])
        for name, packages in versions.items()
        for one in packages
    ]
    components += list(_scripts())
    content = {
        "metadata": {"component": own},
        "components": components,
        "dependencies": _dependencies(own["name"], versions),
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": SPEC, "version": 1}
    return {**head, "serialNumber": f"urn:uuid:{serial}", **content}


def _packages(names: Iterable[str]) -> dict[str, list[LockedPackage]]:
    # The second file pins the same versions and has the extras as well.
    every = locked(RUNTIME.with_name("requirements-dev.txt")) | locked(RUNTIME)
    return {name: every[name] for name in names}


def _dependencies(own: str, packages: Mapping[str, list[LockedPackage]]) -> list[dict[str, Any]]:
    """Return what each component requires, from the lock's list of dependents."""
    refs = {own: [own]} | {name: [_purl(one) for one in every] for name, every in packages.items()}
    needs: dict[str, set[str]] = {ref: set() for every in refs.values() for ref in every}
    for package in (one for every in packages.values() for one in every):
        for dependent in package.needed_by:
            for ref in refs.get(dependent, ()):
                needs[ref].add(_purl(package))
    return [{"ref": ref, "dependsOn": sorted(on)} for ref, on in needs.items()]


def _purl(package: LockedPackage) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: LockedPackage, spdx: str, extra: str) -> dict[str, Any]:
    facts = {"semantic:extra": extra, "semantic:marker": package.marker}
    return {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "scope": "optional" if extra else "required",
        "purl": _purl(package),
        "licenses": [_licence(spdx)],
        # One reference for each file of the release that the lock accepts.
        "externalReferences": [
            {
                "type": "distribution",
                "url": _purl(package),
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for digest in package.digests
        ],
        "properties": [{"name": name, "value": fact} for name, fact in facts.items() if fact],
    }


def _scripts() -> list[dict[str, Any]]:
    files = json.loads(VENDORED.read_text(encoding="utf-8"))["files"]
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:npm/{name}@{version}",
            "name": name,
            "version": version,
            "scope": "required",
            "purl": f"pkg:npm/{name}@{version}",
            "licenses": [_licence(spdx)],
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"pkg:npm/{name}@{version}#{file['path']}",
                    "hashes": [{"alg": "SHA-256", "content": file["package_sha256"]}],
                }
                for file in files.values()
                if file["package"] == name
            ],
            "properties": [],
        }
        for name, (version, spdx) in sorted(vendored().items())
    ]


def _licence(spdx: str) -> dict[str, Any]:
    return {"expression": spdx} if " " in spdx else {"license": {"id": spdx}}


def main() -> int:
    """Write the bill to the given file."""
    parser = argparse.ArgumentParser(prog="python -m tests.supply_chain.sbom", description=__doc__)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    file.parent.mkdir(parents=True, exist_ok=True)
    bill = bill_of_materials()
    file.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{file}: {len(bill['components'])} components, CycloneDX {SPEC}")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
