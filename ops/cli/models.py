"""``semantic models``: the registered models, their states, downloads and swaps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn
from urllib.parse import quote

import typer

from domain.kv.plan import AGENTS_DEFAULT, size_text
from domain.model.registry import ModelKind, Pooling
from ops.cli.client import access_or_exit, client_of, service
from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import Columns, ability_pairs, echo, print_json, print_page, print_pairs
from ops.cli.plan import memory_or_exit, plan
from ops.clients.http_client import HTTP_NOT_FOUND, HttpClient, Refused, Unreachable
from ops.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from domain.model.registry import ModelEntry
    from ops.models.pull import HubModel
    from ops.models.registry import ModelSummaries, ModelSummary
    from ops.settings.settings import Settings


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
        print_json(ended)
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


def ls(json: Json = False, data_dir: DataDir = None) -> None:
    """List the registered models with their states.

    loaded: a worker serves it. available: its files are here. missing: they are
    not. failed: its last load failed. Works with and without a running service.
    """
    found = _summaries(data_dir)
    columns: Columns = {
        "name": "name",
        "state": "state",
        "size": lambda model: _size(model["size_bytes"]),
        "context": lambda model: _tokens(model["context_length"]),
        "aliases": lambda model: ", ".join(model["aliases"]) or "-",
        "source": lambda model: model["source"] or "another machine",
    }
    print_page(found, columns, as_json=json)
    if found["follow"] and not json:
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
        print_json(model)
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
        "adapter": model["adapter"],
        "directory": model["directory"],
        "aliases": ", ".join(model["aliases"]),
        "size": _size(model["size_bytes"]),
        "context": _tokens(model["context_length"]),
        "sampling": ", ".join(sampling),
        "digest": model["digest"],
        "about": model["description"],
        **dict(ability_pairs(model.get("abilities") or {})),
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
    from domain.model.registry import ModelStock
    from ops.log.database import reader_engine
    from ops.log.migrate import current
    from ops.log.reader import LogReader
    from ops.models.hub_cache import cached_ids, inspect_files
    from ops.models.registry import model_registry, model_summaries

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


Name = Annotated[str, typer.Argument(help="What clients and commands call the model.")]


def suggest(
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="For a Mac with this memory, such as 24GB; default: this machine.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Suggest models that fit, with how many contexts of 20,000 tokens stay in memory.

    The sizes are those of models plan. Needs neither a service nor the hub.
    """
    from ops.models.hub_cache import cached_ids
    from ops.models.suggest import suggestions

    found = suggestions(cached_ids(), None if memory is None else memory_or_exit(memory))
    columns: Columns = {
        "model": "id",
        "weights": lambda one: _size(one["weights_bytes"]),
        "contexts": lambda one: (
            f"{one['contexts']} of {AGENTS_DEFAULT}" if one["contexts"] else "does not fit"
        ),
        "files": lambda one: "here" if one["is_here"] else "-",
        "good for": "good_for",
    }
    print_page(found, columns, as_json=json)
    if json:
        return
    usable, whole = size_text(found["usable_bytes"]), size_text(found["memory_bytes"])
    echo(f"\n{usable} of {whole} usable; next: semantic models pull MODEL")


def add(
    name: Name,
    source: Annotated[str, typer.Argument(help="A directory, a hub id, or semantic-demo.")],
    *,
    alias: Annotated[list[str] | None, typer.Option("--alias", help="A further name.")] = None,
    context: Annotated[int | None, typer.Option("--context", help="Longest, in tokens.")] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="Directory of a LoRA adapter.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", help="A small model that drafts, mtp or off.")
    ] = None,
    kind: Annotated[
        ModelKind | None, typer.Option("--kind", help="Default: that of its files.")
    ] = None,
    pooling: Annotated[
        Pooling | None, typer.Option("--pooling", help="Of an embedding model.")
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Kept mass, 0 to 1.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Kept tokens; 0: all.")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", help="Of the likeliest.")] = None,
) -> None:
    """Register a model in ~/.config/semantic/semantic.toml.

    Downloads nothing: semantic models pull NAME. A running service sees the
    model within seconds. The sampling options are defaults for requests that
    leave them open.
    """
    from ops.models.config_file import NotEditable, add_table
    from ops.settings.places import user_config_file

    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    values = _given(
        {
            "source": _absolute(source),
            "aliases": alias or None,
            "context": context,
            "revision": revision,
            "adapter": None if adapter is None else _absolute(adapter),
            "draft": None if draft is None else _absolute(draft),
            "kind": None if kind is None else kind.value,
            "pooling": None if pooling is None else pooling.value,
            "sampling": _given(sampling) or None,
        }
    )
    settings = settings_or_exit(overrides())
    if name in settings.models.tables:
        fail(f"{name} is registered already, in {_origin(settings, name)}", ExitCode.CONFIG)
    _check(settings, name, values)
    try:
        add_table(user_config_file(), name, values)
    except (NotEditable, OSError) as error:
        _fail_edit(error)
    echo(f"added {name} to {user_config_file()}")


def rm(name: Name) -> None:
    """Remove a model from ~/.config/semantic/semantic.toml; its files stay.

    A worker that serves it goes on until the next swap.
    """
    from ops.models.config_file import NotEditable, remove_table, tables_of
    from ops.settings.places import user_config_file

    settings = settings_or_exit(overrides())
    try:
        if name not in tables_of(user_config_file()):
            _fail_missing(settings, name)
        remove_table(user_config_file(), name)
    except (NotEditable, OSError) as error:
        _fail_edit(error)
    echo(f"removed {name} from {user_config_file()}")


def _absolute(source: str) -> str:
    """Return a directory with its whole path, since a service runs elsewhere."""
    from pathlib import Path

    path = Path(source).expanduser()
    return str(path.absolute()) if path.is_dir() else source


def _check(settings: Settings, name: str, values: Mapping[str, Any]) -> None:
    """Exit with one line for each fault that the new table would have."""
    from pydantic import ValidationError

    from ops.settings.models import ModelsSettings, refuse_repeated_names

    tables = {key: table.model_dump() for key, table in settings.models.tables.items()}
    try:
        models = ModelsSettings.model_validate({**tables, name: values})
        refuse_repeated_names(settings.model, models)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults]
        fail("\nsemantic: ".join(line.removeprefix(": ") for line in lines), ExitCode.CONFIG)
    except ValueError as error:
        fail(str(error), ExitCode.CONFIG)


def _fail_missing(settings: Settings, name: str) -> NoReturn:
    if name in settings.models.tables:
        fail(f"{name} stands in {_origin(settings, name)}; edit it there", ExitCode.CONFIG)
    names = ", ".join(settings.models.tables) or "none"
    fail(f"no [models.{name}] is configured; there is: {names}", ExitCode.FAILED)


def _origin(settings: Settings, name: str) -> str:
    from ops.cli.service.config import origins

    wanted = f"models.{name}.source"
    found = (origin.origin for origin in origins(settings, {}) if origin.name == wanted)
    return next(found, "the configuration")


def _fail_edit(error: Exception) -> NoReturn:
    if isinstance(error, OSError):
        fail(f"{error.filename} cannot be edited: {error.strerror}", ExitCode.FAILED)
    fail(str(error), ExitCode.CONFIG)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def pull(
    name: Annotated[str, typer.Argument(help="A registered name, an alias, or a hub id.")],
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="Branch, tag or commit; default: as registered."),
    ] = None,
) -> None:
    """Download a model into the hub's local cache, or what is missing of it.

    Fetches weights (safetensors), configuration, tokenizer and templates only.
    Checks the free space first. After an interruption, a further pull continues
    where this one ended. Uses HF_TOKEN, HF_ENDPOINT and HF_HOME.
    """
    from ops.models.pull import PullFailed, find_on_hub

    entry = _entry(settings_or_exit(overrides()), name)
    try:
        model = find_on_hub(entry.source, revision or entry.revision)
        echo(
            f"{model.hub_id} at {model.commit[:12]}: {len(model.files)} files,"
            f" {size_text(model.size_bytes)}, {size_text(model.present_bytes)} here"
        )
        directory = _download(model)
    except PullFailed as error:
        fail(error.message, ExitCode.FAILED)
    except KeyboardInterrupt:
        echo("\nsemantic: interrupted; a further pull continues here", err=True)
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
    echo(f"pulled {entry.name} to {directory}")


def _entry(settings: Settings, name: str) -> ModelEntry:
    """Return the registered model of a name, or one for a hub id; else exit."""
    from domain.model.registry import ModelEntry
    from ops.models.hub_cache import is_hub_id
    from ops.models.registry import model_registry

    registry = model_registry(settings)
    entry = registry.get(name) or ModelEntry(name=name, source=name)
    if not is_hub_id(entry.source):
        if registry.get(name) is not None:
            fail(f"{name} is not on the hub; its source is {entry.source}", ExitCode.USAGE)
        names = ", ".join(known.name for known in registry.entries())
        fail(f"{name} is no hub id (owner/name) and not registered: {names}", ExitCode.USAGE)
    return entry


def _download(model: HubModel) -> Path:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from ops.models.pull import pull as fetch

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=model.size_bytes, completed=model.present_bytes)
        directory = fetch(model, lambda count: progress.advance(task, count))
        progress.update(task, completed=model.size_bytes)
        return directory


#: The commands of the group, by name.
COMMANDS: Final = {
    "ls": ls,
    "show": show,
    "plan": plan,
    "suggest": suggest,
    "add": add,
    "rm": rm,
    "pull": pull,
    "swap": swap,
}
