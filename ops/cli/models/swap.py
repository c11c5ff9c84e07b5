"""``semantic models swap``: serve another model without losing a job."""

from __future__ import annotations

import json as jsonlib
import time
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from ops.cli.client import service
from ops.cli.exit_codes import ExitCode
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import echo
from ops.clients.http_client import HttpClient, Refused, Unreachable

#: Pause between two reads of the swap, in seconds.
LOOK_S: Final = 0.2
#: Reads in a row that may fail before the command gives up, so that the api may restart.
MISSES_MAX: Final = 100
#: Longest time without a worker that takes part, in seconds.
NOTICE_MAX_S: Final = 60.0
#: What each state means for the user.
_TEXTS: Final = {
    "requested": "waiting for the worker",
    "draining": "running answers finish",
    "saving": "contexts go to the disk",
    "restarting": "the worker starts again",
    "loading": "the model loads",
}


def swap(
    name: Annotated[str, typer.Argument(help="A registered name or an alias.")],
    drain: Annotated[
        int,
        typer.Option("--drain", min=0, max=86_400, help="Seconds that running answers may take."),
    ] = 300,
    worker: Annotated[
        str | None,
        typer.Option("--worker", help="Only this worker; its id or place: semantic engine."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Serve another model: drain, save, restart the worker, load.

    Open streams go on after the swap. The same name loads new weights. Exits with
    0 once the model serves, with 1 if it could not be loaded: the one before
    serves again.
    """
    with service(data_dir) as client:
        path = f"/admin/models/{quote(name, safe='')}/load"
        params = {"drain_s": drain, **({} if worker is None else {"worker": worker})}
        begun = client.ask("POST", path, params=params)
        ended = _followed(client, begun, shows=not json)
    if json:
        echo(jsonlib.dumps(ended, indent=2))
    elif ended["state"] == "done":
        echo(f"{ended['model']} serves after {ended['timings_ms']['total'] / 1000:.1f} s")
    if ended["state"] != "done":
        fail(_reason(ended), ExitCode.FAILED)


def _followed(client: HttpClient, swap: dict[str, Any], *, shows: bool) -> dict[str, Any]:
    """Return the swap at its end; print each state that it enters."""
    begun_s, state, misses = time.monotonic(), None, 0
    while True:
        if swap["state"] != state:
            state = swap["state"]
            if shows and state in _TEXTS:
                echo(f"{time.monotonic() - begun_s:6.1f} s  {state:<10}  {_TEXTS[state]}")
        if swap["ended_at"] is not None:
            return swap
        if state == "requested" and time.monotonic() - begun_s > NOTICE_MAX_S:
            fail("no worker takes part; the swap happens once one starts", ExitCode.FAILED)
        time.sleep(LOOK_S)
        try:
            swap = client.ask("GET", f"/admin/swaps/{swap['id']}")
            misses = 0
        except (Unreachable, Refused):
            misses += 1
            if misses > MISSES_MAX:
                raise


def _reason(swap: dict[str, Any]) -> str:
    if swap["state"] == "superseded":
        return f"a later swap took the place of that to {swap['model']}"
    return f"{swap['model']} cannot be served, {swap['before']} is loaded: {swap['why']}"
