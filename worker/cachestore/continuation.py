"""Finds the stored block that covers most of what follows a context's last whole block."""

from __future__ import annotations

from collections.abc import Sequence

from domain.kv.hashing import BlockHash
from ops.blockstore.store import BlockStore
from worker.cachestore.loader import CANDIDATES_MAX, Continuation


def longest_usable(store: BlockStore, wanted: Continuation) -> tuple[BlockHash, ...]:
    """Return the name of that block, whole or partial; nothing if none covers more than is known.

    Opens the files of at most ``CANDIDATES_MAX`` blocks.
    """
    best: tuple[int, BlockHash] | None = None
    for info in store.children(wanted.parent, wanted.fingerprint, limit=CANDIDATES_MAX):
        token_ids = store.token_ids(info.hash) or ()
        common = _common_tokens(token_ids, wanted.token_ids)
        usable = wanted.usable_tokens(len(token_ids), common)
        if usable > max(wanted.known_tokens, best[0] if best else 0):
            best = usable, info.hash
    return () if best is None else (best[1],)


def _common_tokens(stored: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for own, other in zip(stored, wanted, strict=False):
        if own != other:
            break
        count += 1
    return count
