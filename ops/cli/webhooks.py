"""``semantic webhooks``: deliveries to receivers."""

from __future__ import annotations

import json as jsonlib
from enum import StrEnum
from typing import Annotated, Any

import typer

from ops.cli.client import ask
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.options import DataDir, Json, fail, operator_settings, overrides
from ops.cli.output import echo, print_table

WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id.")]


class State(StrEnum):
    """State of a webhook."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="List and resend webhooks; show the secret.")
    group.command("ls", epilog=EPILOG)(list_webhooks)
    group.command("retry", epilog=EPILOG)(retry)
    group.command("secret", epilog=EPILOG)(secret)
    app.add_typer(group, name="webhooks", rich_help_panel="Use")


def list_webhooks(
    state: Annotated[State | None, typer.Option("--state", help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most rows.")] = 20,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List webhooks, newest first."""
    query = {"limit": str(limit)} | ({"state": state.value} if state else {})
    page = ask("GET", "/v1/webhooks", data_dir, params=query)
    if json:
        _print_json(page)
        return
    rows = [
        (
            webhook["id"],
            webhook["type"],
            webhook["state"],
            str(webhook["attempts"]),
            str(webhook["status"] or ""),
            (webhook["next_attempt_at"] or "")[:19],
            webhook["url"],
            webhook["error"] or "",
        )
        for webhook in page["data"]
    ]
    print_table(("webhook", "event", "state", "tries", "http", "next try", "url", "error"), rows)
    if page["has_more"]:
        echo("there are older ones: raise --limit", err=True)


def retry(webhook: WebhookArgument, json: Json = False, data_dir: DataDir = None) -> None:
    """Send a webhook again at once, with all its attempts."""
    shown = ask("POST", f"/v1/webhooks/{webhook}/retry", data_dir)
    if json:
        _print_json(shown)
    else:
        echo(f"{shown['id']} goes to {shown['url']} again")


def secret(json: Json = False, data_dir: DataDir = None) -> None:
    """Print the secret of the signatures; draws one if there is none."""
    from domain.errors import SemanticError  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.webhooks.sender import webhook_secret  # noqa: PLC0415 - the same

    settings = operator_settings(overrides(data_dir=data_dir))
    try:
        text = webhook_secret(settings.webhooks, settings.data_dir)
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)
    if json:
        _print_json({"secrets": text.split()})
    else:
        echo(text)


def webhook_line(webhook: dict[str, Any]) -> str:
    """Return the state of a delivery as one line."""
    tries = webhook["attempts"]
    parts = [f"{webhook['state']} after {tries} {'try' if tries == 1 else 'tries'}"]
    if webhook["error"]:
        parts.append(webhook["error"])
    elif webhook["status"]:
        parts.append(f"HTTP {webhook['status']}")
    if webhook["next_attempt_at"]:
        parts.append(f"next {webhook['next_attempt_at'][:19]}")
    return f"{webhook['url']}: {', '.join(parts)}"


def _print_json(value: object) -> None:
    echo(jsonlib.dumps(value, indent=2, ensure_ascii=False))
