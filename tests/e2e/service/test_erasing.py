"""A deleted file or agent leaves no byte in the data directory of a running service."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.support.polling import scaled, wait_until
from tests.support.processes.data_directory import command, holders
from tests.support.processes.service import Service

#: Four times the documented time in which deleted bytes are gone, in seconds: on a busy machine a
#: sweep takes long, and the next one waits in proportion.
ERASED_WITHIN_S = 240.0
WAIT = {"prefer": "wait=60"}


def _is_there(directory: Path, text: str) -> bool:
    return bool(holders(directory, text))


def _wait_gone(directory: Path, text: str) -> None:
    """Wait until no file has a text; the error names those that have it."""
    wait_until(
        lambda: holders(directory, text),
        lambda found: not found,
        what=f"the end of {text!r}",
        within_s=ERASED_WITHIN_S,
        look_every_s=1.0,  # it takes seconds, and a look reads all files
    )


def _ask(service: Service, method: str, path: str, **more: Any) -> Any:
    headers = WAIT | more.pop("headers", {})
    reply = httpx.request(
        method, service.base_url + path, headers=headers, timeout=scaled(120), **more
    )
    assert reply.is_success, reply.text
    return reply.json()


def _job(
    service: Service, prompt: str, agent: str, *, client: str = "test", model: str = "claude-x"
) -> str:
    body = {"prompt": prompt, "agent_id": agent, "max_tokens": 6, "model": model}
    job = _ask(service, "POST", "/v1/jobs", json=body, headers={"user-agent": client})
    assert job["status"] == "completed", job
    return str(job["id"])


def test_deleted_bytes_are_gone_while_the_service_runs(mortal: Service) -> None:
    data = mortal.data_dir
    secrets = {name: f"the secret of the {name}, 7391" for name in ("file", "agent", "writer")}
    kept = "what the reader asked, 2648"

    names = {"file": "the-names-of-all-agents-7391.jsonl", "client": "curl of the writer, 7391"}
    names["model"] = "claude-of-the-writer-7391"

    upload = {"file": (names["file"], secrets["file"].encode() * 100)}
    file = _ask(mortal, "POST", "/v1/files", data={"purpose": "batch"}, files=upload)
    _ask(mortal, "POST", "/v1/agents", json={"id": "adviser", "max_tokens": 6})
    turn = _ask(mortal, "POST", "/v1/agents/adviser/generate", json={"prompt": secrets["agent"]})
    written = _job(
        mortal, secrets["writer"], "writer", client=names["client"], model=names["model"]
    )
    read = _job(mortal, kept, "reader")
    assert _ask(mortal, "GET", f"/v1/files/{file['id']}")["filename"] == names["file"]
    story = _ask(mortal, "GET", f"/v1/jobs/{written}/timeline")
    assert names["client"] in story["steps"][0]["text"]
    assert names["model"] in story["steps"][0]["text"]
    for secret in (*secrets.values(), *names.values(), kept):
        assert holders(data, secret), "the test looks in the wrong place"
    items = {job: f"job:{job}:items" for job in (turn["id"], written, read)}
    for key in items.values():
        wait_until(partial(_is_there, data / "broker", key))

    _ask(mortal, "DELETE", f"/v1/files/{file['id']}")
    _ask(mortal, "DELETE", "/v1/agents/adviser")
    report = command(mortal, "log", "erase", "--agent", "writer", "--yes")
    assert report["jobs"] == 1
    for secret in (*secrets.values(), *names.values()):
        _wait_gone(data, secret)
    for job in (turn["id"], written):
        _wait_gone(data / "broker", items[job])
    assert holders(data / "broker", items[read])
    assert holders(data, kept)

    verified = command(mortal, "log", "verify")
    assert verified["ok"]
    assert verified["texts_erased"] >= 4
    assert _ask(mortal, "GET", f"/v1/jobs/{read}")["status"] == "completed"
    swept = command(mortal, "log", "erase", "--dry-run", "--text-days", "0")
    assert swept["texts"] > 0
    assert swept["stored"]["texts"] > 0
    assert holders(data, kept), "a dry run erases nothing"
    assert command(mortal, "log", "erase", "--text-days", "0")["texts"] == swept["texts"]
    assert not holders(data, kept)
    assert command(mortal, "log", "verify")["ok"]
