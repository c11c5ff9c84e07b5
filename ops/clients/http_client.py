"""A small HTTP client on the standard library, so that a command starts in a fraction of a second.

Each request has its own connection to the service; proxies of the environment are not used.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

#: Time limit of a connection and of each read of a reply, in seconds.
CONNECT_S, ANSWER_S = 5.0, 60.0
HTTP_NOT_FOUND: Final = 404
_HTTP_ERRORS_FROM: Final = 400
_PIECE_BYTES: Final = 65_536


class Unreachable(Exception):
    """The service does not answer, or the connection broke."""


class Refused(Exception):
    """The service answered with an error.

    Attributes:
        body: The JSON object of the reply; empty if it has none.
    """

    def __init__(self, status: int, phrase: str, body: dict[str, Any]) -> None:
        super().__init__(f"{_message(body) or phrase} ({status})")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadBody:
    """A body that is sent in pieces."""

    content_type: str
    size_bytes: int
    pieces: Iterable[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Sends requests to one service.

    Attributes:
        base_url: ``http://host:port``.
        answer_s: Time limit of each read of a reply, in seconds.
    """

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = ANSWER_S

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        json: object = None,
        upload: UploadBody | None = None,
        timeout_s: float | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON answer to a request.

        Raises:
            Refused: The service answered with an error.
            Unreachable: The service does not answer.
            ValueError: The answer is no JSON.
        """
        target = path if not params else f"{path}?{urlencode(params)}"
        with self._reply(method, target, _body(json, upload), timeout_s=timeout_s) as reply:
            with _connection_errors():
                content = reply.read()
            return jsonlib.loads(content)

    @contextmanager
    def lines(
        self, path: str, *, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[Iterator[str]]:
        """Yield the lines of a streamed reply as they come.

        Raises:
            Refused: The service answered with an error.
            Unreachable: The service does not answer, or the stream broke off.
        """
        with self.pieces(path, headers=headers, timeout_s=timeout_s, by_line=True) as pieces:
            yield (piece.decode().rstrip("\r\n") for piece in pieces)

    @contextmanager
    def pieces(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        by_line: bool = False,
    ) -> Iterator[Iterator[bytes]]:
        """Yield the bytes of a reply in pieces, as ``lines`` does."""
        with self._reply("GET", path, None, headers=headers, timeout_s=timeout_s) as reply:
            yield _pieces(reply, reply.readline if by_line else partial(reply.read, _PIECE_BYTES))

    @contextmanager
    def _reply(
        self,
        method: str,
        target: str,
        body: UploadBody | None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[HTTPResponse]:
        parts = urlsplit(self.base_url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_S)
        sent = {**self.headers, **(headers or {})}
        if body is not None:
            sent |= {"content-type": body.content_type, "content-length": str(body.size_bytes)}
        try:
            with _connection_errors():
                connection.connect()
                connection.sock.settimeout(self.answer_s if timeout_s is None else timeout_s)
                pieces = None if body is None else body.pieces
                connection.request(method, parts.path + target, pieces, sent)
                reply = connection.getresponse()
                if reply.status >= _HTTP_ERRORS_FROM:
                    raise Refused(reply.status, reply.reason, _object(reply.read()))
            yield reply
        finally:
            connection.close()


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise ``Unreachable`` for errors of the connection."""
    try:
        yield
    except (OSError, HTTPException) as error:
        raise Unreachable(str(error)) from error


def _body(json: object, upload: UploadBody | None) -> UploadBody | None:
    if json is None:
        return upload
    content = jsonlib.dumps(json, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return UploadBody(content_type="application/json", size_bytes=len(content), pieces=[content])


def _pieces(reply: HTTPResponse, read: Callable[[], bytes]) -> Iterator[bytes]:
    while True:
        with _connection_errors():
            piece = read()
        if not piece:
            break
        yield piece
    if reply.length:
        raise Unreachable(f"{reply.length} bytes of the reply are missing")


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = jsonlib.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(body: dict[str, Any]) -> str | None:
    """Return the error message of a reply, in any dialect."""
    error = body.get("error")
    return body.get("detail") or (error.get("message") if isinstance(error, dict) else None)
