"""``semantic engine``: the values and the admission of the running service."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.client import service
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import print_json, print_pairs
from ops.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ops.clients.http_client import HttpClient

_ENGINE = "/admin/engine"
#: Seconds for all workers to report a change; they report once a second.
APPLIED_S = 10.0
_POLL_S = 0.2
_NAMES = ("batch_window_ms", "max_batch_size", "gap_max_ms")

BatchWindow = Annotated[
    float | None,
    typer.Option("--batch-window-ms", help="How long requests that come together wait for more."),
]
BatchSize = Annotated[
    int | None, typer.Option("--max-batch-size", help="Most sequences that run at once.")
]
Gap = Annotated[
    float | None,
    typer.Option("--gap-max-ms", help="Longest pause of a stream beside a new prompt; 0 for any."),
]
Reset = Annotated[bool, typer.Option("--reset", help="Return to the values of the settings.")]
Pause = Annotated[
    bool, typer.Option("--pause", help="Start no more jobs; new ones are accepted and wait.")
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain", help="Start no more jobs, refuse new ones with 503, and wait until none runs."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Accept and start jobs again.")]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Of a pause or drain; shown to other operators.")
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", min=0, help="Seconds of a drain for running jobs to end; 0 does not wait."
    ),
]


def engine(
    *,
    batch_window_ms: BatchWindow = None,
    max_batch_size: BatchSize = None,
    gap_max_ms: Gap = None,
    reset: Reset = False,
    pause: Pause = False,
    drain: Drain = False,
    resume: Resume = False,
    reason: Reason = None,
    wait: Wait = 300.0,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show the values in force, the admission of jobs and the workers, or change them.

    Values that an option names hold until --reset, also over restarts. Returns when every worker
    has applied them. A pause or a drain holds until --resume: running jobs go on, and accepted ones
    stay in the queue. --drain exits with 0 if no job runs, with 1 if some still do.
    """
    given = {
        "batch_window_ms": batch_window_ms,
        "max_batch_size": max_batch_size,
        "gap_max_ms": gap_max_ms,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if sum((bool(body), reset, pause, drain, resume)) > 1:
        fail("give values, or one of --reset, --pause, --drain and --resume", ExitCode.USAGE)
    why = {} if reason is None else {"reason": reason}
    with service(data_dir) as client:
        if pause or resume:
            admission = client.ask("POST", f"/admin/{'pause' if pause else 'resume'}", json=why)
            admitted = partial(_has_admission, admission=admission["admission"])
            state = _wait(client, admitted, APPLIED_S)
        elif drain:
            state = client.ask("POST", "/admin/drain", json=why)
            state = _wait(client, _has_drained, wait) if wait else state
        elif body or reset:
            tuned = client.ask("PATCH", _ENGINE, json=body or dict.fromkeys(given))
            state = _wait(client, partial(_has_values, values=tuned["values"]), APPLIED_S)
        else:
            state = client.ask("GET", _ENGINE)
        _print(state, as_json=json)
    if drain and wait and not _has_drained(state):
        raise typer.Exit(int(ExitCode.FAILED))


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
        print_json(state)
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
