"""What comes out of a block's file is what went in, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from ops.blockstore.blocks import NewBlock, RawTensor, Rejected, RejectReason, StoredBlock
from ops.blockstore.format import HEADER_BYTES_MAX, decode, encode
from tests.support.builders.blocks import FINGERPRINT, OTHER_FINGERPRINT, make_block

BEFORE = make_block((1, 2))
BLOCK = make_block(range(11), parent=BEFORE.hash)
RAW = b"".join(encode(BLOCK))
HEADER_END = 8 + int.from_bytes(RAW[:8], "little")

_WIDTHS = {"U8": 1, "BF16": 2, "F16": 2, "F32": 4, "U32": 4, "I64": 8}


@st.composite
def tensors(draw: st.DrawFn) -> RawTensor:
    dtype = draw(st.sampled_from(sorted(_WIDTHS)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = _WIDTHS[dtype]
    for length in shape:
        count *= length
    return RawTensor(dtype, shape, draw(st.binary(min_size=count, max_size=count)))


@st.composite
def blocks(draw: st.DrawFn) -> NewBlock:
    names = st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith("__"))
    parent = draw(st.sampled_from([None, BEFORE.hash]))
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300))
    return replace(
        make_block(ids, parent=parent),
        payload=draw(
            st.dictionaries(names.filter(lambda name: name != "token_ids"), tensors(), max_size=5)
        ),
    )


def _decode(raw: bytes) -> StoredBlock | Rejected:
    return decode(raw, name=BLOCK.hash, fingerprint=FINGERPRINT)


def _reason(raw: bytes) -> RejectReason | None:
    found = _decode(raw)
    return found.reason if isinstance(found, Rejected) else None


@given(blocks())
@settings(max_examples=60, deadline=None)
def test_a_block_comes_back_as_it_was(block: NewBlock) -> None:
    found = decode(b"".join(encode(block)), name=block.hash, fingerprint=FINGERPRINT)
    assert isinstance(found, StoredBlock)
    assert (found.meta.parent, found.meta.tokens) == (block.parent, len(block.token_ids))
    assert found.token_ids == tuple(block.token_ids)
    assert list(found.payload) == list(block.payload)
    for name, tensor in block.payload.items():
        got = found.payload[name]
        assert (got.dtype, got.shape, bytes(got.joined())) == (
            tensor.dtype,
            tensor.shape,
            bytes(tensor.joined()),
        )


def test_a_block_is_a_safetensors_file_for_any_reader() -> None:
    found = dict(deserialize(RAW))  # type: ignore[no-untyped-call] # it ships no types
    assert sorted(found) == ["keys", "token_ids", "values"]
    assert bytes(found["keys"]["data"]) == bytes(BLOCK.payload["keys"].joined())
    assert found["values"]["shape"] == list(BLOCK.payload["values"].shape)
    assert HEADER_END % 8 == 0


def test_a_file_cut_anywhere_is_rejected() -> None:
    served = [
        length for length in range(len(RAW)) if _reason(RAW[:length]) is not RejectReason.TRUNCATED
    ]
    assert served == []


def test_a_bit_flipped_anywhere_is_rejected() -> None:
    served = []
    for at in range(len(RAW)):
        for bit in range(8):
            raw = bytearray(RAW)
            raw[at] ^= 1 << bit
            if _reason(bytes(raw)) is None:
                served.append((at, bit))
    assert served == []


@pytest.mark.parametrize("at", [HEADER_END, HEADER_END + 50, len(RAW) - 1])
def test_the_checksum_detects_a_bit_flipped_in_a_tensor(at: int) -> None:
    raw = bytearray(RAW)
    raw[at] ^= 1
    assert _reason(bytes(raw)) is RejectReason.CHECKSUM


def test_a_space_of_the_padding_that_became_a_tab_is_rejected() -> None:
    # A JSON reader would not notice.
    padded = next(
        raw
        for length in range(4, 400, 4)
        if (raw := b"".join(encode(_sized(length))))
        and raw[7 + int.from_bytes(raw[:8], "little")] == ord(" ")
    )
    end = 8 + int.from_bytes(padded[:8], "little")
    assert _reason(padded) is None
    assert _reason(padded[: end - 1] + b"\t" + padded[end:]) is RejectReason.CHECKSUM


def _sized(length: int) -> NewBlock:
    return replace(BLOCK, payload={"a": RawTensor("U8", (length,), bytes(length))})


def test_a_block_whose_tokens_make_another_name_is_rejected() -> None:
    # Complete and with a valid checksum, but not the requested block.
    forged = replace(BLOCK)
    object.__setattr__(forged, "token_ids", range(1, 12))
    assert _reason(b"".join(encode(forged))) is RejectReason.RENAMED


def test_more_bytes_than_in_the_header_are_rejected() -> None:
    assert _reason(RAW + b"\0") is RejectReason.MALFORMED


def test_a_block_under_another_name_is_rejected() -> None:
    found = decode(RAW, name=BEFORE.hash, fingerprint=FINGERPRINT)
    assert isinstance(found, Rejected)
    assert found.reason is RejectReason.RENAMED


def test_a_block_of_another_model_is_rejected() -> None:
    found = decode(RAW, name=BLOCK.hash, fingerprint=OTHER_FINGERPRINT)
    assert isinstance(found, Rejected)
    assert found.reason is RejectReason.WRONG_FINGERPRINT


@pytest.mark.parametrize(
    "length", [HEADER_BYTES_MAX + 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1], ids=str
)
def test_a_header_that_claims_to_be_huge_is_rejected(length: int) -> None:
    assert _reason(length.to_bytes(8, "little") + RAW[8:]) is RejectReason.MALFORMED


@pytest.mark.parametrize("length", [len(RAW) - 7, len(RAW), HEADER_BYTES_MAX])
def test_a_header_longer_than_the_file_is_rejected(length: int) -> None:
    assert _reason(length.to_bytes(8, "little") + RAW[8:]) is RejectReason.TRUNCATED


@pytest.mark.parametrize(
    "raw",
    [
        b"hello, I am a text of somebody else",
        (2).to_bytes(8, "little") + b"{}",
        b"\0" * 4096,
        b"\xff" * 7 + b"\0" * 4096,
    ],
    ids=["text", "empty header", "zeros", "ones"],
)
def test_a_foreign_file_is_rejected(raw: bytes) -> None:
    assert _reason(raw) in {
        RejectReason.FOREIGN,
        RejectReason.MALFORMED,
        RejectReason.TRUNCATED,
    }


def _forged(change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the file with another header, as an attacker would write it."""
    header = json.loads(RAW[8:HEADER_END])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + RAW[HEADER_END:]


def _offsets(name: str, begin: object, end: object) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(data_offsets=[begin, end])


def _set(name: str, **values: object) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(values)


def _drop(header: dict[str, Any], *names: str) -> None:
    for name in names:
        del header[name]


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "negative offset": _offsets("keys", -32, 0),
    "offset beyond the file": _offsets("values", 76, 10**12),
    "end before begin": _offsets("keys", 76, 44),
    "overlap": _offsets("values", 44, 76),
    "gap": _offsets("values", 77, 109),
    "huge offset": _offsets("keys", 2**63, 2**63 + 32),
    "offset is a float": _offsets("keys", 44.0, 76.0),
    "shape is a bool": _set("keys", shape=[True, 16]),
    "shape is a float": _set("keys", shape=[16.0]),
    "one offset": lambda header: header["keys"].update(data_offsets=[44]),
    "three offsets": lambda header: header["keys"].update(data_offsets=[44, 76, 80]),
    "wider dtype": _set("keys", dtype="F32"),
    "unknown dtype": _set("keys", dtype="Q4_K"),
    "dtype is a list": _set("keys", dtype=["BF16"]),
    "larger shape": _set("keys", shape=[17]),
    "negative shape": _set("keys", shape=[-4, -4]),
    "shape that wraps 64 bits": _set("keys", shape=[2**32, 2**32]),
    "many axes": _set("keys", shape=[1] * 1000),
    "shape is a number": _set("keys", shape=16),
    "tensor is a list": lambda header: header.update(keys=[1, 2]),
    "field missing": lambda header: header["keys"].pop("dtype"),
    "field added": _set("keys", extra=1),
    "no tensors": lambda header: _drop(header, "token_ids", "keys", "values"),
    "no ids": lambda header: header.pop("token_ids"),
    "ids of another type": _set("token_ids", dtype="F32"),
    "more tokens than ids": _set("__metadata__", tokens="12"),
    "tokens are a word": _set("__metadata__", tokens="many"),
    "tokens are endless": _set("__metadata__", tokens="9" * 5000),
    "hash is a path": _set("__metadata__", hash="../../etc/passwd"),
    "parent is a path": _set("__metadata__", parent="../x"),
    "metadata is a number": _set("__metadata__", hash=7),
    "metadata missing": lambda header: header.pop("__metadata__"),
    "metadata added": _set("__metadata__", more="x"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_header_is_rejected_for_its_structure(name: str) -> None:
    assert _reason(_forged(FORGERIES[name])) in {
        RejectReason.MALFORMED,
        RejectReason.TRUNCATED,
        RejectReason.FOREIGN,
    }


def test_a_format_of_the_future_is_rejected_as_such() -> None:
    assert _reason(_forged(_set("__metadata__", version="2"))) is RejectReason.UNKNOWN_VERSION


@pytest.mark.parametrize(
    "text",
    [
        b'{"__metadata__":{"checksum":"' + b"[" * 100_000,
        b'{"__metadata__":{"checksum":"0"},"a":1,"a":2}',
        b'{"__metadata__":{"checksum":"\xff\xfe"}}',
        b'{"__metadata__":{"checksum":"0"},"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"__metadata__":{"checksum":"0"},"a":' + b"9" * 10_000 + b"}",
    ],
    ids=["unclosed", "repeated", "not ascii", "deep", "long number"],
)
def test_a_header_that_hurts_json_readers_is_rejected(text: bytes) -> None:
    raw = len(text).to_bytes(8, "little") + text
    assert _reason(raw) is RejectReason.MALFORMED


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_no_bytes_raise(junk: bytes) -> None:
    for raw in (junk, RAW[:8] + junk, RAW[:HEADER_END] + junk, junk + RAW):
        assert isinstance(_decode(raw), (Rejected, StoredBlock))


def test_a_block_under_a_name_that_is_not_its_own_is_misuse() -> None:
    with pytest.raises(AssertionError):
        replace(BLOCK, hash=BEFORE.hash)


def test_a_block_with_the_formats_own_name_is_misuse() -> None:
    block = replace(BLOCK, payload={"token_ids": RawTensor("U8", (1,), b"\0")})
    with pytest.raises(AssertionError):
        encode(block)
