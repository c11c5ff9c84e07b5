"""Turns a parsed request head into plain values, or refuses it, and writes the one for Robyn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import h11

from api.errors import TransportError
from api.http_server.errors import BrokenFraming, body_too_large, head_too_large, too_many_headers
from api.http_server.limits import ServerLimits

#: Most query parameters of one request; bounds the parser, beside the length of the head.
QUERY_FIELDS_MAX: Final = 1000

#: Names the exchange of a request that the shield hands to Robyn.
EXCHANGE_HEADER: Final = "x-semantic-exchange"
#: Names header fields of the client whose values are percent-encoded: Robyn drops values beyond
#: printable ASCII, and takes apart a body whose type it reads as that of a form.
ENCODED_HEADER: Final = "x-semantic-encoded"
#: Fields that concern the client's connection, or that only the shield may send.
_NOT_FORWARDED: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        EXCHANGE_HEADER,
        ENCODED_HEADER,
    }
)
_PLAIN: Final = re.compile(r"(?!.*multipart/)[\t -~]*", re.IGNORECASE)
_VERSIONS: Final = (b"1.0", b"1.1")
_CONTINUE: Final = b"100-continue"
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"expect"})


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The decoded request target.

    Attributes:
        path: Percent-decoded.
        route_path: Each segment decoded and encoded again, so that every spelling of a path has
            the same route, and only unreserved bytes reach Robyn.
        query: Decoded values by name, in order.
    """

    path: str
    route_path: str
    query: Mapping[str, Sequence[str]]

    @property
    def forwarded(self) -> str:
        """The target that Robyn gets, in the only spelling of path and query."""
        query = urlencode(self.query, doseq=True)
        return f"{self.route_path}?{query}" if query else self.route_path


def check_framing(head: h11.Request, limits: ServerLimits) -> None:
    """Refuse a head whose body cannot or must not be read.

    Raises:
        BrokenFraming: With the reason; the connection cannot be used further.
    """
    if head.http_version not in _VERSIONS:
        raise BrokenFraming(505, "version_not_supported", "only HTTP/1.0 and HTTP/1.1 are served")
    if head.method == b"CONNECT":
        # The bytes after it are not HTTP.
        raise BrokenFraming(501, "method_not_supported", "this server is no proxy")
    if len(head.headers) > limits.headers_max:
        raise too_many_headers(limits.headers_max)
    head_bytes = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
    if head_bytes > limits.head_bytes_max:
        raise head_too_large(limits.head_bytes_max)
    _check_body(head, limits)


def _check_body(head: h11.Request, limits: ServerLimits) -> None:
    framing = {name: value for name, value in head.headers if name in _FRAMING}
    if b"content-length" in framing and b"transfer-encoding" in framing:
        # Two lengths allow request smuggling (RFC 9112 §6.1).
        raise BrokenFraming(
            400, "ambiguous_length", "content-length and transfer-encoding exclude each other"
        )
    if b"transfer-encoding" in framing and head.http_version == b"1.0":
        raise BrokenFraming(400, "malformed_request", "HTTP/1.0 has no transfer codings")
    limit_bytes = body_limit(head, limits)
    if int(framing.get(b"content-length", b"0")) > limit_bytes:
        raise body_too_large(limit_bytes)
    if framing.get(b"expect", _CONTINUE).lower() != _CONTINUE:
        raise BrokenFraming(417, "expectation_failed", "the only expectation met is 100-continue")


def body_limit(head: h11.Request, limits: ServerLimits) -> int:
    """Return the most bytes of a request's body; only uploads may be large."""
    try:
        path = read_target(head.target).route_path
    except TransportError:
        return limits.request_bytes_max
    is_upload = path in limits.upload_paths
    return limits.body_bytes_max if is_upload else limits.request_bytes_max


def read_headers(head: h11.Request) -> dict[str, str]:
    """Return the header fields by lower-case name, repeated ones joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def keeps_alive(head: h11.Request, headers: Mapping[str, str]) -> bool:
    """Return whether the client may send another request on its connection."""
    options = headers.get("connection", "").lower().split(",")
    return head.http_version == b"1.1" and "close" not in (option.strip() for option in options)


def forwarded_head(
    method: str, target: RequestTarget, headers: Mapping[str, str], *, exchange: str, length: int
) -> bytes:
    """Return the head that Robyn gets.

    Args:
        method: Upper case.
        target: Where to.
        headers: Of the client, by lower-case name.
        exchange: The value of ``EXCHANGE_HEADER``.
        length: Bytes of the body.
    """
    lines = [f"{method} {target.forwarded} HTTP/1.1", f"{EXCHANGE_HEADER}: {exchange}"]
    encoded = []
    for name, value in headers.items():
        if name in _NOT_FORWARDED:
            continue
        if _PLAIN.fullmatch(value):
            lines.append(f"{name}: {value}")
        else:
            encoded.append(name)
            lines.append(f"{name}: {quote(value.encode('latin-1'), safe='')}")
    if "host" not in headers:
        lines.append("host: -")
    if encoded:
        lines.append(f"{ENCODED_HEADER}: {','.join(encoded)}")
    lines += [f"content-length: {length}", "", ""]
    return "\r\n".join(lines).encode("ascii")


def read_target(raw: bytes) -> RequestTarget:
    """Decode a request target, in origin, absolute or asterisk form.

    Raises:
        TransportError: 400 if it cannot be decoded.
    """
    try:
        path, raw_query = _split_target(raw.decode("ascii"))
        segments = [unquote(segment, errors="strict") for segment in path.split("/")]
        query: dict[str, list[str]] = {}
        for name, value in parse_qsl(
            raw_query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        ):
            query.setdefault(name, []).append(value)
    except ValueError as error:
        # UnicodeDecodeError is one; others come from urlsplit and from parse_qsl's bound.
        raise TransportError(
            400, "malformed_target", "the request target cannot be decoded"
        ) from error
    encoded = "/".join(quote(segment, safe="") for segment in segments)
    return RequestTarget(
        path="/".join(segments) or "/", route_path=encoded.rstrip("/") or "/", query=query
    )


def _split_target(target: str) -> tuple[str, str]:
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query
    parts = urlsplit(target)
    return parts.path or "/", parts.query


def path_of(head: h11.Request) -> str:
    """Return the path as sent, for the error format and the log."""
    return head.target.split(b"?", 1)[0].decode("ascii")
