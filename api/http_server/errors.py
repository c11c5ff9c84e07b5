"""Errors of requests that cannot be read, before their meaning counts."""

from __future__ import annotations

import h11

from api.errors import TransportError, dialect_of
from api.http.messages import Dialect


class BrokenFraming(TransportError):
    """A request whose end is unknown: the connection closes after the reply."""


def protocol_error(error: h11.RemoteProtocolError) -> BrokenFraming:
    """Translate an error of the parser."""
    status = error.error_status_hint
    codes = {431: "header_fields_too_large", 501: "transfer_coding_not_supported"}
    messages = {
        431: "the request head, a chunk line or the trailers are too long",
        501: "the only transfer coding served is chunked",
    }
    # The parser's own message may repeat bytes of the client, so only its kind is reported.
    return BrokenFraming(
        status,
        codes.get(status, "malformed_request"),
        messages.get(status, "the request is not well-formed HTTP/1.1"),
    )


def head_too_large(limit_bytes: int) -> BrokenFraming:
    """The head is longer than the limit."""
    return BrokenFraming(
        431, "header_fields_too_large", f"the request head is longer than {limit_bytes} bytes"
    )


def too_many_headers(limit: int) -> BrokenFraming:
    """There are more header fields than the limit."""
    return BrokenFraming(431, "too_many_headers", f"there are more than {limit} header fields")


def body_too_large(limit_bytes: int) -> BrokenFraming:
    """The body is longer than the limit."""
    return BrokenFraming(
        413, "request_too_large", f"the request body is longer than {limit_bytes} bytes"
    )


def head_timeout(limit_s: float) -> BrokenFraming:
    """The head did not arrive in time."""
    return BrokenFraming(
        408, "head_timeout", f"the request head took longer than {limit_s:g} s", retryable=True
    )


def body_timeout(limit_s: float) -> BrokenFraming:
    """The body did not arrive in time."""
    return BrokenFraming(
        408, "body_timeout", f"the request body took longer than {limit_s:g} s", retryable=True
    )


def too_many_connections(limit: int) -> BrokenFraming:
    """The server has as many connections as it may."""
    return BrokenFraming(
        503, "too_many_connections", f"{limit} connections are open already", retryable=True
    )


def too_many_of_peer(limit: int) -> BrokenFraming:
    """The address of the client has as many connections as it may."""
    return BrokenFraming(
        429,
        "too_many_connections_of_peer",
        f"{limit} connections from this address are open already",
        retryable=True,
    )


def too_many_bodies(limit_bytes: int) -> BrokenFraming:
    """The process holds as many bytes of request bodies as it may."""
    return BrokenFraming(
        503,
        "too_many_bodies",
        f"the bodies of other requests take the {limit_bytes} bytes for all; repeat the request",
        retryable=True,
    )


def too_many_bodies_of_one(limit_bytes: int) -> BrokenFraming:
    """The bodies of one key or address take as much as they may."""
    return BrokenFraming(
        429,
        "too_many_bodies_of_one",
        f"the bodies of your key or address take the {limit_bytes} bytes that it may have at once;"
        " repeat the request",
        retryable=True,
    )


def guess_dialect(glimpse: bytes) -> Dialect:
    """Return the dialect of a client by the first bytes of a head that could not be parsed."""
    line = glimpse.split(b"\n", 1)[0].split()
    path = line[1].split(b"?", 1)[0].decode("latin-1") if len(line) > 1 else "/"
    is_anthropic = b"\nanthropic-version:" in glimpse.lower()
    return dialect_of(path, {"anthropic-version": ""} if is_anthropic else {})
