"""Refuse to listen beyond this machine unless the settings allow it and require a key."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.setting_groups.service import ServerSettings


def why_not_listen(server: ServerSettings, address: str) -> str | None:
    """Return in one line why these settings forbid listening on an address, else ``None``.

    Args:
        server: The requested settings.
        address: The numeric address of ``server.host``.
    """
    # A zone ("fe80::1%eth0") does not limit which machines reach the address.
    if ip_address(address.partition("%")[0]).is_loopback:
        return None
    missing = []
    if not server.allow_remote:
        missing.append("--allow-remote (server.allow_remote)")
    if not server.api_keys:
        missing.append("a key (SEMANTIC_SERVER__API_KEYS)")
    if not missing:
        return None
    return (
        f"{server.host} can be reached from other machines; to listen there it takes"
        f" {' and '.join(missing)}, or stay with 127.0.0.1"
    )
