"""Running services that tests share, and a factory for a service of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from bench.chaos.model import make_exact_model
from tests.support.polling import scaled
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.scripted_service import (
    ENDLESS,
    ENDLESS_PACE_S,
    line,
    scripted_service,
)
from tests.support.processes.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("service") / "data").start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="session")
def _mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    # The parts of a killed supervisor end soon.
    env = with_constants({}, {"ops.liveness.child.ORPHAN_S": 1.0})
    # Each kill also has a proof with processes that start as those of users.
    running = Service(tmp_path_factory.mktemp("mortal") / "data", env=env, cold=True).start()
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0, running.log()


@pytest.fixture
def mortal(_mortal: Service) -> Service:
    """A service whose parts a test may kill, and which it may stop: each test finds it ready."""
    if _mortal.process.poll() is not None:
        _mortal.start()
    _mortal.wait_ready()
    return _mortal


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose answers outlast every test: only a cancel or a deadline ends them."""
    running = scripted_service(
        tmp_path_factory.mktemp("endless"),
        [line("", ENDLESS, pace_s=ENDLESS_PACE_S)],
        SEMANTIC_MODEL__NAME="semantic-demo",
    ).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="session")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the settings that serve the demo model in single precision.

    For tests that compare what is said alone, in company or after a crash: half precision may round
    otherwise.
    """
    model = make_exact_model(tmp_path_factory.mktemp("exact") / "model")
    return {"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_MODEL__NAME": "semantic-demo"}


@pytest.fixture(scope="session")
def exact(
    exact_model: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A service of the exact model; a test that kills its worker waits until it is ready again."""
    running = Service(tmp_path_factory.mktemp("exact") / "data", env=exact_model).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def claude(service: Service) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=service.base_url,
        api_key="local",
        max_retries=0,
        timeout=scaled(60),
        _strict_response_validation=True,
    ) as client:
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
