"""Probes of the broker and the api over the network, as the supervisor sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from ops.clients.claude_code import ServedModel

#: Time limit of one probe, in seconds.
PROBE_S = 2.0
_PING = b"*1\r\n$4\r\nPING\r\n"
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


async def broker_answers(url: str) -> bool:
    """Return whether a server at ``url`` speaks the Redis protocol.

    The error of a broker that demands a password counts as an answer.
    """
    try:
        async with asyncio.timeout(PROBE_S):
            parts = urlsplit(url)
            if parts.scheme == "unix":
                reader, writer = await asyncio.open_unix_connection(unquote(parts.path))
            else:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 6379)
            try:
                writer.write(_PING)
                answer = await reader.readline()
            finally:
                writer.close()
    except OSError:  # TimeoutError is one
        return False
    return answer.startswith((b"+PONG", b"-NOAUTH"))


async def why_not_ready(client: httpx.AsyncClient) -> str | None:
    """Return why the service is not ready, as ``/health/ready`` reports it; ``None`` once it is."""
    try:
        reply = await client.get("/health/ready", timeout=PROBE_S)
        if reply.status_code == httpx.codes.OK:
            return None
        return "; ".join(map(str, reply.json()["reasons"]))
    except (httpx.TransportError, ValueError, LookupError, TypeError):
        return "the api does not answer"


async def has_running_jobs(base_url: str, headers: Mapping[str, str]) -> bool | None:
    """Return whether the workers run jobs; ``None`` where the api does not answer."""
    try:
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, headers=headers) as client:
            reply = await client.get("/admin/engine", timeout=PROBE_S)
            return bool(reply.json()["running"])
    except (httpx.TransportError, ValueError, LookupError, TypeError):
        return None


async def served_model(client: httpx.AsyncClient) -> ServedModel | None:
    """Return the first model of ``/admin/models``, else ``None``."""
    try:
        listing = (await client.get("/admin/models", timeout=PROBE_S)).json()
        first: dict[str, Any] = listing["data"][0]
        follow = tuple(map(str, listing["follow"]))
        return ServedModel(str(first["name"]), first["context_length"], follow=follow)
    except (httpx.TransportError, ValueError, LookupError, TypeError):
        return None
