"""One client: sends requests, retries them on faults, and records everything that it receives."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import httpx

from bench.chaos.history import Item, Kind, LineResult, Operation, Reading, RequestSpec


class OpenStreams:
    """The streams that are open at the moment, so that another thread can cut them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    @contextmanager
    def holding(self, response: httpx.Response) -> Iterator[None]:
        """Allow the connection of ``response`` to be cut within the block."""
        line: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        with self._lock:
            self._open.add(line)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(line)

    def cut(self, chance: random.Random) -> int:
        """Break about half of the open connections, at least one; return how many."""
        with self._lock:
            chosen = [line for line in self._open if chance.random() < 0.5] or [*self._open][:1]
            for line in chosen:
                with suppress(OSError):  # the connection may have just ended by itself
                    line.shutdown(socket.SHUT_RDWR)
        return len(chosen)


def events_of(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and data of each complete event; comments are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields:
            yield fields.get("event", ""), json.loads(fields["data"])
            fields = {}


def native_item(_: str, data: Any) -> Item:
    """Return the item of an event of ``/v1/jobs/{id}/stream``; an end has its reason as text."""
    text = data.get("text") or data.get("stop_reason") or data.get("error") or ""
    return Item(n=data["n"], attempt=data["a"], kind=data["kind"], text=str(text))


#: Registered in a run with one model; in others it follows the loaded model.
MODEL: Final = "claude-chaos"
#: The tool of requests that call one.
TOOL: Final = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
#: Seconds after which an operation gives up, which breaks a promise.
PATIENCE_S: Final = 600.0
#: Longer than the pause between two pings on a silent stream.
TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
#: Statuses that the service may return while a part of it is unavailable.
SHORTAGE: Final = {429, 503, 504}
#: Error of a stream whose items after the cursor were lost with the broker.
ITEMS_LOST: Final = "items_lost"
_TERMINAL: Final = {"completed", "cancelled", "failed", "expired"}
#: The ends of a response, as the kind of a terminal item.
_ENDS: Final = {
    "response.completed": "finished",
    "response.incomplete": "finished",
    "response.failed": "failed",
}
#: Connects to a stream after an item, and returns the item of an event by its name and data.
Opened = Callable[[int], AbstractContextManager[httpx.Response]]
ItemOf = Callable[[str, Any], Item]
#: Errors of a connection that broke.
GONE: Final = (httpx.TransportError, httpx.StreamError)


class GaveUp(Exception):
    """The operation has no end in time, or a reply that no fault explains."""


class Client:
    """Talks to one service; belongs to one thread.

    Args:
        base_url: Address of the service.
        streams: Receives every open stream, so that faults can cut it.
        rng: Determines pauses, and when a reader disconnects by itself.
        hook: URL that receives the ends of jobs and batches; ``None`` for no webhooks.
    """

    def __init__(
        self, base_url: str, streams: OpenStreams, rng: random.Random, hook: str | None = None
    ) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=TIMEOUT, trust_env=False)
        self._streams = streams
        self._rng = rng
        self._hook = hook
        self._deadline_s = 0.0

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def operate(
        self,
        name: str,
        kind: Kind,
        request: RequestSpec,
        *,
        keyed: bool,
        lines: tuple[RequestSpec, ...] = (),
    ) -> Operation:
        """Run one operation to its end, through all faults."""
        operation = Operation(
            client=name, kind=kind, request=request, keyed=keyed, lines=lines, answered=False
        )
        self._deadline_s = time.monotonic() + PATIENCE_S
        try:
            self._run(operation)
            operation.answered = True
        except GaveUp as error:
            operation.bad_reply = str(error) or None
        return operation

    def _run(self, operation: Operation) -> None:
        if operation.kind in {Kind.MESSAGES, Kind.TOOLS}:
            self._read_message(operation)
        elif operation.kind is Kind.RESPONSES:
            self._read_response(operation)
        elif operation.kind is Kind.BATCH:
            self._run_batch(operation)
        else:
            self._run_job(operation)

    # --- jobs ---------------------------------------------------------------------------------

    def _run_job(self, operation: Operation) -> None:
        body = job_body(operation.request) | self._extra(operation)
        wait = {"prefer": "wait=5"} if operation.kind is Kind.PROBE else {}
        reply = self._until(operation, "POST", "/v1/jobs", body, wait).json()
        job = str(reply["id"])
        operation.accepted += (job,)
        _record_status(operation, reply["status"])
        opened = partial(self._open_job, operation, job)
        if operation.kind is Kind.STREAMED:
            last = self._follow(operation, opened, native_item)
            if last is not None and last.text != ITEMS_LOST:
                _record_status(operation, _status_of(last))
        elif operation.kind is Kind.CANCELLED:
            self._read_some(operation, opened, native_item, after=-1, most=self._rng.randint(1, 8))
            _record_status(
                operation, self._until(operation, "POST", f"/v1/jobs/{job}/cancel").json()["status"]
            )
            operation.cancel_confirmed = True
        self._poll(operation, job)

    def _extra(self, operation: Operation) -> dict[str, Any]:
        """Return further fields of the body of a job or batch."""
        if self._hook is None or operation.kind is Kind.PROBE:
            return {}
        return {"webhook": {"url": self._hook}}

    def _poll(self, operation: Operation, job: str) -> None:
        while True:
            _record_status(
                operation, self._until(operation, "GET", f"/v1/jobs/{job}").json()["status"]
            )
            if operation.statuses[-1] in _TERMINAL:
                return
            self._pause()

    def _open_job(self, operation: Operation, job: str, after: int) -> Any:
        headers = {"user-agent": operation.client}
        if after >= 0:
            headers["last-event-id"] = str(after)
        return self._http.stream("GET", f"/v1/jobs/{job}/stream", headers=headers)

    # --- streams ------------------------------------------------------------------------------

    def _follow(self, operation: Operation, opened: Opened, item_of: ItemOf) -> Item | None:
        """Read a stream to its end, over as many connections as it takes.

        Args:
            operation: Receives what each connection delivered.
            opened: Connects after an item; -1 for the first one.
            item_of: Returns the item of an event.

        Returns:
            The last item; ``None`` if a connection found the stream ended before.
        """
        after = -1
        while True:
            most = self._rng.randint(1, 12) if self._rng.random() < 0.3 else None
            reading = self._read_some(operation, opened, item_of, after=after, most=most)
            if reading is None:
                return None
            after = max([after, *(item.n for item in reading.items if item.n is not None)])
            # After lost items the rest is only in the job's answer, which is read next.
            if reading.items and (_ends(reading.items[-1]) or reading.items[-1].text == ITEMS_LOST):
                return reading.items[-1]
            self._pause()

    def _read_some(
        self,
        operation: Operation,
        opened: Opened,
        item_of: ItemOf,
        *,
        after: int,
        most: int | None,
    ) -> Reading | None:
        """Read one connection until it ends or has ``most`` items; ``None`` after the end."""
        items: list[Item] = []
        try:
            with opened(after) as response:
                if response.status_code == httpx.codes.NO_CONTENT:
                    return None
                if not self._is_answer(response):
                    return Reading(job="", after=after)
                if response.request.method == "POST":
                    operation.accepted += (response.headers["x-semantic-job"],)
                with self._streams.holding(response):
                    for name, data in events_of(response.iter_lines()):
                        items.append(item_of(name, data))
                        if most is not None and len(items) >= most:
                            break
        except GONE:
            pass
        job = operation.accepted[-1] if operation.accepted else ""
        whole = bool(items) and items[-1].kind == "finished" and items[-1].text != "cancelled"
        reading = Reading(job=job, after=after, items=tuple(items), is_whole=whole)
        if items:
            operation.readings += (reading,)
        return reading

    # --- messages -----------------------------------------------------------------------------

    def _read_message(self, operation: Operation) -> None:
        """Send the request until an answer is complete."""
        body = message_body(operation.request)
        while True:
            operation.sendings += 1
            try:
                with self._http.stream(
                    "POST", "/v1/messages", json=body, headers=_headers(operation)
                ) as response:
                    if self._is_over(response, operation):
                        return
            except GONE:
                pass
            self._pause()

    def _is_over(self, response: httpx.Response, operation: Operation) -> bool:
        """Read one answer; return whether a retry can bring nothing more."""
        if response.status_code == httpx.codes.CONFLICT:
            # The job was cancelled because its client seemed to be gone; a retry cannot join it.
            response.read()
            return "cancelled" in response.text
        if not self._is_answer(response):
            return False
        job = response.headers["x-semantic-job"]
        operation.accepted += (job,)
        items: list[Item] = []
        over = whole = False
        try:
            with self._streams.holding(response):
                for name, data in events_of(response.iter_lines()):
                    if name == "content_block_delta":
                        delta = data["delta"]
                        text = delta.get("text") or delta.get("partial_json") or ""
                        items.append(Item(n=None, attempt=0, kind="text", text=text))
                    over = over or (name == "error" and "cancelled" in str(data))
                    whole = whole or name == "message_stop"
        finally:
            operation.readings += (Reading(job=job, items=tuple(items), is_whole=whole),)
        return over or whole

    # --- responses ----------------------------------------------------------------------------

    def _read_response(self, operation: Operation) -> None:
        """Start a background response, read its stream, and poll its job."""
        names: list[str] = []

        def item_of(kind: str, data: Any) -> Item:
            if not names and "response" in data:
                names.append(str(data["response"]["id"]))
            return _response_item(kind, data)

        def opened(after: int) -> Any:
            if names:
                query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
                headers = {"user-agent": operation.client}
                path = f"/v1/responses/{names[0]}"
                return self._http.stream("GET", path, params=query, headers=headers)
            operation.sendings += 1
            body = _response_body(operation.request)
            return self._http.stream(
                "POST", "/v1/responses", json=body, headers=_headers(operation)
            )

        self._follow(operation, opened, item_of)
        self._poll(operation, operation.accepted[0])

    # --- batches ------------------------------------------------------------------------------

    def _run_batch(self, operation: Operation) -> None:
        """Create a batch, wait for its end and read its results."""
        requests = [
            {"custom_id": f"line-{number}", "params": job_body(line)}
            for number, line in enumerate(operation.lines)
        ]
        body = {"requests": requests} | self._extra(operation)
        created = self._until(operation, "POST", "/v1/messages/batches", body).json()
        path = f"/v1/messages/batches/{created['id']}"
        operation.batch = "batch-" + created["id"].removeprefix("msgbatch_")
        while self._until(operation, "GET", path).json()["processing_status"] != "ended":
            self._pause()
        results = self._until(operation, "GET", f"{path}/results").text
        for line in results.splitlines():
            fields = json.loads(line)
            result = fields["result"]
            blocks = result.get("message", {}).get("content", ())
            text = "".join(block.get("text", "") for block in blocks)
            number = int(fields["custom_id"].removeprefix("line-"))
            operation.results += (LineResult(line=number, status=result["type"], text=text),)

    # --- common -------------------------------------------------------------------------------

    def _until(
        self,
        operation: Operation,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        more: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request until it succeeds, and return the reply."""
        while True:
            try:
                if body is not None:
                    operation.sendings += 1
                headers = (
                    _headers(operation) if body is not None else {"user-agent": operation.client}
                )
                reply = self._http.request(method, path, json=body, headers=headers | (more or {}))
                if self._is_answer(reply):
                    return reply
            except GONE:
                pass
            self._pause()

    @staticmethod
    def _is_answer(response: httpx.Response) -> bool:
        """Return whether the reply is a success; ``False`` for a temporary shortage.

        Raises:
            GaveUp: The reply is an error that no fault explains.
        """
        if response.is_success:
            return True
        if response.status_code in SHORTAGE:
            return False
        response.read()
        what = f"{response.request.method} {response.request.url.path}"
        raise GaveUp(f"{what} was answered {response.status_code}: {response.text[:300]}")

    def _pause(self) -> None:
        if time.monotonic() >= self._deadline_s:
            raise GaveUp
        time.sleep(self._rng.uniform(0.02, 0.25))


def _headers(operation: Operation) -> dict[str, str]:
    """Return the headers of the next sending."""
    headers = {"user-agent": operation.client}
    if operation.keyed:
        headers["idempotency-key"] = operation.client
    elif operation.sendings > 1:
        headers["x-stainless-retry-count"] = str(operation.sendings - 1)
    return headers


def _record_status(operation: Operation, status: str) -> None:
    """Add a state of the job that differs from the last one."""
    if operation.statuses[-1:] != (status,):
        operation.statuses += (status,)


def _ends(item: Item) -> bool:
    """A failure without an item number ends this connection, not the job."""
    return item.kind == "finished" or (item.kind == "failed" and item.n is not None)


def _status_of(item: Item) -> str:
    if item.kind == "failed":
        return "expired" if item.text == "expired" else "failed"
    return "cancelled" if item.text == "cancelled" else "completed"


def _response_item(kind: str, data: Any) -> Item:
    """Return an event of a response as an item; its sequence number is the item's number."""
    if kind == "error":
        return Item(n=None, attempt=0, kind="error", text=str(data.get("code") or data))
    text = data["delta"] if kind == "response.output_text.delta" else ""
    named = "text" if kind == "response.output_text.delta" else _ENDS.get(kind, kind)
    return Item(n=data["sequence_number"], attempt=0, kind=named, text=text)


def _response_body(request: RequestSpec) -> dict[str, Any]:
    return {
        "model": MODEL,
        "input": request.prompt,
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "background": True,
        "stream": True,
    }


def message_body(request: RequestSpec) -> dict[str, Any]:
    """Return the body of a streamed Anthropic message."""
    body = {
        "model": MODEL,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stream": True,
        "messages": [{"role": "user", "content": request.prompt}],
    }
    if request.calls_tool:
        body |= {"tools": [TOOL], "tool_choice": {"type": "any"}}
    return body


def job_body(request: RequestSpec) -> dict[str, Any]:
    """Return the body of ``POST /v1/jobs``, or of a batch's line, for a request."""
    return {key: value for key, value in message_body(request).items() if key != "stream"}
