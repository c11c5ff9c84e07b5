"""A client that pipelines cancels and leaves in the middle: replies stay apart, and jobs end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

JOBS = 8
WITHIN_S = 60
OPEN = ("queued", "running")


def _request(method: str, path: str, body: object = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def _replies(connection: socket.socket, count: int) -> Iterator[dict[str, Any]]:
    with connection.makefile("rb") as lines:
        for _ in range(count):
            assert lines.readline().startswith(b"HTTP/1.1 20")
            head = dict(one.strip().split(b": ", 1) for one in iter(lines.readline, b"\r\n"))
            yield json.loads(lines.read(int(head[b"content-length"])))


def _open_jobs(service: Service) -> list[str]:
    with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as http:
        listed = http.get("/v1/jobs", params={"limit": 100}).json()["data"]
    return [one["id"] for one in listed if one["status"] in OPEN]


def test_pipelined_cancels_get_their_own_replies(endless: Service) -> None:
    job = {"prompt": "Count.", "max_tokens": 1000}
    with httpx.Client(base_url=endless.base_url, timeout=scaled(60)) as http:
        ids = [http.post("/v1/jobs", json=job).json()["id"] for _ in range(JOBS)]
    with socket.create_connection(
        ("127.0.0.1", endless.port), timeout=scaled(WITHIN_S)
    ) as connection:
        for name in ids:
            connection.sendall(
                _request("POST", f"/v1/jobs/{name}/cancel")
                + _request("POST", "/v1/jobs", job | {"agent_id": f"after-{name}"})
                + _request("GET", f"/v1/jobs/{name}")
            )
        found = list(_replies(connection, 3 * JOBS))
    assert [one["id"] for one in found[::3]] == ids
    assert [one["id"] for one in found[2::3]] == ids
    assert [one["agent_id"] for one in found[1::3]] == [f"after-{name}" for name in ids]
    left = [one["id"] for one in found[1::3]]
    wait_until(lambda: set(_open_jobs(endless)) == set(left), within_s=WITHIN_S)
    with httpx.Client(base_url=endless.base_url, timeout=scaled(60)) as http:
        assert {http.post(f"/v1/jobs/{name}/cancel").status_code for name in left} <= {200, 202}
    wait_until(lambda: not _open_jobs(endless), within_s=WITHIN_S)


def test_pipelined_streams_of_a_client_that_leaves_all_end(endless: Service) -> None:
    body = {"model": "claude-x", "max_tokens": 1000, "stream": True}
    turn = {"role": "user", "content": "Count."}
    stream = _request("POST", "/v1/messages", body | {"messages": [turn]})
    for _ in range(JOBS):
        with socket.create_connection(
            ("127.0.0.1", endless.port), timeout=scaled(WITHIN_S)
        ) as connection:
            connection.sendall(3 * stream)
            assert connection.recv(12) == b"HTTP/1.1 200"
    wait_until(lambda: not _open_jobs(endless), within_s=WITHIN_S)
