"""The public address and the broker's: checks before a start, and probes over the network."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from ops.clients.claude_code import ServedModel
from ops.clients.http_client import HttpClient, Refused, Unreachable
from ops.supervisor.serve_record import CannotServe

if TYPE_CHECKING:
    from ops.settings.service import ServerSettings


#: Time limit of one probe, in seconds.
PROBE_S = 2.0


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
        return ServedModel.all_of(client.ask("GET", "/admin/models"))[0]
    except (Refused, Unreachable, ValueError, LookupError, TypeError):
        return None


_CONNECT_S = 0.5
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound


def claim_port(host: str, port: int, *, server: ServerSettings | None = None) -> int:
    """Check that an address can be listened on.

    Args:
        host: A name or an address of this machine.
        port: 0 picks a free one.
        server: Settings that allow or forbid other machines; without them every address is allowed.

    Returns:
        The port.

    Raises:
        CannotServe: It is taken, forbidden, or no address of this machine.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        if server is not None and (reason := server.why_not_listen(str(address[0]))):
            raise CannotServe(reason)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            number = int(probe.getsockname()[1])
    except OSError as error:
        raise CannotServe(_why(host, port, error)) from error
    if port and _answers(_ANY.get(host, host), port):
        # macOS permits binding one address of a port that another process holds on all addresses.
        raise CannotServe(f"port {port} on {host} is taken; choose another with --port")
    return number


def base_url(host: str, port: int) -> str:
    """Return the URL under which this machine reaches the service."""
    reachable = _ANY.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _why(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is taken; choose another with --port"
        case errno.EACCES:
            return f"port {port} needs rights that this user does not have; choose one above 1023"
        case _:
            return f"{host}:{port} is no address to listen on: {error.strerror}"
