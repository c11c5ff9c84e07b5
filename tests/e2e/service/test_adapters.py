"""A swap between adapters of one model keeps its weights, and no block serves two adapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.two_models import TwoModels

#: Longer than a few blocks of the cache.
PROMPT = "The harbour is grey. " * 12
TOKENS = 24


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoModels]:
    models = TwoModels(tmp_path_factory.mktemp("adapters"), adapters=("pirate", "formal"))
    yield models
    assert models.close() == 0, models.service.log()


def swap(service: TwoModels, model: str) -> None:
    done = service.swap(model)
    assert done.returncode == 0, done.stdout + done.stderr
    service.wait_served(model)


def ask(service: TwoModels) -> tuple[str, int]:
    """Return the answer, and how many tokens of its prompt the cache had."""
    job = service.ended(service.submit(PROMPT, tokens=TOKENS))
    assert job["status"] == "completed", job
    return job["output"]["text"], job["usage"]["cached_tokens"]


def pid(service: TwoModels) -> int:
    return int(service.service.part("worker").pid)


def test_a_swap_to_an_adapter_stays_in_the_process_and_shares_no_block(service: TwoModels) -> None:
    service.wait_served("a")
    process = pid(service)
    first = {"a": ask(service)}
    for name in ("pirate", "formal"):
        swap(service, name)
        assert pid(service) == process
        first[name] = ask(service)
    assert [cached for _, cached in first.values()] == [0, 0, 0]
    assert len({text for text, _ in first.values()}) == 3
    for name in ("pirate", "a", "formal"):
        swap(service, name)
        text, cached = ask(service)
        assert text == first[name][0]
        assert cached > 0, name
    assert pid(service) == process
    swap(service, "b")
    assert pid(service) != process


def test_an_adapter_that_cannot_be_loaded_leaves_the_model(service: TwoModels) -> None:
    before = service.wait_served()
    (service.service.data_dir.parent / "pirate" / "adapters.safetensors").unlink()
    done = service.swap("pirate")
    assert done.returncode != 0
    assert "adapters.safetensors missing" in done.stdout + done.stderr
    assert service.wait_served() == before
