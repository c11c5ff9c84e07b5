"""Sends requests and raw bytes, each on a connection of its own, and judges the answers."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from api.errors import dialect_of
from api.http.messages import Dialect
from bench.fuzz.requests import FuzzRequest

#: Seconds without a byte after which a client leaves: an accepted generation may take longer, and
#: the service waits longer for the rest of raw bytes.
PATIENCE_S: Final = 20.0
RAW_PATIENCE_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 65_536
#: Statuses from 500 on with which raw bytes are refused: method or coding, busy, version.
REFUSALS: Final = frozenset({501, 503, 505})
_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d+)[ \r]")
#: What is a fault wherever it comes instead of a status.
_NO_REPLY: Final = frozenset({"unconnected", "no HTTP"})
_SERVER_FAILURE: Final = 500


def send(port: int, sent: FuzzRequest | bytes) -> tuple[str, str | None]:
    """Send one of both and return its status, or why there was none, and the service's fault."""
    if isinstance(sent, bytes):
        status, answer = _exchange(port, sent, RAW_PATIENCE_S, ends=True)
        what, status_shown, is_fault = "raw connection", f"raw {status}", status in _NO_REPLY
        if status.isdigit():
            is_fault = int(status) >= _SERVER_FAILURE and int(status) not in REFUSALS
        fault = f"{status} for {sent[:200]!r}: {answer[:100]!r}" if is_fault else None
    else:
        status, answer = _exchange(port, _encoded(sent), PATIENCE_S, ends=False)
        what, status_shown = _named(sent), status
        fault = None if status == "left" else f"{status}: {answer[:100]!r}"
        if status.isdigit():
            path = unquote(sent.target.partition("?")[0])
            fault = fault_of(path, int(status), sent.headers, answer.partition(_HEAD_END)[2])
    return status_shown, None if fault is None else f"{what} {fault}"


def _exchange(port: int, data: bytes, patience_s: float, *, ends: bool) -> tuple[str, bytes]:
    """Send and receive up to the end; of a success the head is enough.

    Args:
        port: Of the service, on loopback.
        data: All that is sent.
        patience_s: Seconds without a byte after which this side leaves.
        ends: Whether this side ends after it. The service takes that for a client that left.

    Returns:
        The status, or what came instead of one; and what was received, or the error.
    """
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), patience_s) as connection:
            # The service may refuse and close before all is sent; its answer is readable.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while len(answer) < ANSWER_BYTES_MAX and (piece := connection.recv(4096)):
                    answer += piece
                    if not ends and _HEAD_END in answer and answer[9:10] < b"4":
                        break
    except TimeoutError:
        if not answer:
            return ("closed" if ends else "left"), b""
    except OSError as error:
        return "unconnected", repr(error).encode()
    if not answer:
        return "closed", b""
    found = _STATUS.match(answer)
    return (found[1].decode() if found else "no HTTP"), answer


def _encoded(sent: FuzzRequest) -> bytes:
    more = {"host": "127.0.0.1", "connection": "close", "content-length": str(len(sent.body))}
    lines = (f"{name}: {value}" for name, value in {**sent.headers, **more}.items())
    head = "\r\n".join((f"{sent.method} {sent.target} HTTP/1.1", *lines, "", ""))
    return head.encode("latin-1") + sent.body


def _named(sent: FuzzRequest) -> str:
    return f"{sent.method} {sent.target[:80]} [{', '.join(sent.strokes)}]"


def fault_of(path: str, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Return why an answer is wrong, ``None`` if it is right.

    Wrong are server failures, and client errors without the typed body of their dialect.

    Args:
        path: Path of the request, decoded, without the query.
        status: Status of the answer.
        headers: Headers of the request.
        body: Body of the answer.
    """
    if status >= _SERVER_FAILURE:
        return f"status {status}: {body[:200]!r}"
    if status < 400:
        return None
    try:
        error: Any = json.loads(body)
        typed = _is_typed(error, dialect_of(path, headers), status)
    except (ValueError, LookupError, TypeError):
        typed = False
    return None if typed else f"status {status}, and no error of its dialect: {body[:200]!r}"


def _is_typed(error: Any, dialect: Dialect, status: int) -> bool:
    match dialect:
        case Dialect.ANTHROPIC:
            return error["type"] == "error" and bool(
                error["error"]["message"] and error["request_id"]
            )
        case Dialect.OPENAI:
            return bool(error["error"]["message"] and error["error"]["type"])
        case Dialect.OLLAMA:
            return bool(error["error"]) and isinstance(error["error"], str)
        case Dialect.NATIVE:
            return error["status"] == status and bool(error["detail"] and error["code"])
