"""The values of the block store: blocks, their names and contents, events and figures."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias

from domain.events.cache import (
    CacheBlockRejected,
    CacheBlocksEvicted,
    CachePersistencePaused,
    CachePersistenceResumed,
)
from domain.kv.hashing import BlockHash, block_hash


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as safetensors describes it.

    Attributes:
        dtype: Name in the safetensors format: ``F32``, ``F16``, ``BF16``, ``U32``, ``U8`` …
        shape: Lengths of the axes.
        data: The elements in C order, little-endian; a tensor to be written may also have
            consecutive parts, which saves joining them.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | tuple[memoryview, ...]

    @property
    def parts(self) -> tuple[memoryview, ...]:
        """The data as bytes, in one part or more."""
        data = self.data if isinstance(self.data, tuple) else (memoryview(self.data),)
        return tuple(part.cast("B") for part in data if part.nbytes)

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes."""
        return sum(part.nbytes for part in self.parts)

    def joined(self) -> memoryview:
        """Return the data in one part."""
        parts = self.parts
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


#: The tensors of one block by name.
BlockPayload = Mapping[str, RawTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a header; offsets count from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


#: Returns where the bytes of some tensors of a file belong, given in their order without the ids of
#: the tokens: writable parts that together have the tensors' length. ``None`` for a block that does
#: not fit, which is returned as any other. Called on the reading thread, before the bytes are read
#: and verified: what a rejected block has left in this memory must not be used.
BlockTarget: TypeAlias = Callable[[Sequence[TensorEntry]], Iterable[memoryview] | None]
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
    """

    hash: BlockHash
    parent: BlockHash | None
    fingerprint: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlock:
    """A block to be stored.

    Attributes:
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
        assert 0 < len(self.token_ids) <= BLOCK_TOKENS_MAX  # noqa: S101 - a contract of the caller
        name = block_hash(self.fingerprint, self.parent, self.token_ids)
        assert self.hash == name, "another block's name"  # noqa: S101 - a contract of the caller

    @property
    def nbytes(self) -> int:
        """Bytes of tensors that the block holds in memory."""
        return sum(tensor.nbytes for tensor in self.payload.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """A block from the disk, whose checksum is verified.

    The tensors are views into one buffer, which lives as long as any of them.

    Attributes:
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
        parent: Name of the block before it, ``None`` for the first.
        model: First digits of the fingerprint it belongs to.
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


#: The parent in the name of a context's first block.
ROOT = "root"

_BLOCK = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64}|root)-([1-9][0-9]{0,5})\.kv")
_DRAFT = re.compile(r"\.([1-9][0-9]{0,9})-[0-9a-f]{16}\.tmp")
#: Names of the directory of a model, and of the 256 in it.
MODEL_NAME = re.compile(rf"[0-9a-f]{{{MODEL_CHARS}}}")
FAN_NAME = re.compile(r"[0-9a-f]{2}")


def block_path(root: Path, info: BlockInfo) -> Path:
    """Return the path of a block below ``root``."""
    digits = info.hash.hex()
    parent = info.parent.hex() if info.parent else ROOT
    return root / info.model / digits[:2] / f"{digits}-{parent}-{info.tokens}.kv"


def parse_block(file: str) -> tuple[BlockHash, BlockHash | None, int] | None:
    """Return hash, parent and tokens of a file's name; ``None`` if it is no name of a block."""
    found = _BLOCK.fullmatch(file)
    if found is None:
        return None
    digits, parent, tokens = found.groups()
    return (
        BlockHash(bytes.fromhex(digits)),
        None if parent == ROOT else BlockHash(bytes.fromhex(parent)),
        int(tokens),
    )


def draft_path(directory: Path) -> Path:
    """Return a unique name for a file that this process writes."""
    return directory / f".{os.getpid()}-{secrets.token_hex(8)}.tmp"


def parse_draft(file: str) -> int | None:
    """Return the pid of a draft's writer; ``None`` if the name is not that of a draft."""
    found = _DRAFT.fullmatch(file)
    return int(found.group(1)) if found else None


#: What a worker's store reports; the worker is empty where the store has none.
StoreEvent: TypeAlias = (
    CacheBlockRejected | CacheBlocksEvicted | CachePersistencePaused | CachePersistenceResumed
)
OnStoreEvent: TypeAlias = Callable[[StoreEvent], None]


def ignore(event: StoreEvent) -> None:
    """Do nothing."""
    del event


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counters since the start, and the present content."""

    blocks: int
    size_bytes: int
    budget_bytes: int
    pinned: int
    stored: int
    stored_bytes: int
    present: int
    no_room: int
    hits: int
    hit_bytes: int
    misses: int
    rejected: int
    evicted: int
    evicted_bytes: int

    def added(self, more: Mapping[str, int]) -> StoreStats:
        """Return the figures with some counters increased."""
        return replace(self, **{name: getattr(self, name) + by for name, by in more.items()})
