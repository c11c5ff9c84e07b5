"""Who can reach an address, and what the settings must say before others than this machine may."""

from __future__ import annotations

from ipaddress import ip_address

from ops.settings import ServerSettings


def why_not_listen(server: ServerSettings, address: str) -> str | None:
    """Return why an address must not be listened on with these settings, in one line, if so.

    Args:
        server: What was asked for.
        address: What ``server.host`` stands for, as digits.
    """
    # A zone ("fe80::1%eth0") says nothing about who can reach it.
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
