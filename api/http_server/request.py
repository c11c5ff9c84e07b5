"""Requests: a strict parser, the bounds of a head, and the head that Robyn gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import h11
from h11._receivebuffer import ReceiveBuffer

from api.errors import TransportError, dialect_of
from api.http.messages import Dialect
from api.http_server.limits import BrokenFraming, ServerLimits

#: Most query parameters of one request; bounds the parser, beside the length of the head.
QUERY_FIELDS_MAX: Final = 1000

#: Names the exchange of a request that the shield hands to Robyn.
EXCHANGE_HEADER: Final = "x-semantic-exchange"
#: Names header fields of the client whose values are percent-encoded: Robyn drops values beyond
#: printable ASCII, and takes apart a body whose type it reads as that of a form.
ENCODED_HEADER: Final = "x-semantic-encoded"
#: Follows a body on its way to the handler, and is no part of it. Robyn makes text of a body that
#: is UTF-8, in which one character beyond the 16 bits takes four bytes for each; this is never.
BODY_MARK: Final = b"\xff"
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
_CONTINUE: Final = "100-continue"
#: A line that ends without CR LF (RFC 9112 §2.2), or is continued on the next one (§5.2). Parsers
#: do not agree on them, so a request could hide in another one.
_LAX_LINE: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\r\n[ \t]")
_END: Final = b"\r\n\r\n"
#: Code and message of the parser's errors by status. Its own message may repeat the client's bytes.
_PROTOCOL_ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    431: (
        "header_fields_too_large",
        "the request head, a chunk line or the trailers are too long",
    ),
    501: ("transfer_coding_not_supported", "the only transfer coding served is chunked"),
}


class _StrictBuffer(ReceiveBuffer):
    """Refuses lax lines of heads and trailers, which h11 accepts."""

    def __init__(self) -> None:
        super().__init__()
        self._examined = 0

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to the empty one, ``None`` before that has come.

        Raises:
            LocalProtocolError: A line ends without CR LF, or is folded.
        """
        if not self._data.startswith(b"\r\n"):
            # The end of what was examined may be the first part of a lax line.
            start = max(0, self._examined - len(_END))
            end = self._data.find(_END, start)
            until = len(self._data) if end < 0 else end + len(_END)
            if _LAX_LINE.search(self._data, start, until):
                raise h11.LocalProtocolError("a line is folded or does not end with CR LF")
            self._examined = until
        lines = super().maybe_extract_lines()
        if lines is not None:
            self._examined = 0
        return lines


def request_parser(head_bytes_max: int, behind: h11.Connection | None = None) -> h11.Connection:
    """Return the parser of one request.

    Args:
        head_bytes_max: Bytes of a head, of a chunk line and of trailers.
        behind: The parser of the request before, whose further bytes it takes over.
    """
    parser = h11.Connection(h11.SERVER, head_bytes_max)
    # h11 has no setting for it; its version is pinned, and a test sends such lines.
    parser._receive_buffer = _StrictBuffer()  # noqa: SLF001
    if behind is not None:
        data, is_ended = behind.trailing_data
        if data:
            parser.receive_data(data)
        if is_ended:
            parser.receive_data(b"")
    return parser


def protocol_error(error: h11.RemoteProtocolError) -> BrokenFraming:
    """Translate an error of the parser."""
    status = error.error_status_hint
    unknown = ("malformed_request", "the request is not well-formed HTTP/1.1")
    return BrokenFraming(status, *_PROTOCOL_ERRORS.get(status, unknown))


def guess_dialect(glimpse: bytes) -> Dialect:
    """Return the dialect of a client by the first bytes of a head that could not be parsed."""
    line = glimpse.split(b"\n", 1)[0].split()
    path = line[1].split(b"?", 1)[0].decode("latin-1") if len(line) > 1 else "/"
    is_anthropic = b"\nanthropic-version:" in glimpse.lower()
    return dialect_of(path, {"anthropic-version": ""} if is_anthropic else {})


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


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request.

    Attributes:
        method: Upper case where it is one of HTTP's.
        target: As sent.
        version: ``1.1`` or another one.
        headers: By lower-case name, repeated ones joined.
        fields: How many header fields were sent.
    """

    method: str
    target: str
    version: str
    headers: Mapping[str, str]
    fields: int

    @classmethod
    def of(cls, head: h11.Request) -> RequestHead:
        """Return what the parser has read."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return cls(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            version=head.http_version.decode("ascii"),
            headers=headers,
            fields=len(head.headers),
        )

    @property
    def path(self) -> str:
        """The path as sent, for the error format and the log."""
        return self.target.partition("?")[0]

    @property
    def dialect(self) -> Dialect:
        """The error format of the client."""
        return dialect_of(self.path, self.headers)

    @property
    def keeps_alive(self) -> bool:
        """Whether the client may send another request on its connection."""
        options = self.headers.get("connection", "").lower().split(",")
        return self.version == "1.1" and "close" not in (option.strip() for option in options)

    def check(self, limits: ServerLimits) -> None:
        """Refuse a request whose body cannot or must not be read.

        Raises:
            BrokenFraming: With the reason; the connection cannot be used further.
        """
        if self.version not in ("1.0", "1.1"):
            raise BrokenFraming(
                505, "version_not_supported", "only HTTP/1.0 and HTTP/1.1 are served"
            )
        if self.method == "CONNECT":
            # The bytes after it are not HTTP.
            raise BrokenFraming(501, "method_not_supported", "this server is no proxy")
        if self.method == "GET" and self._asks_for_websocket():
            # Codex goes on by HTTP at once after this status, and after others only after retries.
            message = "no route is served over WebSocket; use HTTP with server-sent events"
            raise BrokenFraming(
                426, "websocket_not_served", message, headers={"upgrade": "HTTP/1.1"}
            )
        if self.fields > limits.headers_max:
            message = f"there are more than {limits.headers_max} header fields"
            raise BrokenFraming(431, "too_many_headers", message)
        fields_bytes = sum(len(name) + len(value) for name, value in self.headers.items())
        if len(self.target) + fields_bytes > limits.head_bytes_max:
            raise head_too_large(limits.head_bytes_max)
        self._check_body(self.body_limit(limits))

    def _asks_for_websocket(self) -> bool:
        wanted = self.headers.get("upgrade", "").lower().split(",")
        return "websocket" in (one.partition("/")[0].strip() for one in wanted)

    def _check_body(self, limit_bytes: int) -> None:
        length, coding = (
            self.headers.get(name) for name in ("content-length", "transfer-encoding")
        )
        if coding is not None and length is not None:
            # Two lengths allow request smuggling (RFC 9112 §6.1).
            message = "content-length and transfer-encoding exclude each other"
            raise BrokenFraming(400, "ambiguous_length", message)
        if coding is not None and self.version == "1.0":
            raise BrokenFraming(400, "malformed_request", "HTTP/1.0 has no transfer codings")
        if int(length or 0) > limit_bytes:
            raise body_too_large(limit_bytes)
        if self.headers.get("expect", _CONTINUE).lower() != _CONTINUE:
            message = "the only expectation met is 100-continue"
            raise BrokenFraming(417, "expectation_failed", message)

    def body_limit(self, limits: ServerLimits) -> int:
        """Return the most bytes of the body; only uploads may be large."""
        length = int(self.headers.get("content-length", 0))
        if length <= limits.request_bytes_max and "transfer-encoding" not in self.headers:
            return limits.request_bytes_max
        try:
            path = read_target(self.target).route_path
        except TransportError:
            return limits.request_bytes_max
        is_upload = path in limits.upload_paths
        return limits.body_bytes_max if is_upload else limits.request_bytes_max

    def forwarded(self, target: RequestTarget, limits: ServerLimits, *, exchange: str) -> list[str]:
        """Return the lines that Robyn gets, without the length of the body.

        Raises:
            BrokenFraming: They are too long.
        """
        lines = [f"{self.method} {target.forwarded} HTTP/1.1", f"{EXCHANGE_HEADER}: {exchange}"]
        encoded = []
        for name, value in self.headers.items():
            if name in _NOT_FORWARDED:
                continue
            if _PLAIN.fullmatch(value):
                lines.append(f"{name}: {value}")
            else:
                encoded.append(name)
                lines.append(f"{name}: {quote(value.encode('latin-1'), safe='')}")
        if "host" not in self.headers:
            lines.append("host: -")
        if encoded:
            lines.append(f"{ENCODED_HEADER}: {','.join(encoded)}")
        if sum(map(len, lines)) > limits.robyn_head_bytes_max:
            raise head_too_large(limits.robyn_head_bytes_max)
        return lines


def too_slow(part: str, limit_s: float) -> BrokenFraming:
    """The head or the body took longer than the limit."""
    message = f"the request {part} took longer than {limit_s:g} s"
    return BrokenFraming(408, f"{part}_timeout", message, retryable=True)


def head_too_large(limit_bytes: int) -> BrokenFraming:
    """The head is longer than the limit."""
    message = f"the request head is longer than {limit_bytes} bytes"
    return BrokenFraming(431, "header_fields_too_large", message)


def body_too_large(limit_bytes: int) -> BrokenFraming:
    """The body is longer than the limit."""
    message = f"the request body is longer than {limit_bytes} bytes"
    return BrokenFraming(413, "request_too_large", message)


def read_target(raw: str) -> RequestTarget:
    """Decode a request target, in origin, absolute or asterisk form.

    Raises:
        TransportError: 400 if it cannot be decoded.
    """
    try:
        path, raw_query = _split_target(raw)
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
