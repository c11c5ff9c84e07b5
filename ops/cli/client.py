"""The service as the commands see it: the same routes that every client uses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.cli.access import ServiceAccess, access_or_exit
from ops.cli.exit_codes import ExitCode
from ops.cli.options import fail
from ops.clients.http_client import ANSWER_S, HttpClient, Refused, Unreachable
from ops.setting_groups.places import CONFIG_NAME
from ops.supervisor.address import base_url
from ops.supervisor.serve_record import read_record

#: Longest pause without an event or a ping on a stream, in seconds.
SILENCE_S = 60.0
#: Attempts to resume a broken stream.
RECONNECTS_MAX = 20
_RECONNECT_PAUSE_S = 0.5
_TERMINAL = frozenset({"finished", "failed"})


def client_of(access: ServiceAccess, *, answer_s: float = ANSWER_S) -> HttpClient:
    """Return a client of the running service, else of the address in the settings."""
    record = read_record(access.data_dir)
    url = base_url(access.host, access.port) if record is None else record.base_url
    headers = {"user-agent": "semantic"}
    if access.own_key is not None:
        headers["authorization"] = f"Bearer {access.own_key}"
    return HttpClient(base_url=url, headers=headers, answer_s=answer_s)


@contextmanager
def service(data_dir: Path | None) -> Iterator[HttpClient]:
    """Yield a client; an unreachable service or a refusal exits with one line."""
    client = client_of(access_or_exit(data_dir))
    try:
        yield client
    except Refused as refused:
        fail(str(refused), ExitCode.FAILED)
    except Unreachable:
        url = client.base_url
        fail(f"no service answers at {url}; start one: semantic serve", ExitCode.NOT_RUNNING)


def ask(method: str, path: str, data_dir: Path | None, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON answer of the service to one request; see ``HttpClient.ask``."""
    with service(data_dir) as client:
        return client.ask(method, path, **arguments)


def whole_service(data_dir: Path | None) -> HttpClient | None:
    """Return a client of the running service if its answers hold what the log holds.

    ``None`` where no service runs, where its key sees only its own things, and where the working
    directory has a configuration file: the settings decide there which log is meant.
    """
    if os.path.lexists(CONFIG_NAME):
        return None
    access = access_or_exit(data_dir)
    if read_record(access.data_dir) is None:
        return None
    client = client_of(access)
    try:
        key = client.ask("GET", "/admin/key")
    except (Refused, Unreachable, ValueError):
        return None
    return client if key.get("sees_all") else None


def health_of(client: HttpClient) -> dict[str, Any] | None:
    """Return the report of ``/health/ready``, ``None`` where no service gives one."""
    try:
        found: dict[str, Any] = client.ask("GET", "/health/ready")
    except Refused as refused:
        found = refused.body
    except (Unreachable, ValueError):
        return None
    return found if "status" in found else None


def follow(client: HttpClient, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a job up to the terminal item, resuming a broken stream.

    Raises:
        Refused: There is no such job.
        Unreachable: The service stays unreachable.
    """
    last: str | None = None
    path = f"/v1/jobs/{job_id}/stream"
    for attempt in range(RECONNECTS_MAX + 1):
        headers = {} if last is None else {"last-event-id": last}
        try:
            with client.lines(path, headers=headers, timeout_s=SILENCE_S) as lines:
                for event_id, item in read_events(lines):
                    last = event_id or last
                    yield item
                    # An answer that begins anew under another model cannot be resumed.
                    is_end = item.get("n") is not None or item.get("error") == "model_changed"
                    if item.get("kind") in _TERMINAL and is_end:
                        return
        except Unreachable:
            if attempt == RECONNECTS_MAX:
                raise
        time.sleep(_RECONNECT_PAUSE_S)
    message = "the stream ended again and again before the job did"
    raise Unreachable(message)


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
