"""Models that come and go in the configuration while the service runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.support.models.hub_cache import cache_model
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service


def test_a_running_service_sees_models_come_and_go(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    home = {"HOME": str(tmp_path), "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    service = Service(tmp_path / "data", env=home).start()

    def models(*words: str) -> str:
        kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name}
        return subprocess.run(
            [sys.executable, "-m", "ops.cli.main", "models", *words],
            env=kept | home | {"SEMANTIC_DATA_DIR": str(service.data_dir)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as http:

        def listed() -> dict[str, Any]:
            page: dict[str, Any] = http.get("/admin/models").json()
            return page

        def names_of(page: dict[str, Any]) -> list[str]:
            return [model["name"] for model in page["data"]]

        def names() -> list[str]:
            return names_of(listed())

        assert names() == ["semantic-demo"]
        models("add", "coder", "org/Coder", "--alias", "sonnet")
        wait_until(lambda: names() == ["semantic-demo", "coder"])
        cache_model(cache, "org/Coder")
        cache_model(cache, "org/Other")
        shown = wait_until(
            listed, lambda page: names_of(page) == ["semantic-demo", "coder", "org/Other"]
        )
        assert json.loads(models("ls", "--json")) == shown
        states = [model["state"] for model in shown["data"]]
        assert states == ["loaded", "available", "available"]
        assert shown["data"][0]["digest"].startswith("sha256:")
        with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="local") as client:
            ids = [model.id for model in client.models.list()]
            assert ids == ["semantic-demo", "coder", "sonnet", "org/Coder", "org/Other"]
            assert client.models.retrieve("org/Other").id == "org/Other"
        models("rm", "coder")
        wait_until(lambda: "coder" not in names())
    assert service.stop() == 0, service.log()
    assert '"state": "available"' in models("show", "semantic-demo", "--json")
