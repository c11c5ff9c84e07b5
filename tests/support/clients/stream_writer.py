"""A writer of Durable Streams in front of a service, which has only the half that reads.

PUT makes a job and POST publishes items of it as its worker would; the real one is suspended. GET
and HEAD go to the service. Of its replies only the bodies are changed, since a job streams parts of
an answer: a part becomes the bytes or the JSON value that was written as its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx

from domain.chat.items import Finished, Started, StreamItem, Text
from domain.chat.stored_answer import StoredAnswer
from domain.events.job import JobCompleted
from domain.job.commit import commit
from domain.values import JobId, StopReason, Timings, Usage, digest_of
from ops.broker.client import Keys, connect
from ops.broker.items import RedisItemSink
from ops.clock import RandomIds, SystemClock
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.builders.job_events import start_command
from tests.support.polling import scaled
from tests.support.processes.service import Service

_USAGE = Usage(prompt_tokens=1, completion_tokens=1)
_CLOSED = "Stream-Closed"
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass
class _Written:
    """A stream: its job, its media type, and the number of its next item."""

    job_id: JobId
    media: str
    n: int = 1
    is_closed: bool = False

    @property
    def is_json(self) -> bool:
        return self.media.partition(";")[0].strip().lower() == "application/json"

    def texts(self, body: bytes) -> list[str]:
        """Return the texts of the items that a body becomes."""
        if not body:
            return []
        if not self.is_json:
            return [body.decode("latin-1")]  # as many characters as bytes
        value = json.loads(body)
        return [json.dumps(one) for one in (value if isinstance(value, list) else [value])]

    def body(self, messages: Sequence[Mapping[str, Any]]) -> bytes:
        """Return what was written, of messages that the service returned."""
        texts = [one["text"] for one in messages if one["kind"] == "text"]
        if self.is_json:
            return f"[{','.join(texts)}]".encode()
        return "".join(texts).encode("latin-1")


class StreamWriter:
    """Makes jobs of streams and writes their items."""

    def __init__(self, service: Service, http: httpx.Client, log: SqlEventLog) -> None:
        self.http = http
        self._log = log
        broker = connect((service.data_dir / "broker.url").read_text().strip())
        self._sink = RedisItemSink(broker, Keys("semantic"))
        self._streams: dict[str, _Written] = {}
        self._lock = Lock()

    def find(self, path: str) -> _Written | None:
        return self._streams.get(path)

    def create(self, path: str, media: str) -> tuple[_Written, bool]:
        """Return the stream of a path, and whether it is new."""
        with self._lock:
            if (known := self._streams.get(path)) is not None:
                return known, False
            reply = self.http.post("/v1/jobs", json={"prompt": path})
            job_id = JobId(reply.raise_for_status().json()["id"])
            commit(job_id, start_command("w1"), log=self._log, ids=RandomIds())
            self._publish(job_id, 0, Started(prompt_tokens=1, cached_tokens=0))
            made = self._streams[path] = _Written(job_id, media)
            return made, True

    def append(self, stream: _Written, body: bytes, *, closes: bool) -> None:
        with self._lock:
            for text in stream.texts(body):
                self._publish(stream.job_id, stream.n, Text(text=text, ids=(1,)))
                stream.n += 1
            if closes and not stream.is_closed:
                self._publish(
                    stream.job_id,
                    stream.n,
                    Finished(stop_reason=StopReason.END_TURN, usage=_USAGE),
                )
                self._end(stream.job_id)
                stream.is_closed = True

    def _publish(self, job_id: JobId, n: int, body: Started | Text | Finished) -> None:
        self._sink.publish([(job_id, StreamItem(n=n, attempt=1, body=body))])

    def _end(self, job_id: JobId) -> None:
        payload = StoredAnswer(text="", token_ids=(1,)).to_bytes()
        end = JobCompleted(
            attempt=1,
            stop_reason=StopReason.END_TURN,
            stop_sequence=None,
            usage=_USAGE,
            output=digest_of(payload),
            token_hash="0",
            timings=Timings(),
        )
        payloads = {end.output: payload}
        commit(job_id, end, log=self._log, ids=RandomIds(), payloads=payloads)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    writer: StreamWriter

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        media = self.headers.get("content-type", "application/octet-stream")
        stream, is_new = self.writer.create(self.path, media)
        self.writer.append(stream, body, closes=self.headers.get(_CLOSED) == "true")
        self._wrote(stream, 201 if is_new else 200, location=f"http://{self.headers['host']}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        stream = self.writer.find(self.path)
        if stream is None or (stream.is_json and not _is_json(body)):
            self._answer(404 if stream is None else 400, {}, b"")
            return
        self.writer.append(stream, body, closes=self.headers.get(_CLOSED) == "true")
        self._wrote(stream, 204)

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        self._read()

    def do_OPTIONS(self) -> None:
        self._read()

    def _wrote(self, stream: _Written, status: int, *, location: str = "") -> None:
        kept = self.writer.http.head(f"/v1/jobs/{stream.job_id}/stream").headers
        headers = {
            name: kept[name]
            for name in ("stream-next-offset", "stream-closed", "x-content-type-options")
            if name in kept
        }
        more = {"location": location + self.path} if location else {}
        self._answer(status, headers | more | {"content-type": stream.media}, b"")

    def _read(self) -> None:
        path, _, query = self.path.partition("?")
        stream = self.writer.find(path)
        name = JobId("job-" + "0" * 32) if stream is None else stream.job_id
        asked = parse_qsl(query, keep_blank_values=True)
        if not asked and self.command == "GET":
            asked = [("offset", "-1")]  # without it, the service answers with its native stream
        url = f"/v1/jobs/{name}/stream?{urlencode(asked)}" if asked else f"/v1/jobs/{name}/stream"
        passed = {
            key: value
            for key, value in self.headers.items()
            if key.lower() not in {"host", "connection", "accept-encoding"}
        }
        with self.writer.http.stream(self.command, url, headers=passed) as reply:
            headers = {
                key: value
                for key, value in reply.headers.items()
                if key not in {"content-length", "transfer-encoding", "connection", "date"}
            }
            if headers.get("content-type", "").startswith("text/event-stream"):
                self._pass_events(reply, headers, stream)
                return
            body = reply.read()
            if stream is not None and reply.status_code == 200:
                headers["content-type"] = stream.media
                if body:
                    body = stream.body(json.loads(body))
            self._answer(reply.status_code, headers, body)

    def _pass_events(
        self, reply: httpx.Response, headers: Mapping[str, str], stream: _Written | None
    ) -> None:
        assert stream is not None
        self.close_connection = True
        self._head(reply.status_code, {**headers, "connection": "close"})
        event = ""
        for line in _lines_of(reply):
            if line.startswith("event:"):
                event = line.removeprefix("event:").strip()
            elif line.startswith("data:"):
                self._pass(event, line.removeprefix("data:"), stream)

    def _pass(self, event: str, data: str, stream: _Written) -> None:
        lines = [data.encode()]
        if event == "data":
            messages = json.loads(data)
            if not any(one["kind"] == "text" for one in messages):
                return
            lines = _LINE_END.split(stream.body(messages))
        text = b"".join(b"data:%b\n" % line for line in lines)
        self.wfile.write(b"event: %b\n%b\n" % (event.encode(), text))
        self.wfile.flush()

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        length = {} if status in {204, 304} else {"content-length": str(len(body))}
        self._head(status, {**headers, **length})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, httpx.HTTPError):  # the client left, as many of its tests do
            self.close_connection = True

    def log_message(self, *_arguments: Any) -> None:
        pass


def _lines_of(reply: httpx.Response) -> Iterator[str]:
    """Yield the lines of a stream of events; httpx would also end them at U+2028 and its like."""
    rest = b""
    for piece in reply.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body or b"null")
    except ValueError:
        return False
    return True


@contextmanager
def stream_writer(service: Service) -> Iterator[str]:
    """Yield the base URL of a writer in front of a service that tolerates a silent worker."""
    clock = SystemClock()
    url = f"sqlite:///{service.data_dir / 'events.sqlite3'}"
    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=service.base_url, timeout=scaled(60), limits=limits) as http,
        open_log(url, clock=clock) as log,
    ):
        handler = type("Handler", (_Handler,), {"writer": StreamWriter(service, http, log)})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        worker = service.part("worker")
        worker.suspend()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            worker.resume()
            server.shutdown()
            server.server_close()
