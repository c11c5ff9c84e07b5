"""``semantic models pull``: download a model from the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from domain.kv.plan import size_text
from ops.cli.exit_codes import ExitCode
from ops.cli.options import fail, overrides, settings_or_exit
from ops.cli.output import echo

if TYPE_CHECKING:
    from pathlib import Path

    from domain.model.registry import ModelEntry
    from ops.models.pull import HubModel
    from ops.settings import Settings


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
