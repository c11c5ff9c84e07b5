"""Running services that tests share, and a factory for a service of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from bench.chaos.model import make_exact_model
from tests.support.models.tiny_embedder import make_tiny_embedder
from tests.support.polling import scaled
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.scripted_service import (
    ENDLESS,
    ENDLESS_PACE_S,
    line,
    scripted_service,
    write_script,
)
from tests.support.processes.service import Service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("service") / "data").start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the embedding model of ``mortal``."""
    return make_tiny_embedder(tmp_path_factory.mktemp("embedder") / "notes", context=4096)


@pytest.fixture(scope="package")
def _mortal(
    exact_model: dict[str, str], embedder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("mortal")
    config = directory / "semantic.toml"
    config.write_text(
        f'[models.notes]\nsource = "{embedder}"\naliases = ["text-embedding-3-small"]\n'
        f'[models.gone]\nsource = "{directory / "gone"}"\nkind = "embedding"\n'
    )
    # The parts of a killed supervisor end soon, and a new worker soon looks for what was begun.
    env = with_constants(
        exact_model | {"SEMANTIC_CONFIG": str(config)},
        {"ops.liveness.child.ORPHAN_S": 1.0, "worker.process.RECONCILE_S": 1.0},
    )
    # Each kill also has a proof with processes that start as those of users.
    running = Service(directory / "data", env=env, cold=True).start()
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0, running.log()


@pytest.fixture
def mortal(_mortal: Service) -> Service:
    """A service whose parts a test may kill, and which it may stop: each test finds it ready.

    It serves the exact model, and the embedding model ``notes``; the files of ``gone`` are missing.
    """
    if _mortal.process.poll() is not None:
        _mortal.start()
    _mortal.wait_ready()
    return _mortal


@pytest.fixture(scope="package")
def _scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = scripted_service(
        tmp_path_factory.mktemp("scripted"), [], SEMANTIC_MODEL__NAME="semantic-demo"
    ).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def scripted(_scripted: Service) -> Callable[[Sequence[dict[str, Any]]], Service]:
    """Return what gives the shared service a script for the requests to come; it is ready then.

    A test may kill its worker and its api.
    """

    def follow(lines: Sequence[dict[str, Any]]) -> Service:
        _scripted.wait_ready()
        write_script(_scripted.data_dir.parent, lines)
        return _scripted

    return follow


@pytest.fixture
def endless(scripted: Callable[[Sequence[dict[str, Any]]], Service]) -> Service:
    """A service whose answers outlast every test: only a cancel or a deadline ends them."""
    return scripted([line("", ENDLESS, pace_s=ENDLESS_PACE_S)])


@pytest.fixture(scope="session")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the settings that serve the demo model in single precision.

    For tests that compare what is said alone, in company or after a crash: half precision may round
    otherwise.
    """
    model = make_exact_model(tmp_path_factory.mktemp("exact") / "model")
    return {"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_MODEL__NAME": "semantic-demo"}


def _claude_of(service: Service) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=service.base_url,
        api_key="local",
        max_retries=0,
        timeout=scaled(60),
        _strict_response_validation=True,
    )


@pytest.fixture
def claude(service: Service) -> Iterator[anthropic.Anthropic]:
    with _claude_of(service) as client:
        yield client


@pytest.fixture
def endless_claude(endless: Service) -> Iterator[anthropic.Anthropic]:
    with _claude_of(endless) as client:
        yield client


@pytest.fixture
def oai(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{service.base_url}/v1",
        api_key="local",
        max_retries=0,
        timeout=scaled(60),
        _strict_response_validation=True,
    ) as client:
        yield client


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(*, cold: bool = False, **env: str) -> Service:
        one = Service(tmp_path / f"data{len(started)}", env=env, cold=cold)
        started.append(one)
        return one.start()

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
