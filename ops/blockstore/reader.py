"""Reads and verifies block files."""

from __future__ import annotations

import errno
from pathlib import Path

from domain.kv.hashing import unpack_ids
from ops.blockstore.blocks import BlockInfo, Rejected, RejectReason, StoredBlock
from ops.blockstore.disk import RegularFile
from ops.blockstore.format import (
    BLOCK_BYTES_MAX,
    LENGTH_BYTES,
    decode,
    decode_head,
    header_end,
)

#: Errors for lack of a resource of this process; they prove nothing about the file.
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def read_block(
    path: Path, info: BlockInfo, fingerprint: str | None
) -> StoredBlock | Rejected | None:
    """Return the block in a file if it is valid and the one in the file's name.

    Args:
        path: The file.
        info: The properties in its name.
        fingerprint: Of the model that computed it; ``None`` accepts any.

    Returns:
        ``None`` if there is no file, or if this process lacks the resources to open it.
    """
    raw = _contents(path)
    if not isinstance(raw, bytes):
        return raw
    block = decode(raw, name=info.hash, fingerprint=fingerprint)
    if isinstance(block, Rejected):
        return block
    if (block.meta.parent, block.meta.tokens) != (info.parent, info.tokens):
        return Rejected(RejectReason.RENAMED, "it has another parent or number of tokens")
    return block


def read_token_ids(path: Path) -> tuple[int, ...] | None:
    """Return the token ids of a file, without verifying them; ``None`` if it is malformed."""
    try:
        with RegularFile(path) as file:
            start = file.read(LENGTH_BYTES)
            end = header_end(start, file_bytes=file.size_bytes)
            if isinstance(end, Rejected):
                return None
            start += file.read(end - LENGTH_BYTES)
            head = decode_head(start, file_bytes=file.size_bytes)
            if isinstance(head, Rejected):
                return None
            ids = head.tensors[0]
            data = file.read(ids.end - ids.begin)
    except OSError:
        return None
    return unpack_ids(data) if len(data) == ids.end - ids.begin else None


def _contents(path: Path) -> bytes | Rejected | None:
    try:
        with RegularFile(path) as file:
            if file.size_bytes > BLOCK_BYTES_MAX:
                return Rejected(RejectReason.MALFORMED, f"{file.size_bytes} bytes")
            raw = file.read(file.size_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _TRANSIENT:
            return None
        return Rejected(RejectReason.UNREADABLE, str(error))
    return raw
