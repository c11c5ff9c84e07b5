"""The bill of materials lists what the locks and the page have, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.supply_chain import sbom
from tests.supply_chain.licences import shipped, vendored


def test_bill_lists_every_shipped_package_with_version_digests_and_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dist" / "bill.json"
    monkeypatch.setattr("sys.argv", ["sbom", str(file)])
    assert sbom.main() == 0
    bill = json.loads(file.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    components = bill["components"]
    assert {one["name"] for one in components} == {*shipped(), *vendored()}
    for one in components:
        assert one["licenses"], one
        assert one["version"], one
        digests = [two for ref in one["externalReferences"] for two in ref["hashes"]]
        assert digests, one
        assert all(len(digest["content"]) == 64 for digest in digests)
    optional = {one["name"] for one in components if one["scope"] == "optional"}
    assert {"psycopg", "opentelemetry-sdk"} <= optional
    assert "redis" not in optional


def test_every_reference_is_unique_and_every_dependency_is_a_component() -> None:
    bill = sbom.bill_of_materials()
    refs = Counter(one["bom-ref"] for one in bill["components"])
    refs[bill["metadata"]["component"]["bom-ref"]] += 1
    assert {*refs.values()} == {1}
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert {ref for every in needs.values() for ref in every} <= {*refs}
    assert any(ref.startswith("pkg:pypi/redis@") for ref in needs["semantic"])


def test_same_tree_gives_the_same_bill() -> None:
    assert sbom.bill_of_materials() == sbom.bill_of_materials()
