"""No log of any process holds a text of a prompt or an answer, whatever happens to the request."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.polling import scaled
from tests.support.processes.scripted_service import line, scripted_service
from tests.support.processes.service import Service

#: Stands in every text of every request and answer here.
MARK = "xyzzyplugh"
ANSWER = f"The {MARK} answer of the script goes on for a while. " * 6
#: A text so long that no log line may repeat even its beginning.
LONG = f"{MARK} " * 40_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = scripted_service(
        tmp_path_factory.mktemp("texts"),
        [line("", ANSWER), line("slowly", ANSWER, pace_s=0.03)],
        SEMANTIC_LOG__LEVEL="DEBUG",
        SEMANTIC_LOG__FORMAT="json",
        SEMANTIC_JOBS__WORKER_STANDBY="true",
        SEMANTIC_WEBHOOKS__ALLOW_HOSTS='["127.0.0.1"]',
        # Nobody listens on the discard port.
        SEMANTIC_TRACING__ENDPOINT="http://127.0.0.1:9",
    ).start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as client:
        yield client


def logs_of(service: Service) -> dict[str, str]:
    """Return what every process has written, by file."""
    files = [service.log_file, *service.data_dir.rglob("*.log*")]
    return {str(path): path.read_text("utf-8", "replace") for path in files if path.is_file()}


def said(text: str = MARK, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{text} tell me"}]
    return {"model": "claude-any", "max_tokens": 64, "messages": messages} | more


TOOL: dict[str, Any] = {
    "name": "look",
    "description": f"{MARK} looks",
    "input_schema": {
        "type": "object",
        "properties": {MARK: {"type": "string", "pattern": f"(?<={MARK}[", "enum": [MARK]}},
        "x-unknown": MARK,
    },
}
FUNCTION = {"name": "look", "description": MARK, "parameters": TOOL["input_schema"]}


def answered(http: httpx.Client) -> None:
    reply = http.post("/v1/messages", json=said(system=MARK, stop_sequences=[MARK + "!"]))
    assert reply.status_code == 200
    assert MARK in reply.text


def streamed(http: httpx.Client) -> None:
    body = said(stream=True) | {"metadata": {"user_id": "u"}}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert "finish_reason" in reply.read().decode()


def constrained_oddly(http: httpx.Client) -> None:
    schema = TOOL["input_schema"] | {"required": [MARK], "if": {"const": MARK}}
    http.post("/v1/messages", json=said(tools=[TOOL]))
    http.post("/v1/chat/completions", json=said(tools=[{"type": "function", "function": FUNCTION}]))
    for strict in (True, False):
        wanted = {"name": "s", "strict": strict, "schema": schema}
        form = {"type": "json_schema", "json_schema": wanted}
        http.post("/v1/chat/completions", json=said(response_format=form))
    grammar = {"type": "grammar", "syntax": "lark", "definition": f"start: {MARK} ["}
    custom = {"type": "custom", "name": "c", "description": MARK, "format": grammar}
    http.post("/v1/responses", json={"model": "m", "input": MARK, "tools": [custom]})


def malformed(http: httpx.Client) -> None:
    for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/jobs"):
        for content in (
            f'{{"messages": [{{"role": "{MARK}", "content": 7}}], "max_tokens": "{MARK}"}}',
            f'{{"messages": "{MARK}',
            f'{{"prompt": ["{MARK}"], "{MARK}": {{}}}}',
            MARK,
        ):
            assert http.post(path, content=content).status_code >= 400
    http.get(f"/v1/jobs?status={MARK}&{MARK}=1")
    http.post("/v1/messages", json=said(LONG))
    # Half of a character, as JSON escapes it.
    half = json.dumps(said("\ud83d " + MARK))
    http.post("/v1/messages", content=half, headers={"traceparent": MARK})


def sent_as_rubbish(http: httpx.Client) -> None:
    address = (http.base_url.host, http.base_url.port)
    for data in (
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\n\r\n{MARK}\r\n\r\n",
        f"{MARK} {MARK}\r\n\r\n",
        f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900\r\n\r\n{MARK}",
    ):
        with socket.create_connection(address) as raw:
            raw.sendall(data.encode())
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass


def batched(http: httpx.Client) -> None:
    lines = [
        {"custom_id": "a", "params": said()},
        {"custom_id": "b", "params": {"model": "m", "max_tokens": 1, "messages": MARK}},
    ]
    reply = http.post("/v1/messages/batches", json={"requests": lines})
    assert reply.status_code == 200
    file = {"file": ("lines.jsonl", f"{MARK}\n{{{MARK}", "application/jsonl")}
    uploaded = http.post("/v1/files", files=file, data={"purpose": "batch"})
    wanted = {"input_file_id": uploaded.json().get("id"), "endpoint": "/v1/chat/completions"}
    http.post("/v1/batches", json=wanted | {"completion_window": "24h"})


def abandoned(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/messages", json=said("slowly", stream=True)) as reply:
        next(reply.iter_raw())


def with_a_dead_webhook(http: httpx.Client) -> None:
    reply = http.post("/v1/jobs", json=said(webhook={"url": "http://127.0.0.1:9/hook"}))
    http.get(f"/v1/jobs/{reply.json()['id']}/stream")


REQUESTS: list[Callable[[httpx.Client], None]] = [
    answered,
    streamed,
    constrained_oddly,
    malformed,
    sent_as_rubbish,
    batched,
    abandoned,
    with_a_dead_webhook,
]


@pytest.mark.parametrize("send", REQUESTS, ids=lambda send: send.__name__)
def test_no_log_holds_a_text(
    send: Callable[[httpx.Client], None], http: httpx.Client, service: Service
) -> None:
    send(http)
    check(service)


@pytest.mark.nightly
def test_no_log_holds_a_text_after_crashes(service: Service, http: httpx.Client) -> None:
    job = http.post("/v1/jobs", json=said(f"{MARK} slowly", max_tokens=100)).json()
    with JobReader(service.base_url, job["id"]) as reader:
        reader.wait_for(5)
        service.kill_part("worker")
        reader.whole()
    job = http.post("/v1/jobs", json=said(f"{MARK} slowly", max_tokens=100)).json()
    service.kill_part("broker")
    service.kill_part("api")
    service.wait_ready()
    http.get(f"/v1/jobs/{job['id']}/stream")
    service.stop()
    check(service)
    written = logs_of(service)[str(service.log_file)]
    lines = [json.loads(one) for one in written.splitlines() if one.startswith("{")]
    assert {"api", "worker"} <= {one["part"] for one in lines}
    expected = {"attempt_ended", "request_answered", "traces_not_exported", "webhook_failed"}
    assert expected <= {one["message"] for one in lines}


def check(service: Service) -> None:
    logs = logs_of(service)
    assert Path(service.log_file).stat().st_size > 0
    for file, text in logs.items():
        found = [one for one in text.splitlines() if MARK in one.lower()]
        assert not found, (file, [one[:600] for one in found[:3]])
