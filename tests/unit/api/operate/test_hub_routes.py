"""What fits this machine, the search of the hub, and downloads that a page can follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.operate.hub import Downloads
from ops.models.suggest import SUGGESTED
from tests.support.builders.api import FakeApi, fake_api
from tests.support.polling import wait_until
from tests.support.processes.local_hub import Hub, local_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    directory = tmp_path / "coder"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights" * 1000)
    one = Hub(models={"org/Coder": directory})
    with local_hub(one) as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield one


async def _downloads(api: FakeApi) -> list[dict[str, Any]]:
    page = await api.json("GET", "/admin/downloads")
    found: list[dict[str, Any]] = page["data"]
    return found


async def _ended(api: FakeApi) -> list[dict[str, Any]]:
    """Return the downloads once none runs."""
    running = api.app.once(Downloads).all

    def is_over() -> bool:
        return all(one.state != "running" for one in running())

    await asyncio.to_thread(wait_until, is_over, what="the end of the downloads")
    return await _downloads(api)


def test_suggestions_have_their_sizes_and_what_fits() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            page = await api.json("GET", "/admin/suggestions")
            assert [one["id"] for one in page["data"]] == [one.hub_id for one in SUGGESTED]
            assert 0 < page["usable_bytes"] <= page["memory_bytes"]
            assert all(0 <= one["contexts"] <= 5 for one in page["data"])

    asyncio.run(scenario())


@pytest.mark.usefixtures("hub")
def test_a_search_lists_what_the_hub_has() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            page = await api.json("GET", "/admin/hub?search=coder")
            assert (page["problem"], page["data"]) == (None, [{"id": "org/Coder", "downloads": 7}])
            assert (await api.json("GET", "/admin/hub?search=nothing"))["data"] == []
            assert len((await api.json("GET", "/admin/hub"))["data"]) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("ENDPOINT", "http://127.0.0.1:9", "the hub at http://127.0.0.1:9 cannot be reached"),
        ("HF_HUB_OFFLINE", True, "HF_HUB_OFFLINE is set"),
    ],
)
def test_a_hub_out_of_reach_is_a_problem_and_no_error(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, value: object, problem: str
) -> None:
    monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)

    async def scenario() -> None:
        async with fake_api() as api:
            page = await api.json("GET", "/admin/hub?search=coder")
            assert page["problem"].startswith(problem)
            assert page["data"] == []
            assert hub.requested == []

    asyncio.run(scenario())


@pytest.mark.usefixtures("hub")
def test_a_download_reports_its_progress_and_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            begun = await api.json("POST", "/admin/models/org%2FCoder/pull", status=202)
            assert (begun["model"], begun["object"]) == ("org/Coder", "download")
            (done,) = await _ended(api)
            assert (done["state"], done["why"]) == ("done", None), done
            assert done["done_bytes"] == done["size_bytes"] == 7002
            assert list((tmp_path / "cache").glob("models--org--Coder/snapshots/*/config.json"))

    asyncio.run(scenario())


@pytest.mark.usefixtures("hub")
def test_a_download_that_fails_has_its_reason_and_may_begin_again() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for _ in range(2):
                await api.json("POST", "/admin/models/org%2FNone/pull", status=202)
                (failed,) = await _ended(api)
                assert failed["state"] == "failed"
                assert "the hub has no model org/None" in failed["why"]
            await api.json("POST", "/admin/models/demo/pull", status=400)

    asyncio.run(scenario())


@pytest.mark.usefixtures("hub")
def test_one_model_is_downloaded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr("api.operate.hub.Download.run", lambda *_: begun.append(1))

    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("POST", "/admin/models/org%2FCoder/pull", status=202)
            await api.json("POST", "/admin/models/org%2FCoder/pull", status=202)
            reply = await api.send("POST", "/admin/models/org%2FOther/pull")
            assert reply.status == 409
            assert "org/Coder is being downloaded" in json.loads(reply.body)["detail"]  # type: ignore[union-attr]

    asyncio.run(scenario())
    wait_until(lambda: begun == [1], what="one thread")
