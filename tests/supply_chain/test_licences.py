"""Every package that users install has a reviewed and accepted licence."""

from __future__ import annotations

import pytest

from tests.supply_chain.licences import (
    BEGIN,
    NOTICE,
    PAGE,
    PERMISSIVE,
    Licence,
    problems,
    reviewed,
    shipped,
    vendored,
    with_packages,
    with_table,
)
from tests.supply_chain.locked import RUNTIME, locked

MIT = Licence(spdx="MIT", declared="MIT")


def test_every_licence_is_reviewed_accepted_and_still_declared() -> None:
    assert not list(problems(shipped(), reviewed()))


def test_page_shows_the_reviewed_licences() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert BEGIN in page
    assert page == with_table(page), "run: make packages"


def test_notice_names_each_package_and_its_licence() -> None:
    notice = NOTICE.read_text(encoding="utf-8")
    assert notice == with_packages(notice), "run: make packages"
    assert "LGPL-3.0-or-later\n    dramatiq\n" in notice


def test_every_package_of_the_runtime_and_of_the_extras_is_read_from_the_lock() -> None:
    packages = shipped()
    lines = RUNTIME.read_text(encoding="utf-8").splitlines()
    assert {*locked(RUNTIME)} == {line.partition("==")[0] for line in lines if "==" in line}
    assert packages["psycopg"] == packages["psycopg-binary"] == "postgres"
    assert packages["opentelemetry-sdk"] == "otel"
    assert all(one.digests for versions in locked(RUNTIME).values() for one in versions)


def test_lgpl_is_the_licence_of_two_packages_only() -> None:
    lgpl = {name for name, one in reviewed().items() if "LGPL" in one.spdx}
    assert {name: shipped()[name] for name in lgpl} == {
        "dramatiq": "",
        "psycopg": "postgres",
        "psycopg-binary": "postgres",
    }


def test_scripts_of_the_page_are_permissive() -> None:
    assert {licence for _, licence in vendored().values()} <= PERMISSIVE


@pytest.mark.parametrize(
    ("packages", "licences", "expected"),
    [
        ({"new": ""}, {}, "new has no reviewed licence"),
        ({"new": ""}, {"new": Licence(spdx="AGPL-3.0-only", declared="x")}, "not accepted"),
        ({"new": ""}, {"new": Licence(spdx="MIT AND GPL-2.0-only", declared="x")}, "not accepted"),
        ({"new": ""}, {"new": Licence(spdx="LGPL-3.0-only", declared="x")}, "not accepted"),
        ({"redis": ""}, {"redis": Licence(spdx="MIT", declared="RSAL")}, "now declares 'MIT'"),
        ({}, {"old": MIT}, "no package of the service"),
    ],
)
def test_licence_that_needs_a_person_is_reported(
    packages: dict[str, str], licences: dict[str, Licence], expected: str
) -> None:
    (problem,) = problems(packages, licences)
    assert expected in problem
