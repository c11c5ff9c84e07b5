"""HTTP client of the commands: the same routes that every client uses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from ops.cli.exit_codes import ExitCode
from ops.cli.options import fail
from ops.settings import Settings
from ops.supervisor.address import base_url
from ops.supervisor.serve_record import read_record

#: Time limit of a connection and of a reply without a stream, in seconds.
CONNECT_S, ANSWER_S = 5.0, 60.0
#: Longest pause without an event or a ping on a stream, in seconds.
SILENCE_S = 60.0
#: Attempts to resume a broken stream.
RECONNECTS_MAX = 20
_RECONNECT_PAUSE_S = 0.5
_TERMINAL = frozenset({"finished", "failed"})


def service_url(settings: Settings) -> str:
    """Return the URL of the running service, else the URL of the settings."""
    record = read_record(settings.data_dir)
    if record is not None:
        return record.base_url
    return base_url(settings.server.host, settings.server.port)


def key_header(settings: Settings) -> dict[str, str]:
    """Return the header with the configured API key, if there is one."""
    key = settings.own_key
    return {} if key is None else {"authorization": f"Bearer {key}"}


@contextmanager
def service(settings: Settings) -> Iterator[httpx.Client]:
    """Yield an HTTP client; an unreachable service or a refusal exits with one line."""
    url = service_url(settings)
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    # A proxy of the environment is not for this machine.
    with httpx.Client(
        base_url=url, timeout=timeout, trust_env=False, headers=key_header(settings)
    ) as client:
        try:
            yield client
        except httpx.HTTPStatusError as error:
            fail(_reason(error.response), ExitCode.FAILED)
        except httpx.TransportError:
            fail(f"no service answers at {url}; start one: semantic serve", ExitCode.NOT_RUNNING)


def ask(client: httpx.Client, method: str, path: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON answer to a request.

    Raises:
        httpx.HTTPStatusError: The service refused.
        httpx.TransportError: The service is unreachable.
    """
    response = client.request(method, path, **arguments)
    response.raise_for_status()
    return response.json()


def follow(client: httpx.Client, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a job up to the terminal item, resuming a broken stream.

    Raises:
        httpx.HTTPStatusError: There is no such job.
        httpx.TransportError: The service stays unreachable.
    """
    last: str | None = None
    for attempt in range(RECONNECTS_MAX + 1):
        headers = {} if last is None else {"last-event-id": last}
        try:
            with client.stream(
                "GET",
                f"/v1/jobs/{job_id}/stream",
                headers=headers,
                timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            ) as response:
                if response.is_error:
                    response.read()
                    response.raise_for_status()
                for event_id, item in read_events(response.iter_lines()):
                    last = event_id or last
                    yield item
                    # An answer that begins anew under another model cannot be resumed.
                    is_end = item.get("n") is not None or item.get("error") == "model_changed"
                    if item.get("kind") in _TERMINAL and is_end:
                        return
        except httpx.TransportError:
            if attempt == RECONNECTS_MAX:
                raise
        time.sleep(_RECONNECT_PAUSE_S)
    message = "the stream ended again and again before the job did"
    raise httpx.ReadError(message)


def read_events(lines: Iterable[str]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the id and the data of each server-sent event; comments are skipped."""
    event_id: str | None = None
    data: list[str] = []
    for line in lines:
        if line.startswith("id:"):
            event_id = line[3:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield event_id, json.loads("\n".join(data))
            event_id, data = None, []


def _reason(response: httpx.Response) -> str:
    """Return the error message of a reply, in any dialect."""
    try:
        body = response.json()
        text = body.get("detail") or body["error"]["message"]
    except (ValueError, LookupError, TypeError, AttributeError):
        text = response.reason_phrase
    return f"{text} ({response.status_code})"
