"""The command-line agents from npm, and the session that waits for six minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.clients import claude_code, codex
from tests.support.clients.claude_code_patience import PatientSession
from tests.support.polling import scaled

_TIMEOUT_S = 1800


@pytest.fixture(scope="session")
def claude_binary() -> Path:
    return claude_code.install()


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new home where the last test had its own.

    Claude Code names it in its prompt: what one test has had read, the next one finds in the cache.
    """
    place = tmp_path_factory.getbasetemp() / "home"
    if place.exists():
        place.rename(tmp_path_factory.mktemp("left") / "home")
    place.mkdir()
    return place


@pytest.fixture(scope="session")
def codex_binary() -> Path:
    return codex.install()


@pytest.fixture(scope="session")
def patient(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PatientSession]:
    with PatientSession(claude_binary, tmp_path_factory.mktemp("patient")) as session:
        yield session


@pytest.fixture(scope="session", autouse=True)
def _begun_early(request: pytest.FixtureRequest) -> None:
    """Begin the wait before the first test, where one process runs all tests."""
    if not _is_parallel(request.config) and any(map(_waits, request.session.items)):
        # The test that uses the session reports why it could not begin.
        with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
            request.getfixturevalue("patient")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests of this directory more time, and put the one that waits where it costs least.

    One process runs it last, after the wait began first. Of several processes, one runs it first
    and leaves the cores to the others.
    """
    items.sort(key=_waits, reverse=_is_parallel(config))
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(scaled(_TIMEOUT_S)))


def _waits(item: pytest.Item) -> bool:
    return "patient" in getattr(item, "fixturenames", ())


def _is_parallel(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
