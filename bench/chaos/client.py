"""One client: asks, asks again when something breaks, and notes everything that it is told."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from bench.chaos.history import Asked, Item, Kind, Operation, Reading
from bench.chaos.wire import Lines, events_of, native_item

MODEL: Final = "semantic-demo"
#: A client that has no end after this long gives up, which breaks a promise.
PATIENCE_S: Final = 600.0
#: Longer than the pause between two pings on a silent stream.
TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
#: The service may say these of itself while a part of it is away.
_SHORTAGE: Final = {429, 503, 504}
#: The broker lost what came after the cursor, and the service says so.
_ITEMS_LOST: Final = "items_lost"
_TERMINAL: Final = {"completed", "cancelled", "failed", "expired"}
_GONE: Final = (httpx.TransportError, httpx.StreamError)


class GaveUp(Exception):
    """The client came to no end, or to one that nobody should meet."""


@dataclass(slots=True, kw_only=True)
class _Notes:
    """An operation while it goes on."""

    client: str
    kind: Kind
    asked: Asked
    keyed: bool
    give_up_at: float
    sendings: int = 0
    accepted: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    cancel_confirmed: bool = False
    answered: bool = False
    trouble: str | None = None

    def headers(self) -> dict[str, str]:
        headers = {"user-agent": self.client}
        if self.keyed:
            headers["idempotency-key"] = self.client
        elif self.sendings > 1:
            headers["x-stainless-retry-count"] = str(self.sendings - 1)
        return headers

    def saw(self, status: str) -> None:
        if not self.statuses or self.statuses[-1] != status:
            self.statuses.append(status)

    def done(self) -> Operation:
        return Operation(
            client=self.client,
            kind=self.kind,
            asked=self.asked,
            keyed=self.keyed,
            sendings=self.sendings,
            accepted=tuple(self.accepted),
            readings=tuple(self.readings),
            statuses=tuple(self.statuses),
            cancel_confirmed=self.cancel_confirmed,
            answered=self.answered,
            trouble=self.trouble,
        )


class Client:
    """Talks to one service; belongs to one thread.

    Args:
        base_url: Where it listens.
        lines: Told of every stream that is open, so that it can be cut.
        chance: Decides pauses and where a reader leaves by itself.
    """

    def __init__(self, base_url: str, lines: Lines, chance: random.Random) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=TIMEOUT, trust_env=False)
        self._lines = lines
        self._chance = chance

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def operate(self, name: str, kind: Kind, asked: Asked, *, keyed: bool) -> Operation:
        """Bring one wish to its end, whatever happens meanwhile."""
        notes = _Notes(
            client=name,
            kind=kind,
            asked=asked,
            keyed=keyed,
            give_up_at=time.monotonic() + PATIENCE_S,
        )
        try:
            if kind is Kind.MESSAGES:
                self._read_message(notes)
            else:
                self._run_job(notes)
            notes.answered = True
        except GaveUp as error:
            notes.trouble = str(error) or None
        return notes.done()

    # --- jobs ---------------------------------------------------------------------------------

    def _run_job(self, notes: _Notes) -> None:
        body = _job_body(notes.asked)
        wait = {"prefer": "wait=5"} if notes.kind is Kind.PROBE else {}
        reply = self._until(notes, "POST", "/v1/jobs", body, wait)
        job = str(reply["id"])
        notes.accepted.append(job)
        notes.saw(reply["status"])
        if notes.kind is Kind.STREAMED:
            self._follow(notes, job)
        elif notes.kind is Kind.CANCELLED:
            self._read_some(notes, job, after=-1, most=self._chance.randint(1, 8))
            notes.saw(self._until(notes, "POST", f"/v1/jobs/{job}/cancel")["status"])
            notes.cancel_confirmed = True
        self._poll(notes, job)

    def _poll(self, notes: _Notes, job: str) -> None:
        while True:
            notes.saw(self._until(notes, "GET", f"/v1/jobs/{job}")["status"])
            if notes.statuses[-1] in _TERMINAL:
                return
            self._pause(notes)

    def _follow(self, notes: _Notes, job: str) -> None:
        """Read to the end, over as many connections as it takes."""
        after = -1
        while True:
            leaves = self._chance.random() < 0.3
            reading = self._read_some(
                notes, job, after=after, most=self._chance.randint(1, 12) if leaves else None
            )
            if reading is None:
                return
            after = max([after, *(item.n for item in reading.items if item.n is not None)])
            if reading.items and reading.items[-1].text == _ITEMS_LOST:
                return  # told that the rest is nowhere but in the job's answer, which is read next
            if reading.items and _ends(reading.items[-1]):
                notes.saw(_status_of(reading.items[-1]))
                return
            self._pause(notes)

    def _read_some(
        self, notes: _Notes, job: str, *, after: int, most: int | None
    ) -> Reading | None:
        """Read one connection until it breaks, ends, or has given enough; ``None``: it is over."""
        items: list[Item] = []
        headers = {"user-agent": notes.client}
        if after >= 0:
            headers["last-event-id"] = str(after)
        try:
            with self._http.stream("GET", f"/v1/jobs/{job}/stream", headers=headers) as response:
                if response.status_code == httpx.codes.NO_CONTENT:
                    return None
                self._judge(response)
                with self._lines.holding(response):
                    for _, data in events_of(response.iter_lines()):
                        items.append(native_item(data))
                        if most is not None and len(items) >= most:
                            break
        except _GONE:
            pass
        whole = bool(items) and items[-1].kind == "finished" and items[-1].text != "cancelled"
        reading = Reading(job=job, after=after, items=tuple(items), is_whole=whole)
        if items:
            notes.readings.append(reading)
        return reading

    # --- messages -----------------------------------------------------------------------------

    def _read_message(self, notes: _Notes) -> None:
        """Ask until an answer comes whole."""
        body = _message_body(notes.asked)
        while True:
            notes.sendings += 1
            try:
                with self._http.stream(
                    "POST", "/v1/messages", json=body, headers=notes.headers()
                ) as response:
                    if self._is_over(response, notes):
                        return
            except _GONE:
                pass
            self._pause(notes)

    def _is_over(self, response: httpx.Response, notes: _Notes) -> bool:
        """Read one answer; tell whether nothing better can come."""
        if response.status_code == httpx.codes.CONFLICT:
            # Its job was cancelled because the client seemed to be gone; asking again is too late.
            response.read()
            return "cancelled" in response.text
        if not self._judge(response):
            return False
        job = response.headers["x-semantic-job"]
        notes.accepted.append(job)
        items: list[Item] = []
        over = whole = False
        try:
            with self._lines.holding(response):
                for name, data in events_of(response.iter_lines()):
                    if name == "content_block_delta":
                        text = data["delta"].get("text", "")
                        items.append(Item(n=None, attempt=0, kind="text", text=text))
                    over = over or (name == "error" and "cancelled" in str(data))
                    whole = whole or name == "message_stop"
        finally:
            notes.readings.append(Reading(job=job, items=tuple(items), is_whole=whole))
        return over or whole

    # --- common -------------------------------------------------------------------------------

    def _until(
        self,
        notes: _Notes,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        more: dict[str, str] | None = None,
    ) -> Any:
        """Send until the answer is one."""
        while True:
            try:
                if body is not None:
                    notes.sendings += 1
                headers = notes.headers() if body is not None else {"user-agent": notes.client}
                reply = self._http.request(method, path, json=body, headers=headers | (more or {}))
                if self._judge(reply):
                    return reply.json()
            except _GONE:
                pass
            self._pause(notes)

    @staticmethod
    def _judge(response: httpx.Response) -> bool:
        """Tell whether it is an answer; a passing shortage is none.

        Raises:
            GaveUp: It says something that no fault excuses.
        """
        if response.is_success:
            return True
        if response.status_code in _SHORTAGE:
            return False
        response.read()
        what = f"{response.request.method} {response.request.url.path}"
        raise GaveUp(f"{what} was answered {response.status_code}: {response.text[:300]}")

    def _pause(self, notes: _Notes) -> None:
        if time.monotonic() >= notes.give_up_at:
            raise GaveUp
        time.sleep(self._chance.uniform(0.02, 0.25))


def _ends(item: Item) -> bool:
    """A failure without a number is this connection's, not the job's."""
    return item.kind == "finished" or (item.kind == "failed" and item.n is not None)


def _status_of(item: Item) -> str:
    if item.kind == "failed":
        return "expired" if item.text == "expired" else "failed"
    return "cancelled" if item.text == "cancelled" else "completed"


def _message_body(asked: Asked) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "seed": asked.seed,
        "stream": True,
        "messages": [{"role": "user", "content": asked.prompt}],
    }


def _job_body(asked: Asked) -> dict[str, Any]:
    return {key: value for key, value in _message_body(asked).items() if key != "stream"}
