"""``semantic models``: the registered models, their states, their memory, and swaps."""

from __future__ import annotations

import json as jsonlib
import time
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from domain.kv.plan import size_text
from ops.cli.client import access_or_exit, client_of, service
from ops.cli.edit import add, pull, rm
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import echo, print_pairs, print_table
from ops.cli.plan import plan
from ops.clients.http_client import HTTP_NOT_FOUND, HttpClient, Refused, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from ops.models.registry import ModelSummaries, ModelSummary
    from ops.settings import Settings


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


#: Time limit of the request to a service that may not run, in seconds.
_ASK_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the group and its commands."""
    group = typer.Typer(help="Models: list, plan, register, download, swap.", no_args_is_help=True)
    for command in (ls, show, plan, add, rm, pull, swap):
        group.command(epilog=EPILOG)(command)
    app.add_typer(group, name="models", rich_help_panel="Look")


def ls(json: Json = False, data_dir: DataDir = None) -> None:
    """List the registered models with their states.

    loaded: a worker serves it. available: its files are here. missing: they are
    not. failed: its last load failed. Works with and without a running service.
    """
    found = _summaries(data_dir)
    if json:
        echo(jsonlib.dumps(found, indent=2))
        return
    rows = [
        (
            model["name"],
            model["state"],
            _size(model["size_bytes"]),
            _tokens(model["context_length"]),
            ", ".join(model["aliases"]) or "-",
            model["source"] or "another machine",
        )
        for model in found["data"]
    ]
    print_table(("name", "state", "size", "context", "aliases", "source"), rows)
    if found["follow"]:
        echo(f"\nThe loaded model also answers to: {', '.join(found['follow'])}")


def show(
    name: Annotated[str, typer.Argument(help="A registered name or an alias.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show one model: files, digest, defaults, and why its last load failed."""
    found = _summaries(data_dir)["data"]
    model = next((one for one in found if name in (one["name"], *one["aliases"])), None)
    if model is None:
        names = ", ".join(one["name"] for one in found)
        fail(f"no model is called {name}; there is: {names}", ExitCode.FAILED)
    if json:
        echo(jsonlib.dumps(model, indent=2))
    else:
        print_pairs(_pairs(model))


def _pairs(model: ModelSummary) -> list[tuple[str, str]]:
    sampling = [f"{key} {value}" for key, value in model["sampling"].items() if value is not None]
    pairs = {
        "name": model["name"],
        "state": model["state"],
        "why": model["failure"],
        "source": model["source"],
        "revision": model["revision"],
        "directory": model["directory"],
        "aliases": ", ".join(model["aliases"]),
        "size": _size(model["size_bytes"]),
        "context": _tokens(model["context_length"]),
        "sampling": ", ".join(sampling),
        "digest": model["digest"],
        "about": model["description"],
    }
    return [(key, value) for key, value in pairs.items() if value]


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else size_text(size_bytes)


def _tokens(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"


def _summaries(data_dir: Path | None) -> ModelSummaries:
    """Return the models as a running service sees them, else as this machine has them."""
    found = _asked(data_dir)
    return found or _found_here(settings_or_exit(overrides(data_dir=data_dir)))


def _asked(data_dir: Path | None) -> ModelSummaries | None:
    client = client_of(access_or_exit(data_dir), answer_s=_ASK_S)
    try:
        found: Any = client.ask("GET", "/admin/models")
    except Refused as refused:
        if refused.status == HTTP_NOT_FOUND:
            return None  # a program of another kind, or an older service
        fail(f"the service refused: {refused.status}", ExitCode.FAILED)
    except (Unreachable, ValueError):
        return None
    summaries: ModelSummaries = found
    return summaries


def _found_here(settings: Settings) -> ModelSummaries:
    from domain.usecases.model_stock import ModelStock  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.event_log.database import reader_engine  # noqa: PLC0415 - the same
    from ops.adapters.event_log.migrate import current  # noqa: PLC0415 - the same
    from ops.adapters.event_log.reader import LogReader  # noqa: PLC0415 - the same
    from ops.models.hub_cache import (  # noqa: PLC0415 - the same
        cached_ids,
        inspect_files,
    )
    from ops.models.registry import (  # noqa: PLC0415 - the same
        model_registry,
        model_summaries,
    )

    registry = model_registry(settings, cached_ids())
    has_log = current(settings.log_url) is not None
    engine = reader_engine(settings.log_url) if has_log else None
    try:
        stock = ModelStock(
            log=None if engine is None else LogReader(engine),
            serving=None,
            registry=lambda: registry,
            inspect=inspect_files,
        )
        return model_summaries(stock.all(), registry.following)
    finally:
        if engine is not None:
            engine.dispose()
