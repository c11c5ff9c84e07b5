"""``semantic engine``, ``pause``, ``resume`` and ``drain``: changes of the running service."""

from __future__ import annotations

import json as jsonlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.client import ask, service
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import echo
from ops.cli.table import print_pairs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ops.clients.http_client import HttpClient

_ENGINE = "/admin/engine"
#: Seconds for all workers to report a change; they report once a second.
APPLIED_S = 10.0
_POLL_S = 0.2
_NAMES = ("batch_window_ms", "max_batch_size", "gap_max_ms")

Reason = Annotated[str | None, typer.Option("--reason", help="Shown to other operators.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (engine, pause, drain, resume):
        app.command(epilog=EPILOG, rich_help_panel="Serve")(command)


def engine(
    batch_window_ms: Annotated[
        float | None,
        typer.Option(
            "--batch-window-ms", help="How long requests that come together wait for more."
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option("--max-batch-size", help="Most sequences that run at once.")
    ] = None,
    gap_max_ms: Annotated[
        float | None,
        typer.Option(
            "--gap-max-ms", help="Longest pause of a stream beside a new prompt; 0 for any."
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Return to the values of the settings.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show the values in force, the admission of jobs and the workers, or change values.

    Values that an option names hold until --reset, also over restarts. Returns when every worker
    has applied them.
    """
    given = {
        "batch_window_ms": batch_window_ms,
        "max_batch_size": max_batch_size,
        "gap_max_ms": gap_max_ms,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if body and reset:
        fail("--reset takes no values beside it", ExitCode.USAGE)
    if body or reset:
        _tune(body or dict.fromkeys(given), as_json=json, data_dir=data_dir)
    else:
        _print(ask("GET", _ENGINE, data_dir), as_json=json)


def pause(reason: Reason = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Start no more jobs; new ones are accepted and wait. Running ones go on."""
    _admit("pause", reason, as_json=json, data_dir=data_dir)


def resume(json: Json = False, data_dir: DataDir = None) -> None:
    """Accept and start jobs again, after a pause or a drain."""
    _admit("resume", None, as_json=json, data_dir=data_dir)


def drain(
    reason: Reason = None,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="Seconds for running jobs to end; 0 does not wait."),
    ] = 300.0,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Start no more jobs, refuse new ones with 503, and wait until none runs.

    Accepted jobs that do not run stay in the queue. Exits with 0 if no job runs, 1 if some still
    do. ``semantic resume`` ends the drain.
    """
    with service(data_dir) as client:
        body = {} if reason is None else {"reason": reason}
        state = client.ask("POST", "/admin/drain", json=body)
        if wait:
            state = _wait(client, _has_drained, wait)
        _print(state, as_json=json)
    if wait and not _has_drained(state):
        raise typer.Exit(int(ExitCode.FAILED))


def _tune(body: dict[str, Any], *, as_json: bool, data_dir: Path | None) -> None:
    with service(data_dir) as client:
        wanted = client.ask("PATCH", _ENGINE, json=body)["values"]
        state = _wait(client, lambda found: _has_values(found, wanted), APPLIED_S)
        _print(state, as_json=as_json)


def _admit(name: str, reason: str | None, *, as_json: bool, data_dir: Path | None) -> None:
    with service(data_dir) as client:
        body = {} if reason is None else {"reason": reason}
        admission = client.ask("POST", f"/admin/{name}", json=body)["admission"]
        state = _wait(client, lambda found: _has_admission(found, admission), APPLIED_S)
        _print(state, as_json=as_json)


def _wait(
    client: HttpClient, is_done: Callable[[dict[str, Any]], bool], seconds: float
) -> dict[str, Any]:
    """Return the state once ``is_done`` holds, or after a time."""
    give_up_at = time.monotonic() + seconds
    while True:
        state: dict[str, Any] = client.ask("GET", _ENGINE)
        if is_done(state) or time.monotonic() > give_up_at:
            return state
        time.sleep(_POLL_S)


def _has_values(state: dict[str, Any], values: dict[str, Any]) -> bool:
    return all(worker["values"] in (None, values) for worker in state["workers"])


def _has_admission(state: dict[str, Any], admission: str) -> bool:
    return all(worker["admission"] == admission for worker in state["workers"])


def _has_drained(state: dict[str, Any]) -> bool:
    return _has_admission(state, "draining") and not state["running"]


def _print(state: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo(jsonlib.dumps(state, indent=2))
        return
    admission = state["admission"]
    if state["reason"]:
        admission += f" ({state['reason']})"
    if state["since"] is not None:
        admission += f" since {state['since']}"
    pairs = [("admission", admission)]
    for name in _NAMES:
        origin = "tuned" if name in state["tuned"] else "setting"
        text = f"{state['values'][name]:g} ({origin})"
        if origin == "tuned":
            text = f"{state['values'][name]:g} (setting {state['settings'][name]:g})"
        pairs.append((name, text))
    pairs.append(("jobs", f"{state['running']} running, {state['waiting']} waiting"))
    pairs += [("worker", _worker_text(worker, state)) for worker in state["workers"]]
    print_pairs(pairs)


def _worker_text(worker: dict[str, Any], state: dict[str, Any]) -> str:
    applied = worker["values"] in (None, state["values"])
    applied = applied and worker["admission"] == state["admission"]
    suffix = "" if applied else ", has not applied the change yet"
    name = worker["place"] or worker["id"]
    model = worker["model"] or "no model"
    return f"{name} {worker['state']}, {model}, {worker['running']} running{suffix}"
