"""Encodes a block as a safetensors file, reads and verifies files."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from domain.kv.hashing import HASH_BYTES, BlockHash, block_hash, pack_ids, unpack_ids
from ops.blockstore.blocks import (
    BLOCK_TOKENS_MAX,
    BlockInfo,
    BlockMeta,
    BlockTarget,
    NewBlock,
    RawTensor,
    Rejected,
    RejectReason,
    StoredBlock,
    TensorEntry,
)
from ops.blockstore.disk import RegularFile

if TYPE_CHECKING:
    from hashlib import _Hash as Digest

FORMAT_VERSION = "1"
#: Name of the tensor that holds the ids of the tokens.
TOKEN_IDS = "token_ids"  # noqa: S105 - a tensor's name, no secret
#: Longest header that is parsed.
HEADER_BYTES_MAX = 1 << 20
#: Longest file that is read.
BLOCK_BYTES_MAX = 1 << 31
#: Most tensors in a block.
TENSORS_MAX = 4096
#: Most axes of a tensor.
AXES_MAX = 8
#: Size of the field with the length of the header, in bytes.
LENGTH_BYTES = 8

_HEX = re.compile(rf"[0-9a-f]{{{2 * HASH_BYTES}}}")
_METADATA = "__metadata__"
_PREFIX = b'{"__metadata__":{"checksum":"'
_CHECKSUM_BEGIN = LENGTH_BYTES + len(_PREFIX)
_CHECKSUM_END = _CHECKSUM_BEGIN + 64
_ALIGNMENT = 8
_META_KEYS = frozenset({"checksum", "version", "hash", "parent", "fingerprint", "tokens"})
_DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """A header whose structure was checked against the length of the file."""

    meta: BlockMeta
    checksum: str
    tensors: tuple[TensorEntry, ...]


class _Bad(Exception):
    """A file that must not be used; turned into its ``Rejected`` where a file is read."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.rejected = Rejected(reason, detail)


def encode(block: NewBlock) -> list[bytes | memoryview]:
    """Return the file of a block as consecutive buffers."""
    assert TOKEN_IDS not in block.payload, "token_ids is the name of the format's own tensor"  # noqa: S101 - a contract of the caller
    ids = pack_ids(block.token_ids)
    tensors = {TOKEN_IDS: RawTensor("U32", (len(block.token_ids),), ids), **block.payload}
    header: dict[str, Any] = {
        _METADATA: {
            "checksum": "0" * 64,
            "version": FORMAT_VERSION,
            "hash": block.hash.hex(),
            "parent": block.parent.hex() if block.parent else "",
            "fingerprint": block.fingerprint,
            "tokens": str(len(block.token_ids)),
        }
    }
    offset = 0
    for name, tensor in tensors.items():
        expected = math.prod(tensor.shape) * _DTYPE_BYTES[tensor.dtype]
        assert tensor.nbytes == expected, f"{name} does not have the bytes of its shape"  # noqa: S101 - a contract of the caller
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    assert len(text) <= HEADER_BYTES_MAX, "the header of a block is small"  # noqa: S101 - a contract of the caller
    head = len(text).to_bytes(LENGTH_BYTES, "little") + text
    data = [part for tensor in tensors.values() for part in tensor.parts]
    digest = _new_digest(head)
    for part in data:
        digest.update(part)
    checksum = digest.hexdigest().encode()
    return [head[:_CHECKSUM_BEGIN] + checksum + head[_CHECKSUM_END:], *data]


def decode(raw: bytes, *, name: BlockHash, fingerprint: str | None) -> StoredBlock | Rejected:
    """Return the block in the bytes of a file, if every byte is as it was written.

    Args:
        fingerprint: What the loaded model computes with; ``None`` takes any.
    """
    try:
        return _decoded(raw, name, fingerprint)
    except _Bad as bad:
        return bad.rejected


def _decoded(raw: bytes, name: BlockHash, fingerprint: str | None) -> StoredBlock:
    head = _head(raw, len(raw))
    view = memoryview(raw)
    end = head.tensors[0].end
    digest = _new_digest(raw[:end])
    digest.update(view[end:])
    token_ids = _verified_ids(head, raw[:end], digest, name=name, fingerprint=fingerprint)
    return StoredBlock(
        meta=head.meta,
        token_ids=token_ids,
        payload={
            each.name: RawTensor(each.dtype, each.shape, view[each.begin : each.end])
            for each in head.tensors[1:]
        },
    )


def _new_digest(start: bytes) -> Digest:
    """Return the digest of a file's beginning without its checksum, to be updated with the rest.

    Args:
        start: At least everything up to the end of the header.
    """
    digest = hashlib.sha256(start[:_CHECKSUM_BEGIN])
    digest.update(start[_CHECKSUM_END:])
    return digest


def _verified_ids(
    head: BlockHeader, start: bytes, digest: Digest, *, name: BlockHash, fingerprint: str | None
) -> tuple[int, ...]:
    """Return the ids of a block's tokens, if every byte is as it was written.

    Args:
        start: The beginning of the file up to the end of the token ids.
    """
    if digest.hexdigest() != head.checksum:
        _bad(RejectReason.CHECKSUM, "the checksum does not match")
    if head.meta.hash != name:
        _bad(RejectReason.RENAMED, f"it holds block {head.meta.hash.hex()}")
    if fingerprint is not None and head.meta.fingerprint != fingerprint:
        _bad(RejectReason.WRONG_FINGERPRINT, f"made by {head.meta.fingerprint}")
    ids = head.tensors[0]
    token_ids = unpack_ids(start[ids.begin : ids.end])
    if block_hash(head.meta.fingerprint, head.meta.parent, token_ids) != name:
        _bad(RejectReason.RENAMED, "its tokens make another name")
    return token_ids


def _head(start: bytes, file_bytes: int) -> BlockHeader:
    """Check the structure of a file from its beginning, up to the end of the header at least.

    The checksum is not looked at: what this returns may steer a search and nothing more.
    """
    end = _header_end(start, file_bytes)
    if not start.startswith(_PREFIX, LENGTH_BYTES):
        _bad(RejectReason.FOREIGN, "the header is not one of ours")
    header = _parse(start[LENGTH_BYTES:end])
    meta, checksum = _metadata(header.pop(_METADATA, None))
    return BlockHeader(meta=meta, checksum=checksum, tensors=_layout(header, meta, end, file_bytes))


def _header_end(start: bytes, file_bytes: int) -> int:
    """Return where the header ends, from at least the first eight bytes of a file."""
    if file_bytes > BLOCK_BYTES_MAX:
        _bad(RejectReason.MALFORMED, f"{file_bytes} bytes are too many for a block")
    if len(start) < LENGTH_BYTES:
        _bad(RejectReason.TRUNCATED, f"{file_bytes} bytes are no file")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > HEADER_BYTES_MAX:
        _bad(RejectReason.MALFORMED, f"a header of {length} bytes is too long")
    if LENGTH_BYTES + length > file_bytes:
        _bad(RejectReason.TRUNCATED, f"{file_bytes} bytes do not hold a header of {length}")
    return LENGTH_BYTES + length


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("ascii"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise _Bad(RejectReason.MALFORMED, f"the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        _bad(RejectReason.MALFORMED, "the header is no JSON object")
    return header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _metadata(given: object) -> tuple[BlockMeta, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        _bad(RejectReason.MALFORMED, "the metadata is not text by name")
    if given.get("version") != FORMAT_VERSION:
        _bad(RejectReason.UNKNOWN_VERSION, f"format {given.get('version')!r:.40}")
    if set(given) != _META_KEYS:
        _bad(RejectReason.MALFORMED, "the metadata has other names than ours")
    tokens = given["tokens"]
    if not (tokens.isascii() and tokens.isdigit() and len(tokens) <= len(str(BLOCK_TOKENS_MAX))):
        _bad(RejectReason.MALFORMED, "the number of tokens is none")
    meta = BlockMeta(
        hash=_hash(given["hash"]),
        parent=_hash(given["parent"]) if given["parent"] else None,
        fingerprint=given["fingerprint"],
        tokens=int(tokens),
    )
    return meta, given["checksum"]


def _hash(text: str) -> BlockHash:
    if _HEX.fullmatch(text) is None:
        _bad(RejectReason.MALFORMED, "a hash is none")
    return BlockHash(bytes.fromhex(text))


def _layout(
    header: dict[str, Any], meta: BlockMeta, data_begin: int, file_bytes: int
) -> tuple[TensorEntry, ...]:
    """Check that the tensors lie one after the other and end where the file ends."""
    if not 0 < len(header) <= TENSORS_MAX:
        _bad(RejectReason.MALFORMED, f"{len(header)} tensors")
    tensors = []
    end = data_begin
    for name, given in header.items():
        tensor = _tensor(name, given, data_begin)
        if tensor.begin != end:
            _bad(RejectReason.MALFORMED, f"{name:.40} leaves a gap or overlaps")
        end = tensor.end
        tensors.append(tensor)
    if end > file_bytes:
        _bad(RejectReason.TRUNCATED, f"{file_bytes} of {end} bytes")
    if end < file_bytes:
        _bad(RejectReason.MALFORMED, f"{file_bytes - end} bytes after the last tensor")
    ids = tensors[0]
    if (ids.name, ids.dtype, ids.shape) != (TOKEN_IDS, "U32", (meta.tokens,)):
        _bad(RejectReason.MALFORMED, "the ids of the tokens are not where they should be")
    return tuple(tensors)


def _tensor(name: str, given: object, data_begin: int) -> TensorEntry:
    if not isinstance(given, dict) or set(given) != {"dtype", "shape", "data_offsets"}:
        _bad(RejectReason.MALFORMED, f"{name:.40} is not described as a tensor")
    dtype, shape, offsets = given["dtype"], given["shape"], given["data_offsets"]
    width = _DTYPE_BYTES.get(dtype) if isinstance(dtype, str) else None
    if width is None:
        _bad(RejectReason.MALFORMED, f"{name:.40} has no known dtype")
    if not _are_lengths(shape, AXES_MAX) or not _are_lengths(offsets, 2) or len(offsets) < 2:  # noqa: PLR2004 - begin and end
        _bad(RejectReason.MALFORMED, f"{name:.40} has no valid shape or offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * width:
        _bad(RejectReason.MALFORMED, f"{name:.40} does not have the bytes of its shape")
    return TensorEntry(
        name=name, dtype=dtype, shape=tuple(shape), begin=data_begin + begin, end=data_begin + end
    )


def _are_lengths(values: object, count_max: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= count_max
        # bool is an int to isinstance, and no length.
        and all(type(value) is int and 0 <= value <= BLOCK_BYTES_MAX for value in values)
    )


def _bad(reason: RejectReason, detail: str) -> NoReturn:
    raise _Bad(reason, detail)


#: Errors for lack of a resource of this process; they prove nothing about the file.
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

#: Bytes that are read before they are hashed; they fit the cache of a processor core. The first
#: read has as many: after a short one, Linux reads the file in single pages.
PIECE_BYTES = 512 << 10
#: Bytes that hold nearly every header, and the token ids of a block of 256.
HEAD_BYTES = 8 << 10


def read_block(
    path: Path, info: BlockInfo, fingerprint: str | None, target: BlockTarget | None = None
) -> StoredBlock | Rejected | None:
    """Return the block in a file if it is valid and the one in the file's name.

    Args:
        fingerprint: Of the model that computed it; ``None`` accepts any.
        target: Memory for the tensors; ``None`` for a buffer of their own.

    Returns:
        ``None`` if there is no file, or if this process lacks the resources to open it.
    """
    try:
        with RegularFile(path) as file:
            block = _block_in(file, info, fingerprint, target)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _TRANSIENT:
            return None
        return Rejected(RejectReason.UNREADABLE, str(error))
    except _Bad as bad:
        return bad.rejected
    if (block.meta.parent, block.meta.tokens) != (info.parent, info.tokens):
        return Rejected(RejectReason.RENAMED, "it has another parent or number of tokens")
    return block


def read_token_ids(path: Path) -> tuple[int, ...] | None:
    """Return the token ids of a file, without verifying them; ``None`` if it is malformed."""
    try:
        with RegularFile(path) as file:
            start, head = _beginning(file, HEAD_BYTES)
    except (OSError, _Bad):
        return None
    ids = head.tensors[0]
    return unpack_ids(start[ids.begin : ids.end])


def _block_in(
    file: RegularFile, info: BlockInfo, fingerprint: str | None, target: BlockTarget | None
) -> StoredBlock:
    if file.size_bytes > BLOCK_BYTES_MAX:
        _bad(RejectReason.MALFORMED, f"{file.size_bytes} bytes")
    file.expect_whole()
    placed = None if target is None else _placed(file, info, fingerprint, target)
    return placed or _decoded(file.read(file.size_bytes), info.hash, fingerprint)


def _placed(
    file: RegularFile, info: BlockInfo, fingerprint: str | None, target: BlockTarget
) -> StoredBlock | None:
    """Read a block into the memory of ``target``; ``None`` if it does not fit there."""
    start, head = _beginning(file, PIECE_BYTES)
    parts = target(head.tensors[1:])
    if parts is None:
        file.rewind()
        return None
    digest = _new_digest(start)
    there = memoryview(start)[head.tensors[0].end :]
    for piece in _pieces(_left(parts, there)):
        if not file.read_into(piece):
            _bad(RejectReason.TRUNCATED, "the file has become shorter")
        # While the bytes are still in the processor's cache.
        for part in piece:
            digest.update(part)
    token_ids = _verified_ids(head, start, digest, name=info.hash, fingerprint=fingerprint)
    return StoredBlock(meta=head.meta, token_ids=token_ids, payload={}, is_placed=True)


def _left(parts: Iterable[memoryview], there: memoryview) -> Iterator[memoryview]:
    """Fill parts with bytes that are read already; yield what is left to be filled."""
    for part in parts:
        count = min(part.nbytes, there.nbytes)
        part[:count] = there[:count]
        there = there[count:]
        if count < part.nbytes:
            yield part[count:]


def _pieces(parts: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    piece: list[memoryview] = []
    size_bytes = 0
    for part in parts:
        piece.append(part)
        size_bytes += part.nbytes
        if size_bytes >= PIECE_BYTES:
            yield piece
            piece, size_bytes = [], 0
    yield piece


def _beginning(file: RegularFile, size_bytes: int) -> tuple[bytes, BlockHeader]:
    """Return a file at least up to the end of the token ids, and its header."""
    start = file.read(size_bytes)
    start += file.read(max(0, _header_end(start, file.size_bytes) - len(start)))
    head = _head(start, file.size_bytes)
    start += file.read(max(0, head.tensors[0].end - len(start)))
    if len(start) < head.tensors[0].end:
        _bad(RejectReason.TRUNCATED, "the file has become shorter")
    return start, head
