from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.batch import jsonl
from domain.batch.jsonl import (
    count_lines,
    pack,
    read_content,
    read_filename,
    read_lines,
    read_numbered,
)

LINES = st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=20)


@given(LINES, st.integers(1, 60), st.sampled_from([b"", b"\n"]))
def test_content_and_lines_come_back_whatever_the_chunks(
    lines: list[bytes], chunk_bytes: int, end: bytes
) -> None:
    content = b"\n".join(lines) + end
    before, jsonl.CHUNK_BYTES = jsonl.CHUNK_BYTES, chunk_bytes  # type: ignore[misc]  # a small one
    try:
        packed = pack(content)
    finally:
        jsonl.CHUNK_BYTES = before  # type: ignore[misc]  # the former one
    get = packed.payloads.__getitem__
    assert b"".join(read_content(packed.digest, get)) == content
    stripped = [line.strip() for line in lines]
    wanted = [line for line in stripped if line]
    assert packed.lines == len(wanted)
    for start in range(len(wanted) + 1):
        assert list(read_lines(packed.digest, get, start=start)) == wanted[start:]
    numbered = [(number, line) for number, line in enumerate(stripped, 1) if line]
    assert list(read_numbered(packed.digest, get)) == numbered


@pytest.mark.parametrize("name", ["lines.jsonl", "", '{"chunks": []}', None])
def test_manifest_has_the_name_of_the_file(name: str | None) -> None:
    packed = pack(b"a\nb\n", filename=name)
    assert read_filename(packed.digest, packed.payloads.__getitem__) == name
    assert count_lines(packed.digest, packed.payloads.__getitem__) == 2


@pytest.mark.parametrize(
    ("content", "chunks"),
    [
        (b"", []),
        (b"aa\nbb\n", [b"aa\nbb\n"]),
        (b"aaa\nbbb\n", [b"aaa\nbbb\n"]),
        (b"aaa\nbbbb\n", [b"aaa\n", b"bbbb\n"]),
        (b"a\nb\nc\nd\ne\nf", [b"a\nb\nc\nd\n", b"e\nf"]),
        (b"0123456789\nbb\n", [b"0123456789\n", b"bb\n"]),
        (b"aa\n0123456789", [b"aa\n", b"0123456789"]),
        (b"\n\n\n\n\n\n\n\n\naa", [b"\n" * 8, b"\naa"]),
    ],
)
def test_chunks_end_with_lines_and_are_as_long_as_they_may_be(
    content: bytes, chunks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "CHUNK_BYTES", 8)
    packed = pack(content)
    get = packed.payloads.__getitem__
    assert list(read_content(packed.digest, get)) == chunks
    manifest = json.loads(get(packed.digest))["chunks"]
    assert [one["bytes"] for one in manifest] == [len(chunk) for chunk in chunks]
    assert packed.bytes == len(content)
    assert count_lines(packed.digest, get) == packed.lines
    assert list(read_lines(packed.digest, get)) == content.split()
