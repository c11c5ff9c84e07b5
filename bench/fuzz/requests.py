"""Slightly invalid requests of the OpenAPI document, and bytes that are no request; by a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from api.http.operation import Operation, Place
from api.operations import OPERATIONS

#: Levels of bodies that are nested too deep.
DEPTHS: Final = (65, 1000, 100_000)
LONG_CHARS: Final = 200_000
MANY_ITEMS: Final = 5000
#: Longest repeated list, in characters of JSON: above the limit of every route.
REPEATED_CHARS_MAX: Final = 80_000_000
#: Digits of integers beyond 64 bits, and beyond what the interpreter converts.
DIGITS: Final = (20, 400, 5000)

_HOLE: Final = "\u2603hole"
_HOLE_JSON = re.compile(r'"(?:\u2603|\\u2603)hole(\d+)"')
_PARAMETER = re.compile(r"\{(\w+)\}")
_NOTHING_THERE: Final[Mapping[str, str]] = {
    "job_id": "job-" + "0" * 32,
    "webhook_id": "webhook-" + "0" * 32,
    "batch_id": "batch_" + "0" * 32,
    "file_id": "file-" + "0" * 32,
    "model_id": "semantic-demo",
}
_STRANGE: Final = ("", "%00", "..", "a" * 3000, "\u00e4\u2603", "'; --", "{}", "-1", "%ff")


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzRequest:
    """One request.

    Attributes:
        method: HTTP method.
        target: Path and query, percent-encoded.
        headers: Headers besides host and length.
        strokes: The changes that made it invalid, for a report.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    strokes: tuple[str, ...]


def fuzz_requests(seed: int, count: int) -> Iterator[FuzzRequest]:
    """Yield requests; the same seed gives the same ones."""
    chance = random.Random(seed)
    safe = [operation for operation in OPERATIONS if not operation.stops_work]
    operations = sorted(safe, key=lambda operation: (operation.method, operation.path))
    with_body = [operation for operation in operations if operation.body is not None]
    for _ in range(count):
        # Most faults are in routes that parse a body.
        yield _one(chance, chance.choice(with_body if chance.random() < 0.75 else operations))


def _one(chance: random.Random, operation: Operation) -> FuzzRequest:
    strokes: list[str] = []
    body = b"" if operation.method == "GET" else _body(chance, operation, strokes)
    target = _path(chance, operation.path, strokes) + _query(chance, operation, strokes)
    return FuzzRequest(
        method=operation.method,
        target=target,
        headers=_headers(chance, operation, strokes),
        body=body,
        strokes=tuple(strokes),
    )


def _body(chance: random.Random, operation: Operation, strokes: list[str]) -> bytes:
    holes: list[str] = []
    value = deepcopy(_example(chance, operation))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        value = _stroke(chance, value, holes, strokes)
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    text = _HOLE_JSON.sub(lambda found: holes[int(found[1])], text)
    body = text.encode("utf-8", "surrogatepass")
    if operation.body_media.startswith("multipart/") and chance.random() < 0.7:
        body = _form(body)
    if chance.random() < 0.3:
        name = chance.choice(sorted(_SPOILERS))
        strokes.append(name)
        body = _SPOILERS[name](chance, body)
    return body


def _example(chance: random.Random, operation: Operation) -> Any:
    if operation.example is None:
        return {}
    example = dict(operation.example)
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    richer: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 7,
        "stop": ["x"],
        "stop_sequences": ["x"],
        "stream": False,
        "n": 2,
        "best_of": 2,
        "echo": True,
        "suffix": "x",
        "system": "Be brief.",
        "tools": [tool | {"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "start_within_s": 30,
        "finish_within_s": 60.5,
        "agent_id": "a",
        "session_id": "a",
        "webhook": {"url": "http://192.0.2.1/hook"},
    }
    for name in chance.sample(sorted(richer), chance.randrange(0, 6)):
        example[name] = richer[name]
    if "max_tokens" not in example and "messages" in example:
        example["max_tokens"] = 2
    return example


def _stroke(
    chance: random.Random,
    value: Any,
    holes: list[str],
    strokes: list[str],
) -> Any:
    """Change one place of a value."""
    places = list(_places(value))
    if not places or chance.random() < 0.03:
        strokes.append("root replaced")
        return _junk(chance, holes)
    parent, key = chance.choice(places)
    match chance.randrange(6):
        case 0:
            strokes.append(f"{key} removed")
            del parent[key]
        case 1 if isinstance(parent, dict):
            strokes.append("unknown key")
            parent[chance.choice(("zzz", "", "\u0000", "__proto__"))] = _junk(chance, holes)
        case 2 if isinstance(parent[key], list):
            strokes.append(f"{key} repeated")
            count = chance.choice((0, 2, MANY_ITEMS))
            fits = count * len(json.dumps(parent[key])) <= REPEATED_CHARS_MAX
            parent[key] = parent[key] * (count if fits else 2)
        case 3:
            strokes.append(f"{key} wrapped")
            parent[key] = chance.choice(([parent[key]], {"type": parent[key]}, [[parent[key]]]))
        case _:
            strokes.append(f"{key} replaced")
            parent[key] = _junk(chance, holes)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container with each of its keys or indices."""
    pairs: list[tuple[Any, Any]]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value[:20]))
    else:
        return
    for key, inner in pairs:
        yield value, key
        yield from _places(inner)


def _junk(chance: random.Random, holes: list[str]) -> Any:
    plain = (None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**31, 2**63 - 1, 2**63, -(2**63) - 1)
    texts = ("", " ", "\u0000", "\ud800", "\U0001f600", "\u202e", "null", "a" * LONG_CHARS)
    shapes: tuple[Any, ...] = ([], {}, [None], {"": None}, {"type": "text"}, [[]], {"type": []})
    match chance.randrange(8):
        case 0 | 1 | 2:
            return chance.choice(plain)
        case 3 | 4:
            return chance.choice(texts)
        case 5 | 6:
            return deepcopy(chance.choice(shapes))
        case _:
            return _hole(holes, chance.choice(_RAW)(chance))


def _hole(holes: list[str], raw: str) -> str:
    """Put a placeholder for text that no JSON value encodes to."""
    holes.append(raw)
    return f"{_HOLE}{len(holes) - 1}"


def _deep(chance: random.Random) -> str:
    depth = chance.choice(DEPTHS)
    return chance.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))


def _digits(chance: random.Random) -> str:
    return chance.choice(("", "-")) + "9" * chance.choice(DIGITS)


_RAW: Final[tuple[Callable[[random.Random], str], ...]] = (
    _deep,
    _digits,
    lambda _: "NaN",
    lambda _: "-Infinity",
    lambda _: "1e999",
    lambda _: "01",
    lambda _: '{"a":1,"a":2}',
    lambda _: '"\\ud83d"',
    lambda _: "'x'",
    lambda _: "",
)


def _cut(chance: random.Random, body: bytes) -> bytes:
    return body[: chance.randrange(len(body) + 1)]


def _flip(chance: random.Random, body: bytes) -> bytes:
    if not body:
        return b"\xff"
    place = chance.randrange(len(body))
    return body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :]


_SPOILERS: Final[Mapping[str, Callable[[random.Random, bytes], bytes]]] = {
    "cut": _cut,
    "byte changed": _flip,
    "byte order mark": lambda _, body: b"\xef\xbb\xbf" + body,
    "two values": lambda _, body: body + body,
    "key twice": lambda _, body: body.replace(b"{", b'{"model":1,"model":2,', 1),
    "not UTF-8": lambda _, body: body.replace(b"a", b"\xc3\x28", 1) + b"\xff",
    "UTF-16": lambda _, body: body.decode("utf-8", "replace").encode("utf-16"),
    "empty": lambda _, body: body[:0],
    "only space": lambda _, body: b" " * (len(body) + 1),
    "padded": lambda _, body: body + b" " * LONG_CHARS,
    "random bytes": lambda chance, _: chance.randbytes(200),
}


def _form(content: bytes) -> bytes:
    fields = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    return fields + file + content + b"\r\n--b--\r\n"


def _path(chance: random.Random, pattern: str, strokes: list[str]) -> str:
    def value(found: re.Match[str]) -> str:
        if chance.random() < 0.8:
            return _NOTHING_THERE.get(found[1], "x")
        strokes.append(f"path {found[1]}")
        return quote(chance.choice(_STRANGE), safe="%")

    return _PARAMETER.sub(value, pattern)


def _query(chance: random.Random, operation: Operation, strokes: list[str]) -> str:
    names = [one.name for one in operation.parameters if one.place is Place.QUERY]
    if not names or chance.random() < 0.4:
        return ""
    chosen = chance.sample(names, chance.randrange(1, len(names) + 1))
    strokes.append(f"query {', '.join(chosen)}")
    pairs = [f"{name}={quote(chance.choice(_STRANGE), safe='%')}" for name in chosen]
    return "?" + "&".join(pairs * chance.choice((1, 1, 2)))


def _headers(chance: random.Random, operation: Operation, strokes: list[str]) -> dict[str, str]:
    media = operation.body_media
    headers = {"content-type": media + ("; boundary=b" if media.startswith("multipart/") else "")}
    if chance.random() < 0.15:
        strokes.append("content-type")
        headers["content-type"] = chance.choice(
            ("text/plain", "", "multipart/form-data", "application/xml; charset=utf-16", "/", ";=")
        )
    strange = {
        "idempotency-key": ("", "\u00ff", "a" * 300, "k"),
        "prefer": ("wait=-1", "wait=99999999999", "wait", ",,;=", "wait=0"),
        "last-event-id": ("-1", "x", "1-2", "9" * 30),
        "anthropic-version": ("2023-06-01", "", "\u00ff"),
        "content-encoding": ("gzip", "identity"),
        "x-stainless-retry-count": ("1", "x", "9" * 30),
        "x-claude-code-session-id": ("", "a b", "\u00ff", "s"),
        "webhook-id": ("",),
    }
    for name, values in strange.items():
        if chance.random() < 0.04:
            strokes.append(name)
            headers[name] = chance.choice(values)
    return headers


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
