"""Names of blocks: a hash over the model, the block before, and the tokens.

The name of a block is SHA-256 over, in this order and with nothing between:

    tag and layout version   16 bytes, so that no other hash equals one of a block
    fingerprint              UTF-8, after its length in 4 bytes
    parent                   1 byte: 0 at the start of a context, else 1 and the parent's 32 bytes
    token ids                4 bytes each, after their number in 4 bytes

All integers are little-endian. Each part has a known length, so two different inputs never give
the same bytes. A name covers the name of its parent, so it identifies the whole context so far.

The ids of an owned prompt have bits of the owner above their own (``domain.kv.owned_tokens``).
Owners that share whole blocks set ``SHARED_BIT``: the name of a whole block then covers the plain
ids, and the name of fewer tokens covers the owner too.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NewType

#: 32 bytes that name a block's content and everything before it.
BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 32
#: Length of a packed token id.
ID_BYTES = 4
#: Bits of a token id; no vocabulary is larger.
ID_BITS = 20
#: Set in ids of owners that share whole blocks.
SHARED_BIT = 1 << 31
#: Rises whenever a block holds something else than before, so that no old block is found again.
LAYOUT_VERSION = 2

ID_MASK = (1 << ID_BITS) - 1
_TAG = b"semantic-kv\0" + struct.pack("<I", LAYOUT_VERSION)
_COUNT = struct.Struct("<I")
_NO_PARENT = b"\0"
_PARENT = b"\1"


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Return the ids as 4 little-endian bytes each.

    Raises:
        OverflowError: If an id is negative or does not fit 32 bits.

    >>> pack_ids([1, 258]).hex(" ", 4)
    '01000000 02010000'
    """
    packed = array("I", token_ids)
    assert packed.itemsize == ID_BYTES, "an unsigned int has 32 bits on every platform served"
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """Return the ids that ``pack_ids`` packed."""
    return struct.unpack(f"<{len(packed) // ID_BYTES}I", packed)


def common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning of two token sequences.

    >>> common_tokens([5, 6, 7], [5, 6, 8, 9])
    2
    """
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def hash_ids(token_ids: Sequence[int]) -> str:
    """Return SHA-256 in hex over ``pack_ids``: the log identifies token sequences by it."""
    return hashlib.sha256(pack_ids(token_ids)).hexdigest()


class BlockHasher:
    """Names the blocks of one model.

    Args:
        fingerprint: Digest of everything that decides what the model writes into a block.
        block_tokens: Tokens of a whole block, whose name covers plain ids where its owner shares
            it; 0 where all ids are covered as they are.
    """

    def __init__(self, fingerprint: str, block_tokens: int = 0) -> None:
        name = fingerprint.encode()
        assert name, "a block always belongs to something"
        self._prefix = hashlib.sha256(_TAG + _COUNT.pack(len(name)) + name)
        self._block_tokens = block_tokens
        self._plain_mask = int.from_bytes(_COUNT.pack(ID_MASK) * block_tokens, "little")

    def covered(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids that the name of a block covers: plain ones in a shared whole block."""
        if len(token_ids) == self._block_tokens > 0 and token_ids[0] & SHARED_BIT:
            return tuple(one & ID_MASK for one in token_ids)
        return tuple(token_ids)

    def of_packed(self, parent: BlockHash | None, packed: bytes) -> BlockHash:
        """Return the name of the block after ``parent`` whose packed ids are given."""
        count, rest = divmod(len(packed), ID_BYTES)
        assert count, "a block holds at least one token"
        assert not rest, "ids are packed in 4 bytes"
        if count == self._block_tokens and packed[ID_BYTES - 1] & (SHARED_BIT >> 24):
            plain = int.from_bytes(packed, "little") & self._plain_mask
            packed = plain.to_bytes(len(packed), "little")
        digest = self._prefix.copy()
        if parent is None:
            digest.update(_NO_PARENT + _COUNT.pack(count) + packed)
        else:
            assert len(parent) == HASH_BYTES, "a parent is named by its hash"
            digest.update(_PARENT + parent + _COUNT.pack(count) + packed)
        return BlockHash(digest.digest())

    def chain(self, packed: bytes, block_tokens: int) -> Iterator[BlockHash]:
        """Yield the names of the whole blocks of a context, each hashed when it is asked for."""
        assert block_tokens > 0, "a block holds at least one token"
        step = block_tokens * ID_BYTES
        parent: BlockHash | None = None
        for start in range(0, len(packed) - step + 1, step):
            parent = self.of_packed(parent, packed[start : start + step])
            yield parent


def block_hash(fingerprint: str, parent: BlockHash | None, token_ids: Sequence[int]) -> BlockHash:
    """Return the name of the block, whole or tail, that holds ``token_ids`` after ``parent``."""
    return BlockHasher(fingerprint).of_packed(parent, pack_ids(token_ids))
