"""``semantic webhooks``: deliveries to receivers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from domain.webhook.delivery import WebhookState
from ops.cli.client import ask
from ops.cli.options import DataDir, Json, fail, operator_settings, overrides
from ops.cli.output import echo, print_json, print_table
from ops.exit_codes import ExitCode

WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id.")]


def list_webhooks(
    state: Annotated[WebhookState | None, typer.Option("--state", help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most rows.")] = 20,
    secret: Annotated[
        bool,
        typer.Option(
            "--secret", help="Print the secret of the signatures instead; needs no service."
        ),
    ] = False,
    *,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List webhooks, newest first; with --secret, draws a secret if there is none."""
    if secret:
        _print_secret(as_json=json, data_dir=data_dir)
        return
    query = {"limit": str(limit)} | ({"state": state.value} if state else {})
    page = ask("GET", "/v1/webhooks", data_dir, params=query)
    if json:
        print_json(page, ascii_only=False)
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
        print_json(shown, ascii_only=False)
    else:
        echo(f"{shown['id']} goes to {shown['url']} again")


def _print_secret(*, as_json: bool, data_dir: Path | None) -> None:
    from domain.errors import SemanticError  # noqa: PLC0415 - keeps --help fast
    from ops.webhooks.sender import webhook_secret  # noqa: PLC0415 - keeps --help fast

    settings = operator_settings(overrides(data_dir=data_dir))
    try:
        text = webhook_secret(settings.webhooks, settings.data_dir)
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)
    if as_json:
        print_json({"secrets": text.split()}, ascii_only=False)
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


#: The commands of the group, by name.
COMMANDS: Final = {"ls": list_webhooks, "retry": retry}
