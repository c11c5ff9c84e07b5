"""A client that also uses background responses, batches and webhooks."""

from __future__ import annotations

import json
import random
from typing import Any

from bench.chaos.client import GONE, ITEMS_LOST, MODEL, Client, RunningOperation, message_body
from bench.chaos.history import Item, Kind, LineResult, Reading, RequestSpec
from bench.chaos.wire import OpenStreams, events_of

#: The ends of a response, as the kind of a terminal item.
_ENDS = {
    "response.completed": "finished",
    "response.incomplete": "finished",
    "response.failed": "failed",
}


class MixedClient(Client):
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
        super().__init__(base_url, streams, rng)
        self._hook = hook

    def _run(self, operation: RunningOperation) -> None:
        if operation.kind is Kind.RESPONSES:
            self._read_response(operation)
        elif operation.kind is Kind.BATCH:
            self._run_batch(operation)
        else:
            super()._run(operation)

    def _extra(self, operation: RunningOperation) -> dict[str, Any]:
        if self._hook is None or operation.kind is Kind.PROBE:
            return {}
        return {"webhook": {"url": self._hook}}

    # --- responses ----------------------------------------------------------------------------

    def _read_response(self, operation: RunningOperation) -> None:
        """Start a background response and read its stream over as many connections as it takes."""
        name, after = "", -1
        while True:
            leaves = self._rng.random() < 0.3
            most = self._rng.randint(1, 12) if leaves else None
            reading, found = self._read_some_events(operation, name, after=after, most=most)
            name = found or name
            numbers = [item.n for item in reading.items if item.n is not None]
            after = max([after, *numbers])
            last = reading.items[-1] if reading.items else None
            if last is not None and (last.kind in _ENDS.values() or last.text == ITEMS_LOST):
                break
            self._pause(operation)
        self._poll(operation, operation.accepted[0])

    def _read_some_events(
        self, operation: RunningOperation, name: str, *, after: int, most: int | None
    ) -> tuple[Reading, str]:
        """Read one connection; return what it delivered, and the id of the response."""
        items: list[Item] = []
        try:
            with self._open_response(operation, name, after) as response:
                if not self._is_answer(response):
                    return Reading(job="", after=after), name
                if not name:
                    operation.accepted.append(response.headers["x-semantic-job"])
                with self._streams.holding(response):
                    for kind, data in events_of(response.iter_lines()):
                        name = name or str(data.get("response", {}).get("id", ""))
                        items.append(_response_item(kind, data))
                        if most is not None and len(items) >= most:
                            break
        except GONE:
            pass
        job = operation.accepted[-1] if operation.accepted else ""
        whole = bool(items) and items[-1].kind == "finished"
        reading = Reading(job=job, after=after, items=tuple(items), is_whole=whole)
        if items:
            operation.readings.append(reading)
        return reading, name

    def _open_response(self, operation: RunningOperation, name: str, after: int) -> Any:
        if name:
            query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
            headers = {"user-agent": operation.client}
            return self._http.stream("GET", f"/v1/responses/{name}", params=query, headers=headers)
        operation.sendings += 1
        body = _response_body(operation.request)
        return self._http.stream("POST", "/v1/responses", json=body, headers=operation.headers())

    # --- batches ------------------------------------------------------------------------------

    def _run_batch(self, operation: RunningOperation) -> None:
        """Create a batch, wait for its end and read its results."""
        requests = [
            {"custom_id": f"line-{number}", "params": _line_params(line)}
            for number, line in enumerate(operation.lines)
        ]
        body = {"requests": requests} | self._extra(operation)
        created = self._until(operation, "POST", "/v1/messages/batches", body)
        path = f"/v1/messages/batches/{created['id']}"
        operation.batch = "batch-" + created["id"].removeprefix("msgbatch_")
        while self._until(operation, "GET", path)["processing_status"] != "ended":
            self._pause(operation)
        results = self._until_reply(operation, "GET", f"{path}/results").text
        for line in results.splitlines():
            fields = json.loads(line)
            result = fields["result"]
            blocks = result.get("message", {}).get("content", ())
            text = "".join(block.get("text", "") for block in blocks)
            number = int(fields["custom_id"].removeprefix("line-"))
            operation.results.append(LineResult(line=number, status=result["type"], text=text))


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


def _line_params(request: RequestSpec) -> dict[str, Any]:
    return {name: value for name, value in message_body(request).items() if name != "stream"}
