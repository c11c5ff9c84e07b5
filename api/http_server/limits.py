"""What the gate lets through, each bound with a name and a unit."""

from __future__ import annotations

from dataclasses import dataclass

from ops.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds on a connection, a request and an answer.

    Attributes:
        head_bytes_max: Request line and header fields together; also each chunk line and trailer.
        headers_max: Header fields of one request.
        body_bytes_max: One request body, after chunks are joined.
        head_timeout_s: From the first byte of a head to its last.
        body_timeout_s: From the end of the head to the end of the body.
        idle_timeout_s: Without a byte between two requests.
        connections_max: Client connections that are served.
        refusals_max: Connections beyond ``connections_max`` that are still told so with a 503;
            past these a connection is dropped without a word.
        stall_timeout_s: How long a client may take no byte of an answer.
        write_buffer_bytes: Unsent bytes of an answer, above which its source has to wait.
        turn_bytes: Bytes of one answer written before the other connections get their turn.
        linger_s: How long bytes are still read and dropped after an early error, so that the
            client can read the answer before the connection resets.
        linger_bytes_max: How many bytes are dropped that way.
        close_timeout_s: How long a closed connection may take to send what is written, and an
            answer's iterator to clean up.
        upstream_connect_timeout_s: To reach the framework behind the gate.
        upstream_idle_max: Connections to the framework that are kept for the next request.
    """

    head_bytes_max: int = 32_768
    headers_max: int = 100
    body_bytes_max: int = 32 * 1024 * 1024
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    connections_max: int = 2048
    refusals_max: int = 64
    stall_timeout_s: float = 600.0
    write_buffer_bytes: int = 65_536
    turn_bytes: int = 32_768
    linger_s: float = 2.0
    linger_bytes_max: int = 64 * 1024 * 1024
    close_timeout_s: float = 5.0
    upstream_connect_timeout_s: float = 5.0
    upstream_idle_max: int = 64

    @classmethod
    def from_settings(cls, settings: ServerSettings) -> ServerLimits:
        """Take what operators may set; the rest keeps its default."""
        return cls(
            head_bytes_max=settings.head_bytes_max,
            body_bytes_max=settings.body_bytes_max,
            head_timeout_s=settings.head_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            connections_max=settings.connections_max,
        )
