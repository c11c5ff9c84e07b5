"""``semantic webhooks``: deliveries to receivers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from domain.webhook.delivery import WebhookState
from ops.cli.client import ask
from ops.cli.options import DataDir, Json, fail, operator_settings, overrides
from ops.cli.output import Columns, print_answer, print_page
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
    columns: Columns = {
        "webhook": "id",
        "event": "type",
        "state": "state",
        "tries": "attempts",
        "http": "status",
        "next try": lambda webhook: (webhook["next_attempt_at"] or "")[:19],
        "url": "url",
        "error": "error",
    }
    print_page(ask("GET", "/v1/webhooks", data_dir, params=query), columns, as_json=json)


def retry(webhook: WebhookArgument, json: Json = False, data_dir: DataDir = None) -> None:
    """Send a webhook again at once, with all its attempts."""
    shown = ask("POST", f"/v1/webhooks/{webhook}/retry", data_dir)
    print_answer(shown, f"{shown['id']} goes to {shown['url']} again", as_json=json)


def _print_secret(*, as_json: bool, data_dir: Path | None) -> None:
    from domain.errors import SemanticError
    from ops.webhooks.sender import webhook_secret

    settings = operator_settings(overrides(data_dir=data_dir))
    try:
        text = webhook_secret(settings.webhooks, settings.data_dir)
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)
    print_answer({"secrets": text.split()}, text, as_json=as_json)


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
