"""``semantic models``: the registered models, their states and the memory they take."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domain.kv.plan import size_text
from ops.cli.access import access_or_exit
from ops.cli.client import client_of
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.models.download import pull
from ops.cli.models.edit import add, rm
from ops.cli.models.plan import plan
from ops.cli.models.swap import swap
from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import echo
from ops.cli.table import print_pairs, print_table
from ops.clients.http_client import HTTP_NOT_FOUND, Refused, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from ops.models.summary import ModelSummaries, ModelSummary
    from ops.settings import Settings

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
    from ops.models.files import inspect_files  # noqa: PLC0415 - the same
    from ops.models.hub_cache import cached_ids  # noqa: PLC0415 - the same
    from ops.models.registry import model_registry  # noqa: PLC0415 - the same
    from ops.models.summary import model_summaries  # noqa: PLC0415 - the same

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
