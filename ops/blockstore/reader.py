"""Reads and verifies block files."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

from domain.kv.hashing import unpack_ids
from ops.blockstore.blocks import BlockInfo, Rejected, RejectReason, StoredBlock
from ops.blockstore.disk import RegularFile
from ops.blockstore.format import (
    BLOCK_BYTES_MAX,
    BlockHeader,
    decode,
    decode_head,
    header_end,
    new_digest,
    verified_ids,
)
from ops.blockstore.payload import BlockTarget

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
        path: The file.
        info: The properties in its name.
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
    if isinstance(block, Rejected):
        return block
    if (block.meta.parent, block.meta.tokens) != (info.parent, info.tokens):
        return Rejected(RejectReason.RENAMED, "it has another parent or number of tokens")
    return block


def read_token_ids(path: Path) -> tuple[int, ...] | None:
    """Return the token ids of a file, without verifying them; ``None`` if it is malformed."""
    try:
        with RegularFile(path) as file:
            start, head = _beginning(file, HEAD_BYTES)
    except OSError:
        return None
    if isinstance(head, Rejected):
        return None
    ids = head.tensors[0]
    return unpack_ids(start[ids.begin : ids.end])


def _block_in(
    file: RegularFile, info: BlockInfo, fingerprint: str | None, target: BlockTarget | None
) -> StoredBlock | Rejected:
    if file.size_bytes > BLOCK_BYTES_MAX:
        return Rejected(RejectReason.MALFORMED, f"{file.size_bytes} bytes")
    file.expect_whole()
    placed = None if target is None else _placed(file, info, fingerprint, target)
    if placed is not None:
        return placed
    return decode(file.read(file.size_bytes), name=info.hash, fingerprint=fingerprint)


def _placed(
    file: RegularFile, info: BlockInfo, fingerprint: str | None, target: BlockTarget
) -> StoredBlock | Rejected | None:
    """Read a block into the memory of ``target``; ``None`` if it does not fit there."""
    start, head = _beginning(file, PIECE_BYTES)
    if isinstance(head, Rejected):
        return head
    parts = target(head.tensors[1:])
    if parts is None:
        file.rewind()
        return None
    digest = new_digest(start)
    there = memoryview(start)[head.tensors[0].end :]
    for piece in _pieces(_left(parts, there)):
        if not file.read_into(piece):
            return Rejected(RejectReason.TRUNCATED, "the file has become shorter")
        # While the bytes are still in the processor's cache.
        for part in piece:
            digest.update(part)
    token_ids = verified_ids(head, start, digest, name=info.hash, fingerprint=fingerprint)
    if isinstance(token_ids, Rejected):
        return token_ids
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


def _beginning(file: RegularFile, size_bytes: int) -> tuple[bytes, BlockHeader | Rejected]:
    """Return a file at least up to the end of the token ids, and its header."""
    start = file.read(size_bytes)
    end = header_end(start, file_bytes=file.size_bytes)
    if isinstance(end, Rejected):
        return start, end
    start += file.read(max(0, end - len(start)))
    head = decode_head(start, file_bytes=file.size_bytes)
    if isinstance(head, Rejected):
        return start, head
    start += file.read(max(0, head.tensors[0].end - len(start)))
    if len(start) < head.tensors[0].end:
        return start, Rejected(RejectReason.TRUNCATED, "the file has become shorter")
    return start, head
