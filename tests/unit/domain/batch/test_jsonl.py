from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.batch import jsonl
from domain.batch.jsonl import pack, read_content, read_lines, read_numbered

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
        jsonl.CHUNK_BYTES = before  # type: ignore[misc]  # as above
    get = packed.payloads.__getitem__
    assert b"".join(read_content(packed.digest, get)) == content
    stripped = [line.strip() for line in lines]
    wanted = [line for line in stripped if line]
    assert packed.lines == len(wanted)
    for start in range(len(wanted) + 1):
        assert list(read_lines(packed.digest, get, start=start)) == wanted[start:]
    numbered = [(number, line) for number, line in enumerate(stripped, 1) if line]
    assert list(read_numbered(packed.digest, get)) == numbered
