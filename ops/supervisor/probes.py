"""The broker's address, and probes of the api over the network, as the supervisor sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ops.clients.claude_code import ServedModel
from ops.clients.http_client import HttpClient, Refused, Unreachable

#: Time limit of one probe, in seconds.
PROBE_S = 2.0
_URL_NAME = "broker.url"


def forget_broker_url(data_dir: Path) -> None:
    """Remove the published address of a dead broker."""
    (data_dir / _URL_NAME).unlink(missing_ok=True)


def read_broker_url(data_dir: Path) -> str | None:
    """Return the address that the broker published, else ``None``."""
    try:
        return (data_dir / _URL_NAME).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def why_not_ready(client: HttpClient) -> str | None:
    """Return why the service is not ready, as ``/health/ready`` reports it; ``None`` once it is."""
    try:
        client.ask("GET", "/health/ready")
    except Refused as refused:
        if isinstance(reasons := refused.body.get("reasons"), list):
            return "; ".join(map(str, reasons))
    except (Unreachable, ValueError):
        pass
    else:
        return None
    return "the api does not answer"


def has_running_jobs(client: HttpClient) -> bool | None:
    """Return whether the workers run jobs; ``None`` where the api does not answer."""
    try:
        return bool(client.ask("GET", "/admin/engine")["running"])
    except (Refused, Unreachable, ValueError, LookupError, TypeError):
        return None


def served_model(client: HttpClient) -> ServedModel | None:
    """Return the first model of ``/admin/models``, else ``None``."""
    try:
        listing = client.ask("GET", "/admin/models")
        first: dict[str, Any] = listing["data"][0]
        follow = tuple(map(str, listing["follow"]))
        return ServedModel(str(first["name"]), first["context_length"], follow=follow)
    except (Refused, Unreachable, ValueError, LookupError, TypeError):
        return None
