"""The values that the block store takes and returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from domain.kv.hashing import BlockHash, block_hash
from ops.blockstore.payload import BlockPayload

#: Most tokens in one block; a block of the engine has 256.
BLOCK_TOKENS_MAX = 65_536
#: Hex digits of a model's fingerprint that name its directory.
MODEL_CHARS = 16

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def model_of(fingerprint: str) -> str:
    """Return the name of a fingerprint's directory.

    Args:
        fingerprint: ``sha256:`` and 64 hex digits.
    """
    assert _FINGERPRINT.fullmatch(fingerprint), "a fingerprint is sha256: and 64 hex digits"  # noqa: S101 - a contract of the caller
    return fingerprint.removeprefix("sha256:")[:MODEL_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMeta:
    """The metadata in the header of a block file.

    Attributes:
        hash: Name of the block, as ``domain.kv.hashing`` gives it.
        parent: Name of the block before it, ``None`` for the first of a context.
        fingerprint: Digest of the model that computed it, ``sha256:…``.
        tokens: How many tokens it covers.
    """

    hash: BlockHash
    parent: BlockHash | None
    fingerprint: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlock:
    """A block to be stored.

    Attributes:
        hash: As in ``BlockMeta``.
        parent: As in ``BlockMeta``.
        fingerprint: As in ``BlockMeta``.
        token_ids: The tokens it covers, at least one; fewer than a full block makes it a tail.
        payload: Its tensors; none may be called ``token_ids``.
    """

    hash: BlockHash
    parent: BlockHash | None
    fingerprint: str
    token_ids: Sequence[int]
    payload: BlockPayload

    def __post_init__(self) -> None:
        assert model_of(self.fingerprint)  # noqa: S101 - a contract of the caller
        assert 0 < len(self.token_ids) <= BLOCK_TOKENS_MAX  # noqa: S101 - the same
        name = block_hash(self.fingerprint, self.parent, self.token_ids)
        assert self.hash == name, "another block's name"  # noqa: S101 - the same

    @property
    def nbytes(self) -> int:
        """Bytes of tensors that the block holds in memory."""
        return sum(tensor.nbytes for tensor in self.payload.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """A block from the disk, whose checksum is verified.

    The tensors are views into one buffer, which lives as long as any of them.

    Attributes:
        meta: The metadata in its header.
        token_ids: The tokens that it covers.
        payload: Its tensors; none where ``is_placed``.
        is_placed: Whether the tensors are in the memory of a ``BlockTarget``.
    """

    meta: BlockMeta
    token_ids: tuple[int, ...]
    payload: BlockPayload
    is_placed: bool = False


class RejectReason(StrEnum):
    """Why a file is rejected."""

    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    CHECKSUM = "checksum"
    RENAMED = "renamed"
    FOREIGN = "foreign"
    WRONG_FINGERPRINT = "wrong_fingerprint"
    UNKNOWN_VERSION = "unknown_version"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A file that exists but must not be used; the block is computed again."""

    reason: RejectReason
    detail: str


class PutOutcome(StrEnum):
    """The result of storing a block."""

    STORED = "stored"
    PRESENT = "present"
    NO_ROOM = "no_room"


class BlockInfo(NamedTuple):
    """The properties of a stored block that are known without opening its file.

    A tuple, because a scan makes one for each file.

    Attributes:
        hash: Name of the block.
        parent: Name of the block before it, ``None`` for the first.
        tokens: How many tokens it covers.
        model: First digits of the fingerprint it belongs to.
        size_bytes: Length of the file.
        used_ns: Time of the last use (the file's mtime), in nanoseconds since 1970.
    """

    hash: BlockHash
    parent: BlockHash | None
    tokens: int
    model: str
    size_bytes: int
    used_ns: int


def info_of(block: NewBlock, *, size_bytes: int, used_ns: int) -> BlockInfo:
    """Return the properties of a block once its file is written."""
    return BlockInfo(
        hash=block.hash,
        parent=block.parent,
        tokens=len(block.token_ids),
        model=model_of(block.fingerprint),
        size_bytes=size_bytes,
        used_ns=used_ns,
    )
