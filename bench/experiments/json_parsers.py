"""Which JSON parser holds the interpreter's lock for how long, and what do the bounds refuse?

``python -m bench.experiments.json_parsers`` prints one row for each body and parser. *held* is the
processor time of the parser between two turns of another thread: for so long no stream of the api
goes on. It does not depend on other load of the machine.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from api.http.json_body import load_json
from api.http.json_bounds import REQUEST
from api.schemas.anthropic import MessagesBody
from api.schemas.base import parse_body
from bench.experiments.report import print_conditions, print_table
from domain.errors import InvalidRequest

SIZE_BYTES: Final = 8 * 2**20
#: Messages of which a request is almost as large as it may be.
MESSAGES_MAX: Final = REQUEST.containers_max - 10
TURN_S: Final = 0.0005
#: Parsers by module and function; those that are not installed are left out.
PARSERS: Final = (
    ("json", "loads"),
    ("orjson", "loads"),
    ("msgspec.json", "decode"),
    ("jiter", "from_json"),
    ("pydantic_core", "from_json"),
)


def bodies() -> Mapping[str, bytes]:
    """Return bodies of some 8 MB, by what they repeat."""
    prose = {"role": "user", "content": "A line of prose, with a comma. " * 320}
    turn = {"role": "user", "content": "x"}
    return {
        "prose": _request(json.dumps(prose).encode()),
        "short messages": _request(json.dumps(turn).encode()),
        "the same, as many as pass": _request(json.dumps(turn).encode(), MESSAGES_MAX),
        "`[]`": _request(b"[]"),
        "`{}`": _request(b"{}"),
        "`0`": _request(b"0"),
        '`"k":0`': b"{"
        + b",".join(b'"k%d":0' % number for number in range(SIZE_BYTES // 11))
        + b"}",
    }


def _request(message: bytes, count_max: int = SIZE_BYTES) -> bytes:
    messages = b",".join([message] * min(count_max, SIZE_BYTES // (len(message) + 1)))
    return b'{"model":"m","max_tokens":1,"messages":[' + messages + b"]}"


def measure(work: Callable[[], Any]) -> tuple[float, float, str]:
    """Return the processor time of ``work``, the longest part without a turn, and its result."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    ended, held_s = threading.Event(), [0.0]

    def take_turns() -> None:
        last_s = time.clock_gettime(clock)
        while not ended.wait(TURN_S):
            now_s = time.clock_gettime(clock)
            held_s.append(now_s - last_s)
            last_s = now_s

    other = threading.Thread(target=take_turns)
    other.start()
    started_s = time.thread_time()
    try:
        work()
        result = "parsed"
    except InvalidRequest:
        result = "refused"
    took_s = time.thread_time() - started_s
    ended.set()
    other.join()
    return took_s, max(held_s), result


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield what was repeated, the parser, its time, how long it held the lock, and the result."""
    parsers: dict[str, Callable[[bytes], Any]] = {}
    for module, function in PARSERS:
        try:
            parsers[module] = getattr(importlib.import_module(module), function)
        except ImportError:
            continue
    parsers["`load_json`"] = load_json
    parsers["`parse_body`"] = lambda body: parse_body(MessagesBody, body)
    for name, body in bodies().items():
        for parser, parse in parsers.items():
            took_s, held_s, result = measure(lambda parse=parse, body=body: parse(body))  # type: ignore[misc]
            yield name, parser, f"{took_s * 1000:.0f}", f"{held_s * 1000:.0f}", result


def main() -> int:
    """Print the table; return the exit code."""
    started_s = time.monotonic()
    print_table(("8 MB of", "parser", ">ms", ">held, ms", "result"), rows())
    print_conditions(started_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
