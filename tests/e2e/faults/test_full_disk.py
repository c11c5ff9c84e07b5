"""A service whose disk fills up to the last byte, and gets space again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.builders.log_files import verify
from tests.support.models.tiny_models import make_quick_demo
from tests.support.polling import scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.scripted_service import ENDLESS, ENDLESS_PACE_S, line, write_script
from tests.support.processes.service import Service
from tests.support.processes.small_disk import fill, small_disk

SIZE_MB = 64
#: An answer that is running while the disk fills, and ends within seconds.
SHORT = " ".join(map(str, range(20)))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    with small_disk(mount_point, SIZE_MB) as directory:
        if directory is None:
            pytest.skip("no small file system: it takes the right to mount, or a small /dev/shm")
        yield directory


@pytest.fixture
def service(tmp_path: Path, disk: Path) -> Iterator[Service]:
    write_script(
        tmp_path,
        [line("endless", ENDLESS, pace_s=ENDLESS_PACE_S), line("", SHORT, pace_s=0.1)],
    )
    service = Service(
        disk / "data",
        env=with_constants(
            {
                "SCRIPT_DIR": str(tmp_path),
                "SEMANTIC_MODEL__ID": str(make_quick_demo(tmp_path / "model")),
                "SEMANTIC_MODEL__NAME": "scripted",
                "SEMANTIC_DISK__FREE_MIN_MB": "8",
            },
            {"ops.data_dir.free_space.RESERVE_MB": 4},
        ),
        command=("-m", "tests.support.processes.scripted_serve"),
    )
    service.log_file = tmp_path / "serve.log"
    service.start()
    yield service
    assert service.stop() == 0, service.log()


def _status(client: httpx.Client, job: str) -> str:
    return str(client.get(f"/v1/jobs/{job}").json()["status"])


def _submit(client: httpx.Client, prompt: str) -> str:
    reply = client.post("/v1/jobs", json={"prompt": prompt, "max_tokens": 1000})
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def _upload(client: httpx.Client) -> httpx.Response:
    files = {"file": ("lines.jsonl", b"{}\n")}
    return client.post("/v1/files", data={"purpose": "batch"}, files=files)


def _requests() -> Iterator[tuple[str, dict[str, Any], int]]:
    messages = [{"role": "user", "content": "Hi."}]
    turn = {"model": "scripted", "max_tokens": 5, "messages": messages}
    yield "/v1/messages", turn, 503
    yield "/v1/messages", turn | {"stream": True}, 503
    yield "/v1/messages/batches", {"requests": [{"custom_id": "a", "params": turn}]}, 503
    yield "/v1/chat/completions", turn, 503
    yield "/v1/completions", {"model": "scripted", "prompt": "Hi.", "max_tokens": 5}, 503
    yield "/v1/responses", {"model": "scripted", "input": "Hi."}, 503
    yield "/v1/jobs", {"prompt": "Hi."}, 507
    yield "/v1/agents", {"id": "late"}, 507


@pytest.mark.nightly
def test_full_disk_refuses_new_work_takes_ends_and_recovers(service: Service, disk: Path) -> None:
    log_file = disk / "data" / "events.sqlite3"
    reserve = log_file.with_name("events.sqlite3.reserve")
    with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as client:
        file_id = _upload(client).json()["id"]
        assert client.post("/v1/agents", json={"id": "early"}).status_code == 201
        cancelled, completed = _submit(client, "endless"), _submit(client, "short")
        wait_until(lambda: _status(client, completed) == _status(client, cancelled) == "running")
        filler = fill(disk)

        for path, body, status in _requests():
            reply = client.post(path, json=body)
            assert (reply.status_code, path) == (status, path), reply.text
            assert reply.headers["x-should-retry"] == "true"
            assert int(reply.headers["retry-after"]) > 0
        assert _upload(client).json()["error"]["code"] == "disk_full"
        # The broker may be without space too, for a moment.
        checks = client.get("/health/ready").json()["checks"]
        assert checks["disk"].startswith("new work is refused")
        assert "semantic_log_disk_full 1.0" in client.get("/metrics").text
        assert "new work is refused" in client.get("/admin/overview").json()["problem"]

        assert client.post(f"/v1/jobs/{cancelled}/cancel").status_code < 300
        assert client.delete(f"/v1/files/{file_id}").status_code == 200
        assert client.delete("/v1/agents/early").status_code == 200
        wait_until(lambda: _status(client, cancelled) == "cancelled")
        wait_until(lambda: _status(client, completed) == "completed")
        assert not reserve.exists()

        filler.unlink()
        wait_until(reserve.exists)
        wait_until(lambda: client.get("/health/ready").status_code == 200)
        last = _submit(client, "short")
        wait_until(lambda: _status(client, last) == "completed")
    assert verify(f"sqlite:///{log_file}").position > 0
