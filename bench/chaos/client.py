"""One client: sends requests, retries them on faults, and records everything that it receives."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from bench.chaos.history import Item, Kind, Operation, Reading, RequestSpec
from bench.chaos.wire import OpenStreams, events_of, native_item

#: Registered in a run with one model; in others it follows the loaded model.
MODEL: Final = "claude-chaos"
#: Seconds after which an operation gives up, which breaks a promise.
PATIENCE_S: Final = 600.0
#: Longer than the pause between two pings on a silent stream.
TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
#: Statuses that the service may return while a part of it is unavailable.
_SHORTAGE: Final = {429, 503, 504}
#: Error of a stream whose items after the cursor were lost with the broker.
_ITEMS_LOST: Final = "items_lost"
_TERMINAL: Final = {"completed", "cancelled", "failed", "expired"}
_GONE: Final = (httpx.TransportError, httpx.StreamError)


class GaveUp(Exception):
    """The operation has no end in time, or a reply that no fault explains."""


@dataclass(slots=True, kw_only=True)
class _RunningOperation:
    """An operation in progress."""

    client: str
    kind: Kind
    request: RequestSpec
    keyed: bool
    deadline_s: float
    sendings: int = 0
    accepted: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    cancel_confirmed: bool = False
    answered: bool = False
    bad_reply: str | None = None

    def headers(self) -> dict[str, str]:
        headers = {"user-agent": self.client}
        if self.keyed:
            headers["idempotency-key"] = self.client
        elif self.sendings > 1:
            headers["x-stainless-retry-count"] = str(self.sendings - 1)
        return headers

    def record_status(self, status: str) -> None:
        if not self.statuses or self.statuses[-1] != status:
            self.statuses.append(status)

    def done(self) -> Operation:
        return Operation(
            client=self.client,
            kind=self.kind,
            request=self.request,
            keyed=self.keyed,
            sendings=self.sendings,
            accepted=tuple(self.accepted),
            readings=tuple(self.readings),
            statuses=tuple(self.statuses),
            cancel_confirmed=self.cancel_confirmed,
            answered=self.answered,
            bad_reply=self.bad_reply,
        )


class Client:
    """Talks to one service; belongs to one thread.

    Args:
        base_url: Address of the service.
        streams: Receives every open stream, so that faults can cut it.
        rng: Determines pauses, and when a reader disconnects by itself.
    """

    def __init__(self, base_url: str, streams: OpenStreams, rng: random.Random) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=TIMEOUT, trust_env=False)
        self._streams = streams
        self._rng = rng

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def operate(self, name: str, kind: Kind, request: RequestSpec, *, keyed: bool) -> Operation:
        """Run one operation to its end, through all faults."""
        operation = _RunningOperation(
            client=name,
            kind=kind,
            request=request,
            keyed=keyed,
            deadline_s=time.monotonic() + PATIENCE_S,
        )
        try:
            if kind is Kind.MESSAGES:
                self._read_message(operation)
            else:
                self._run_job(operation)
            operation.answered = True
        except GaveUp as error:
            operation.bad_reply = str(error) or None
        return operation.done()

    # --- jobs ---------------------------------------------------------------------------------

    def _run_job(self, operation: _RunningOperation) -> None:
        body = job_body(operation.request)
        wait = {"prefer": "wait=5"} if operation.kind is Kind.PROBE else {}
        reply = self._until(operation, "POST", "/v1/jobs", body, wait)
        job = str(reply["id"])
        operation.accepted.append(job)
        operation.record_status(reply["status"])
        if operation.kind is Kind.STREAMED:
            self._follow(operation, job)
        elif operation.kind is Kind.CANCELLED:
            self._read_some(operation, job, after=-1, most=self._rng.randint(1, 8))
            operation.record_status(
                self._until(operation, "POST", f"/v1/jobs/{job}/cancel")["status"]
            )
            operation.cancel_confirmed = True
        self._poll(operation, job)

    def _poll(self, operation: _RunningOperation, job: str) -> None:
        while True:
            operation.record_status(self._until(operation, "GET", f"/v1/jobs/{job}")["status"])
            if operation.statuses[-1] in _TERMINAL:
                return
            self._pause(operation)

    def _follow(self, operation: _RunningOperation, job: str) -> None:
        """Read a job's stream to its end, over as many connections as it takes."""
        after = -1
        while True:
            leaves = self._rng.random() < 0.3
            reading = self._read_some(
                operation, job, after=after, most=self._rng.randint(1, 12) if leaves else None
            )
            if reading is None:
                return
            after = max([after, *(item.n for item in reading.items if item.n is not None)])
            if reading.items and reading.items[-1].text == _ITEMS_LOST:
                return  # the rest is only in the job's answer, which is read next
            if reading.items and _ends(reading.items[-1]):
                operation.record_status(_status_of(reading.items[-1]))
                return
            self._pause(operation)

    def _read_some(
        self, operation: _RunningOperation, job: str, *, after: int, most: int | None
    ) -> Reading | None:
        """Read one connection until it ends or has ``most`` items; ``None`` after the end."""
        items: list[Item] = []
        headers = {"user-agent": operation.client}
        if after >= 0:
            headers["last-event-id"] = str(after)
        try:
            with self._http.stream("GET", f"/v1/jobs/{job}/stream", headers=headers) as response:
                if response.status_code == httpx.codes.NO_CONTENT:
                    return None
                self._is_answer(response)
                with self._streams.holding(response):
                    for _, data in events_of(response.iter_lines()):
                        items.append(native_item(data))
                        if most is not None and len(items) >= most:
                            break
        except _GONE:
            pass
        whole = bool(items) and items[-1].kind == "finished" and items[-1].text != "cancelled"
        reading = Reading(job=job, after=after, items=tuple(items), is_whole=whole)
        if items:
            operation.readings.append(reading)
        return reading

    # --- messages -----------------------------------------------------------------------------

    def _read_message(self, operation: _RunningOperation) -> None:
        """Send the request until an answer is complete."""
        body = _message_body(operation.request)
        while True:
            operation.sendings += 1
            try:
                with self._http.stream(
                    "POST", "/v1/messages", json=body, headers=operation.headers()
                ) as response:
                    if self._is_over(response, operation):
                        return
            except _GONE:
                pass
            self._pause(operation)

    def _is_over(self, response: httpx.Response, operation: _RunningOperation) -> bool:
        """Read one answer; return whether a retry can bring nothing more."""
        if response.status_code == httpx.codes.CONFLICT:
            # The job was cancelled because its client seemed to be gone; a retry cannot join it.
            response.read()
            return "cancelled" in response.text
        if not self._is_answer(response):
            return False
        job = response.headers["x-semantic-job"]
        operation.accepted.append(job)
        items: list[Item] = []
        over = whole = False
        try:
            with self._streams.holding(response):
                for name, data in events_of(response.iter_lines()):
                    if name == "content_block_delta":
                        text = data["delta"].get("text", "")
                        items.append(Item(n=None, attempt=0, kind="text", text=text))
                    over = over or (name == "error" and "cancelled" in str(data))
                    whole = whole or name == "message_stop"
        finally:
            operation.readings.append(Reading(job=job, items=tuple(items), is_whole=whole))
        return over or whole

    # --- common -------------------------------------------------------------------------------

    def _until(
        self,
        operation: _RunningOperation,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        more: dict[str, str] | None = None,
    ) -> Any:
        """Send a request until it succeeds, and return the reply."""
        while True:
            try:
                if body is not None:
                    operation.sendings += 1
                headers = (
                    operation.headers() if body is not None else {"user-agent": operation.client}
                )
                reply = self._http.request(method, path, json=body, headers=headers | (more or {}))
                if self._is_answer(reply):
                    return reply.json()
            except _GONE:
                pass
            self._pause(operation)

    @staticmethod
    def _is_answer(response: httpx.Response) -> bool:
        """Return whether the reply is a success; ``False`` for a temporary shortage.

        Raises:
            GaveUp: The reply is an error that no fault explains.
        """
        if response.is_success:
            return True
        if response.status_code in _SHORTAGE:
            return False
        response.read()
        what = f"{response.request.method} {response.request.url.path}"
        raise GaveUp(f"{what} was answered {response.status_code}: {response.text[:300]}")

    def _pause(self, operation: _RunningOperation) -> None:
        if time.monotonic() >= operation.deadline_s:
            raise GaveUp
        time.sleep(self._rng.uniform(0.02, 0.25))


def _ends(item: Item) -> bool:
    """A failure without an item number ends this connection, not the job."""
    return item.kind == "finished" or (item.kind == "failed" and item.n is not None)


def _status_of(item: Item) -> str:
    if item.kind == "failed":
        return "expired" if item.text == "expired" else "failed"
    return "cancelled" if item.text == "cancelled" else "completed"


def _message_body(request: RequestSpec) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stream": True,
        "messages": [{"role": "user", "content": request.prompt}],
    }


def job_body(request: RequestSpec) -> dict[str, Any]:
    """Return the body of ``POST /v1/jobs`` for a request."""
    return {key: value for key, value in _message_body(request).items() if key != "stream"}
