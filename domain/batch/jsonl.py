"""Lines of a file stored as payloads: chunks of whole lines, and a manifest that lists them.

The manifest also has the name of the file, so that it is erased with the content.

Readers of one line or of all lines keep one chunk at a time in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from domain.chat.request import canonical_json
from domain.values import Digest, digest_of

#: Most bytes of a chunk, unless one line is longer.
CHUNK_BYTES: Final = 1024 * 1024

Get = Callable[[Digest], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Content in the form in which it is stored.

    Attributes:
        digest: Digest of the manifest.
        payloads: The manifest and the chunks by their digests.
        lines: Number of lines that are not blank.
    """

    digest: Digest
    payloads: Mapping[Digest, bytes]
    lines: int
    bytes: int


def pack(content: bytes, *, filename: str | None = None) -> Packed:
    """Cut ``content`` into chunks at the ends of lines; the manifest has the name of the file."""
    payloads: dict[Digest, bytes] = {}
    chunks: list[dict[str, object]] = []
    lines = 0
    for piece in _cut(content):
        digest = digest_of(piece)
        payloads[digest] = piece
        count = sum(1 for _ in _lines_in(piece))
        chunks.append({"digest": digest, "lines": count, "bytes": len(piece)})
        lines += count
    named = {} if filename is None else {"filename": filename}
    manifest = canonical_json({"chunks": chunks, **named})
    payloads[digest_of(manifest)] = manifest
    return Packed(digest=digest_of(manifest), payloads=payloads, lines=lines, bytes=len(content))


def read_filename(manifest: Digest, get: Get) -> str | None:
    """Return the name of the file, ``None`` if its manifest has none."""
    name = json.loads(get(manifest)).get("filename")
    return name if isinstance(name, str) else None


def count_lines(manifest: Digest, get: Get) -> int:
    """Return the number of lines that are not blank."""
    return sum(lines for _, lines in _chunks(manifest, get))


def read_content(manifest: Digest, get: Get) -> Iterator[bytes]:
    """Yield the content in pieces.

    Args:
        manifest: ``Packed.digest``.
        get: Returns a payload; its errors pass through.
    """
    for digest, _ in _chunks(manifest, get):
        yield get(digest)


def read_lines(manifest: Digest, get: Get, *, start: int = 0) -> Iterator[bytes]:
    """Yield the lines that are not blank, from number ``start`` (from 0) on, without their ends."""
    skip = start
    for digest, lines in _chunks(manifest, get):
        if skip >= lines:
            skip -= lines
            continue
        for line in _lines_in(get(digest)):
            if skip:
                skip -= 1
            else:
                yield line


def read_numbered(manifest: Digest, get: Get) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank with its number in the file, from 1, blank ones counted."""
    number = 0
    for digest, _ in _chunks(manifest, get):
        raw = get(digest).split(b"\n")
        # What follows the last newline belongs to the next chunk, and here it is empty.
        for line in raw[:-1] if not raw[-1] else raw:
            number += 1
            if text := line.strip():
                yield number, text


def _chunks(manifest: Digest, get: Get) -> Iterator[tuple[Digest, int]]:
    """Yield the digest of each chunk, and the number of its lines that are not blank."""
    for chunk in json.loads(get(manifest))["chunks"]:
        yield Digest(chunk["digest"]), chunk["lines"]


def _lines_in(piece: bytes) -> Iterator[bytes]:
    return (text for line in piece.split(b"\n") if (text := line.strip()))


def _cut(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        end = len(content)
        if end - start > CHUNK_BYTES:
            end = content.rfind(b"\n", start, start + CHUNK_BYTES) + 1
            if not end:
                # One line is longer than a chunk.
                end = content.find(b"\n", start + CHUNK_BYTES) + 1 or len(content)
        yield content[start:end]
        start = end
