"""Bounds of connections, requests and replies, each with a name and a unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of a connection, a request and a reply.

    Attributes:
        head_bytes_max: Request line and header fields together; also each chunk line and trailer.
        headers_max: Header fields of one request; Robyn takes 96, and the shield adds some.
        body_bytes_max: One upload, after chunks are joined.
        request_bytes_max: One body of any other request.
        bodies_bytes_max: All bodies that are held.
        upload_paths: Encoded paths that take uploads.
        head_timeout_s: From the first byte of a head to its last.
        body_timeout_s: From the end of the head to the end of the body.
        idle_timeout_s: Without a byte between two requests.
        connections_max: Client connections that are served.
        loopback_connections_max: Those of them from this machine.
        peer_connections_max: Those of them from the address of another machine.
        refusals_max: Connections beyond one of these that get an error; further ones are dropped
            without a reply.
        stall_timeout_s: How long a client may take no byte of a reply.
        write_buffer_bytes: Unsent bytes of a reply above which its source has to wait.
        stream_window_bytes: Bytes of a stream that are on their way from its source to the client
            at once.
        linger_s: How long bytes are read and dropped after an early error, so that the client can
            read the reply before the connection resets.
        linger_bytes_max: How many bytes are dropped that way.
        close_timeout_s: How long the iterator of a stream may take to clean up.
        robyn_connect_timeout_s: Time to connect to Robyn.
        robyn_head_bytes_max: Of a head as Robyn gets it; it cuts connections from 128 KiB on.
    """

    head_bytes_max: int = 32_768
    headers_max: int = 90
    body_bytes_max: int = 32 * 1024 * 1024
    request_bytes_max: int = 8 * 1024 * 1024
    bodies_bytes_max: int = 256 * 1024 * 1024
    upload_paths: frozenset[str] = frozenset()
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    connections_max: int = 2048
    loopback_connections_max: int = 1920
    peer_connections_max: int = 256
    refusals_max: int = 64
    stall_timeout_s: float = 600.0
    write_buffer_bytes: int = 65_536
    stream_window_bytes: int = 65_536
    linger_s: float = 2.0
    linger_bytes_max: int = 64 * 1024 * 1024
    close_timeout_s: float = 5.0
    robyn_connect_timeout_s: float = 5.0
    robyn_head_bytes_max: int = 120_000
