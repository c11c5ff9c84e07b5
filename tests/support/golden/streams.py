"""Answers as items, and the golden files with their bytes on the wire."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx2

from domain.chat.items import (
    Body,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.values import JobId

FIXTURES: Final = Path(__file__).parents[2] / "fixtures"
JOB: Final = JobId("job-" + "0123456789abcdef" * 2)
STARTED: Final = Started(prompt_tokens=1200, cached_tokens=1100)
TEXT: Final[Sequence[Body]] = (Text(text="Hello", ids=(1,)), Text(text=", wörld\n", ids=(2,)))
THOUGHT: Final[Sequence[Body]] = (
    Thinking(text="Let me ", ids=(1,)),
    Thinking(text="look.", ids=(2,)),
)
#: A signature that carries its text; the deflated bytes depend on the version of zlib.
_CARRIED: Final = re.compile(rb"(s1\.[0-9a-f]+-\d+\.[0-9a-f]{32})\.[\w-]+")


def call(number: int, name: str, *fragments: str, whole: bool = True) -> list[Body]:
    """Return the items of a tool call; one that is not whole was truncated."""
    return [
        ToolStart(id=f"toolu_{JOB.removeprefix('job-')}_{number}", name=name),
        *(ToolInput(fragment=fragment, ids=(1,)) for fragment in fragments),
        *([ToolEnd()] if whole else []),
    ]


def items(bodies: Sequence[Body]) -> list[StreamItem]:
    """Return the items of one attempt with these bodies."""
    return [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate([STARTED, *bodies])]


def assert_golden(encoded: bytes, file: Path) -> None:
    """Compare with what the file holds; ``SEMANTIC_GOLDEN=write`` writes it anew."""
    encoded = _CARRIED.sub(rb"\1.DEFLATED", encoded)
    if os.environ.get("SEMANTIC_GOLDEN") == "write":
        file.write_bytes(encoded)
    assert encoded.decode() == file.read_text(encoding="utf-8")


def replaying_transport(transcript: bytes) -> httpx2.MockTransport:
    """Return a transport that answers every request with a stream."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, content=transcript
        )

    return httpx2.MockTransport(answer)
