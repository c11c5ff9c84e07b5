"""``semantic models add``, ``rm`` and ``pull``: the registered models, and downloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from domain.kv.plan import size_text
from domain.model.registry import ModelKind, Pooling
from ops.cli.exit_codes import ExitCode
from ops.cli.options import fail, overrides, settings_or_exit
from ops.cli.output import echo

if TYPE_CHECKING:
    from pathlib import Path

    from domain.model.registry import ModelEntry
    from ops.models.pull import HubModel
    from ops.settings import Settings


Name = Annotated[str, typer.Argument(help="What clients and commands call the model.")]


def add(
    name: Name,
    source: Annotated[str, typer.Argument(help="A directory, a hub id, or semantic-demo.")],
    *,
    alias: Annotated[list[str] | None, typer.Option("--alias", help="A further name.")] = None,
    context: Annotated[int | None, typer.Option("--context", help="Longest, in tokens.")] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
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
    from ops.models.config_file import NotEditable, add_table  # noqa: PLC0415 - keeps --help fast
    from ops.setting_groups.places import user_config_file  # noqa: PLC0415 - the same

    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    values = _given(
        {
            "source": _absolute(source),
            "aliases": alias or None,
            "context": context,
            "revision": revision,
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
    from ops.models.config_file import (  # noqa: PLC0415 - keeps --help fast
        NotEditable,
        remove_table,
        tables_of,
    )
    from ops.setting_groups.places import user_config_file  # noqa: PLC0415 - the same

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
    from pathlib import Path  # noqa: PLC0415 - beside its only use

    path = Path(source).expanduser()
    return str(path.absolute()) if path.is_dir() else source


def _check(settings: Settings, name: str, values: Mapping[str, Any]) -> None:
    """Exit with one line for each fault that the new table would have."""
    from pydantic import ValidationError  # noqa: PLC0415 - keeps --help fast

    from ops.setting_groups.models import (  # noqa: PLC0415 - the same
        ModelsSettings,
        refuse_repeated_names,
    )

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
    from ops.cli.service.origins import origins  # noqa: PLC0415 - keeps --help fast

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
    from ops.models.pull import PullFailed, find_on_hub  # noqa: PLC0415 - keeps --help fast

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
    from domain.model.registry import ModelEntry  # noqa: PLC0415 - keeps --help fast
    from ops.models.hub_cache import is_hub_id  # noqa: PLC0415 - the same
    from ops.models.registry import model_registry  # noqa: PLC0415 - the same

    registry = model_registry(settings)
    entry = registry.get(name) or ModelEntry(name=name, source=name)
    if not is_hub_id(entry.source):
        if registry.get(name) is not None:
            fail(f"{name} is not on the hub; its source is {entry.source}", ExitCode.USAGE)
        names = ", ".join(known.name for known in registry.entries())
        fail(f"{name} is no hub id (owner/name) and not registered: {names}", ExitCode.USAGE)
    return entry


def _download(model: HubModel) -> Path:
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast
    from rich.progress import (  # noqa: PLC0415 - the same
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from ops.models.pull import pull as fetch  # noqa: PLC0415 - keeps --help fast

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=model.size_bytes, completed=model.present_bytes)
        directory = fetch(model, lambda count: progress.advance(task, count))
        progress.update(task, completed=model.size_bytes)
        return directory
