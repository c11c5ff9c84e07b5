"""Finds the stored block that covers most of what follows a context's last whole block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domain.kv.hashing import BlockHash, common_tokens
from ops.blockstore.store import BlockStore

#: Blocks whose tokens are compared to find the one that covers most of a continuation.
CANDIDATES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What follows a context's last whole block.

    Attributes:
        parent: Hash of that block, ``None`` at the start.
        token_ids: The tokens that follow, at most one block.
        fingerprint: Block fingerprint.
        known_tokens: Tokens that memory covers already; only a block that covers more is read.
    """

    parent: BlockHash | None
    token_ids: Sequence[int]
    fingerprint: str
    known_tokens: int = 0


def longest_usable(store: BlockStore, wanted: Continuation) -> tuple[BlockHash, ...]:
    """Return the name of that block, whole or partial; nothing if none covers more than is known.

    Opens the files of at most ``CANDIDATES_MAX`` blocks.
    """
    best: tuple[int, BlockHash] | None = None
    for info in store.children(wanted.parent, wanted.fingerprint, limit=CANDIDATES_MAX):
        token_ids = store.token_ids(info.hash) or ()
        usable = common_tokens(token_ids, wanted.token_ids)
        if usable > max(wanted.known_tokens, best[0] if best else 0):
            best = usable, info.hash
    return () if best is None else (best[1],)
