"""Where the service is, how a command may ask it, and its routes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ops.cli.options import fail, given_config_file, overrides, settings_or_exit
from ops.cli.output import echo
from ops.clients.http_client import ANSWER_S, HttpClient, Refused, Unreachable
from ops.exit_codes import ExitCode
from ops.settings.api_keys import first_sendable
from ops.settings.places import CONFIG_NAME, HOST, PORT, default_data_dir, user_config_file
from ops.supervisor.probes import base_url
from ops.supervisor.serve_record import read_record

if TYPE_CHECKING:
    from ops.settings.settings import Settings

#: Variables, by the names of their values here, and those that need the parser of the settings.
_VARIABLES: Final = MappingProxyType(
    {
        "SEMANTIC_DATA_DIR": "data_dir",
        "SEMANTIC_API_KEY": "api_key",
        "SEMANTIC_SERVER__HOST": "host",
        "SEMANTIC_SERVER__PORT": "port",
    }
)
_LEFT_TO_SETTINGS: Final = frozenset({"SEMANTIC_SERVER", "SEMANTIC_SERVER__API_KEYS"})
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccess:
    """What a command needs to ask the service.

    Attributes:
        data_dir: The data directory; it has the record of the running service.
    """

    data_dir: Path
    host: str
    port: int
    own_key: str | None


def access_or_exit(data_dir: Path | None) -> ServiceAccess:
    """Return the access; a setting that is not valid exits with one line."""
    found = read_access(data_dir, given_config_file())
    if found is not None:
        return found
    return access_of(settings_or_exit(overrides(data_dir=data_dir)))


def access_of(settings: Settings) -> ServiceAccess:
    """Return what the settings have."""
    return ServiceAccess(
        data_dir=settings.data_dir,
        host=settings.server.host,
        port=settings.server.port,
        own_key=settings.own_key,
    )


def read_access(data_dir: Path | None, config: Path | None) -> ServiceAccess | None:
    """Return the access, or ``None`` where only the settings can read a source.

    Args:
        config: The configuration file that the command line names.
    """
    try:
        sources = list(_sources(data_dir, config))
    except _LeftToSettings:
        return None
    found = {name: _first(name, sources) for name in ("data_dir", "host", "port")}
    keys = _first("api_keys", sources)
    key = _first("api_key", sources)
    path, host, port = found["data_dir"], found["host"], found["port"]
    is_plain = (
        isinstance(path, str | Path)
        and isinstance(host, str)
        and type(port) is int
        and 0 <= port <= _PORT_MAX
        and isinstance(key, str | None)
        and isinstance(keys, list)
        and all(isinstance(text, str) for text in keys)
    )
    if not is_plain:
        return None
    own_key = first_sendable(keys) if key is None else key
    return ServiceAccess(data_dir=Path(path), host=host, port=port, own_key=own_key)


class _LeftToSettings(Exception):
    """A source that only the settings can read."""


def _sources(data_dir: Path | None, config: Path | None) -> Iterator[Mapping[str, Any]]:
    """Yield the values of each source, the strongest first."""
    # Names match in any case.
    variables = {name.upper(): value for name, value in os.environ.items()}
    if variables.keys() & _LEFT_TO_SETTINGS:
        raise _LeftToSettings
    if config is None and variables.get("SEMANTIC_CONFIG"):
        config = Path(variables["SEMANTIC_CONFIG"])
    if data_dir is not None:
        yield {"data_dir": data_dir}
    given: dict[str, Any] = {
        field: variables[name] for name, field in _VARIABLES.items() if name in variables
    }
    if (port := given.get("port")) is not None and port.isascii() and port.isdecimal():
        given["port"] = int(port)
    yield given
    # A file that is missing or invalid is reported by the settings.
    if config is not None:
        yield _of_file(config.expanduser(), is_required=True)
    yield _of_file(user_config_file(), is_required=False)
    yield {"data_dir": default_data_dir(), "host": HOST, "port": PORT, "api_keys": []}


def _of_file(path: Path, *, is_required: bool) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_required:
            return {}
        raise _LeftToSettings from error
    import tomllib

    try:
        values = tomllib.loads(text.decode())
    except ValueError as error:  # no TOML, or no UTF-8
        raise _LeftToSettings from error
    server = values.get("server", {})
    if "config" in values or not isinstance(server, dict):
        raise _LeftToSettings
    top = {name: values[name] for name in ("data_dir", "api_key") if name in values}
    group = {name: server[name] for name in ("host", "port", "api_keys") if name in server}
    return top | group


def _first(name: str, sources: list[Mapping[str, Any]]) -> Any:  # noqa: ANN401 - as the source has it
    return next((source[name] for source in sources if name in source), None)


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


def ask_if_running(path: str, data_dir: Path | None) -> Any | None:  # noqa: ANN401 - JSON
    """Return the answer to a GET; ``None`` without a service, where a log can answer.

    Without both, and where the service refuses, the command exits with one line.
    """
    with service(data_dir) as client:
        try:
            return client.ask("GET", path)
        except Unreachable:
            if not has_log(data_dir):
                raise
            echo(f"no service answers at {client.base_url}; this is from the log", err=True)
            return None


def has_log(data_dir: Path | None) -> bool:
    """Whether the settings name a log that can be read without a service."""
    from ops.log.database import database_file

    file = database_file(settings_or_exit(overrides(data_dir=data_dir)).log_url)
    return file is None or file.exists()


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
    raise Unreachable("the stream ended again and again before the job did")


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
