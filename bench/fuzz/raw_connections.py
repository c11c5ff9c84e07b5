"""Bytes for raw connections, drawn by a seed: requests that are cut, changed, folded or no HTTP."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

_PATHS: Final = ("/v1/messages", "/v1/chat/completions", "/v1/jobs", "/health/live", "/%66", "*")
_LINES: Final = (
    b"content-length: -1",
    b"content-length: 5\r\ncontent-length: 6",
    b"transfer-encoding: chunked",
    b"transfer-encoding: gzip, chunked",
    b"expect: 100-continue",
    b"folded: a\r\n b",
    b"bare: a\nb: c",
    b"nul: \x00",
    b": no name",
    b"connection: upgrade",
    b"long: " + b"x" * 40_000,
)


def raw_connections(seed: int, count: int) -> Iterator[bytes]:
    """Yield what each connection sends; the same seed gives the same bytes."""
    chance = random.Random(seed)
    for _ in range(count):
        data = b"".join(_request(chance) for _ in range(chance.choice((1, 1, 1, 2, 5))))
        match chance.randrange(5):
            case 0:
                data = data[: chance.randrange(len(data))]
            case 1:
                place = chance.randrange(len(data))
                data = data[:place] + chance.randbytes(chance.choice((1, 4))) + data[place:]
            case 2:
                data = data.replace(b"\r\n", chance.choice((b"\n", b"\r", b"\r\r\n")), 1)
            case 3 if chance.random() < 0.3:
                data = chance.randbytes(chance.choice((1, 100, 70_000)))
            case _:
                pass
        yield data


def _request(chance: random.Random) -> bytes:
    method = chance.choice(("GET", "POST", "POST", "DELETE", "CONNECT", "get"))
    version = chance.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ""))
    body = chance.choice((b"", b"{}", b"[" * 500, chance.randbytes(50)))
    lines = [f"{method} {chance.choice(_PATHS)} {version}".encode(), b"host: localhost"]
    lines += chance.sample(_LINES, chance.choice((0, 0, 1, 2)))
    if body and chance.random() < 0.8:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join((*lines, b"", b"")) + body
