"""A stand-in for the jobs API: one job, whose stream breaks off once in the middle."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ops.supervisor.serve_record import ServeRecord, serve_lock, write_record
from tests.support.polling import scaled

_USAGE = {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 4, "total_tokens": 7}
ITEMS: list[dict[str, Any]] = [
    {"n": 0, "a": 1, "kind": "started", "prompt_tokens": 3, "cached_tokens": 0},
    {"n": 1, "a": 1, "kind": "text", "text": "once ", "ids": [1]},
    {"n": 2, "a": 1, "kind": "text", "text": "upon ", "ids": [2]},
    {"n": 3, "a": 1, "kind": "text", "text": "a time", "ids": [3]},
    {"n": 4, "a": 1, "kind": "finished", "stop_reason": "end_turn", "usage": _USAGE},
]
_HEALTH: dict[str, Any] = {"status": "ok", "checks": {}, "reasons": []}
#: The reply of ``/admin/status``.
STATUS: dict[str, Any] = {
    "object": "status",
    "model": "stand-in",
    "cache": None,
    "drafts": None,
    "jobs": {"queued": 2, "completed": 1},
    "queue_depth": 2,
    "log": {"position": 12, "hash": "f" * 64},
}
#: What ``semantic status`` reads of the reply of ``/admin/overview``.
OVERVIEW: dict[str, Any] = {
    "object": "overview",
    "rates": {
        "tokens_per_s": 12.34,
        "prompt_tokens_per_s": 1500.0,
        "running": 1,
        "queue_depth": 2,
        "first_token_ms": 80.4,
        "cached_share": None,
    },
    "memory": {"weights": 10**9, "live": 2 * 10**9, "kept": 10**9, "ceiling": 8 * 10**9},
    "running": [
        {
            "phase": "prefill",
            "read_tokens": 12_000,
            "prompt_tokens": 27_000,
            "generated_tokens": 0,
            "tokens_per_s": None,
        },
    ],
}
#: What ``semantic launch`` reads of the reply of ``/admin/models``.
MODELS: dict[str, Any] = {
    "follow": [],
    "data": [{"name": "stand-in", "kind": "chat", "context_length": 131_072}],
}

_ACTIVITY = {
    "jobs": 3,
    "open_jobs": 1,
    "completion_tokens": 1234,
    "prompt_tokens": 40,
    "cached_tokens": 30,
    "hits": 2,
    "misses": {"diverged": 1, "gone": 2, "model_changed": 0},
    "context_tokens": 44,
    "last_seen": "2026-01-01T00:00:00.000000Z",
}
_USED: dict[str, Any] = {
    "name": "total",
    "jobs": 5,
    "completed": 4,
    "prompt_tokens": 40,
    "cached_tokens": 30,
    "cached_ratio": 0.75,
    "completion_tokens": 9,
    "misses_gone": 1,
    "mean_ms": {"queue": 1.0, "first_token": None},
    "decode_tokens_per_s": 7.5,
}


class StandInJobs:
    """Answers on a loopback port.

    Args:
        hangs: Whether the stream stays open and silent after its first text.
        sees_all: Whether the key of the requests sees the things of all keys.
    """

    def __init__(self, *, hangs: bool = False, sees_all: bool = True) -> None:
        self.sees_all = sees_all
        self.hangs = hangs
        self.submitted: list[dict[str, Any]] = []
        self.resumed_after: list[str | None] = []
        self.cancelled = threading.Event()
        self.streaming = threading.Event()
        self.let_go = threading.Event()
        self._server = _Server(self)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextmanager
    def serving(self, data_dir: Path) -> Iterator[None]:
        """Be the running service of a data directory."""
        record = ServeRecord(
            pid=os.getpid(), base_url=f"http://127.0.0.1:{self.port}", started_at="2026-01-01"
        )
        with serve_lock(data_dir):
            write_record(data_dir, record)
            yield

    def job(self, status: str = "completed") -> dict[str, Any]:
        return {
            "id": "job-1",
            "status": status,
            "model": "stand-in",
            "protocol": "native",
            "attempt": 1,
            "created_at": "2026-01-01T00:00:00+00:00",
            "finished_at": None,
            "usage": _USAGE,
            "timings": {"first_token_ms": 1.0},
            "stop_reason": "end_turn",
            "error": None,
            "output": {"text": "once upon a time", "thinking": ""},
        }


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, api: StandInJobs) -> None:
        self.api = api
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    @property
    def _api(self) -> StandInJobs:
        assert isinstance(self.server, _Server)
        return self.server.api

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/v1/jobs:cancel":
            asked = json.loads(body)
            result = "matched" if asked["dry_run"] else "cancelled"
            row = {"id": asked["filter"]["tags"][0], "status": result, "result": result}
            self._json(200, {"data": [row | {"error": None}], "has_more": True})
        elif self.path.endswith("/cancel"):
            self._api.cancelled.set()
            self._json(200, self._api.job("cancelled"))
        else:
            self._api.submitted.append(json.loads(body))
            self._json(202, self._api.job("queued"))

    def do_GET(self) -> None:
        fixed = {
            "/health/ready": _HEALTH,
            "/admin/status": STATUS,
            "/admin/overview": OVERVIEW,
            "/admin/models": MODELS,
        }
        if self.path in fixed:
            self._json(200, fixed[self.path])
        elif self.path == "/v1/jobs/job-1/stream":
            self._stream()
        elif self.path == "/v1/jobs/job-1":
            self._json(200, self._api.job())
        elif self.path == "/admin/key":
            self._json(200, {"object": "key", "sees_all": self._api.sees_all})
        elif self.path.startswith("/admin/usage?by=model"):
            self._json(200, {"data": [_USED | {"name": "m"}], "total": _USED, "has_more": False})
        elif self.path.startswith("/v1/agents?seen=true"):
            self._agents()
        elif self.path.startswith("/v1/jobs?"):
            waiting = self._api.job("running") | {"queue_position": 2, "waiting_for": "memory"}
            parked = self._api.job("queued") | {"waiting_for": "model", "bound_model": "night"}
            data = [self._api.job(), waiting, parked]
            self._json(200, {"object": "list", "data": data, "has_more": False})
        else:
            self._json(404, {"title": "Not found", "detail": "there is no such job"})

    def _agents(self) -> None:
        """Return the first of two agents, or the second one after it."""
        is_first = "before=" not in self.path
        name = "ann" if is_first else "ben"
        page = {"data": [{"id": name, "activity": _ACTIVITY}], "has_more": is_first}
        self._json(200, page | {"next_before": name if is_first else None})

    def _stream(self) -> None:
        last = self.headers.get("last-event-id")
        self._api.resumed_after.append(last)
        after = int(last.rpartition("-")[2]) if last else -1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b": open\n\n")
        until = len(ITEMS) if last else 2
        for item in ITEMS[after + 1 : until]:
            frame = f"id: 1-{item['n']}\nevent: {item['kind']}\ndata: {json.dumps(item)}\n\n"
            self.wfile.write(frame.encode())
        self.wfile.flush()
        self._api.streaming.set()
        if self._api.hangs:
            self._api.let_go.wait(scaled(60))

    def _json(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        pass
