"""Tokens of a prompt whose cached blocks belong to one API key.

The cache knows the tokens of such a prompt under other ids: each id has 12 bits of the digest of
its owner above its own 20 bits, 16 tokens use up 192 bits of the digest. So names of blocks, of
partial blocks and of checkpoints differ between owners from the first token on, in memory and on
the disk, and no prefix of another owner is found. The model gets the plain ids. Tokens without an
owner are known under their own ids.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import SupportsIndex

#: Bits of a token id; no vocabulary is larger.
ID_BITS = 20
_TAG_BITS = 12
_TAGS = 16
#: Owners whose tags are kept.
_OWNERS_MAX = 1024


@lru_cache(maxsize=_OWNERS_MAX)
def _tags(owner: str) -> tuple[int, ...]:
    digest = hashlib.sha256(b"semantic-kv owner\0" + owner.encode()).digest()
    words = struct.unpack(f"<{_TAGS}H", digest)
    return tuple((word & ((1 << _TAG_BITS) - 1)) << ID_BITS for word in words)


def _tagged(token_ids: Iterable[int], owner: str, start: int) -> list[int]:
    tags = _tags(owner)
    tagged = [one | tags[at % _TAGS] for at, one in enumerate(token_ids, start)]
    assert all(one >> (ID_BITS + _TAG_BITS) == 0 for one in tagged), "an id has 20 bits"
    return tagged


class OwnedTokens(tuple[int, ...]):  # noqa: SLOT001 - the ids are cached in its dictionary
    """Plain token ids, and the ids under which the cache knows them.

    Attributes:
        owner: The API key.
    """

    owner: str

    @classmethod
    def of(cls, token_ids: Iterable[int], owner: str) -> OwnedTokens:
        """Return the tokens of an owner."""
        tokens = cls(token_ids)
        tokens.owner = owner
        return tokens

    @cached_property
    def cache_ids(self) -> tuple[int, ...]:
        """The ids under which the cache knows the tokens; always the same object."""
        return tuple(_tagged(self, self.owner, 0))


class OwnedContext(list[int]):
    """The tokens of a running context under their ids in the cache; appended ids are plain.

    Args:
        held: Ids in the cache that it begins with.
        owner: The API key.
    """

    def __init__(self, held: Iterable[int], owner: str) -> None:
        super().__init__(held)
        self._owner = owner

    def append(self, token: int) -> None:
        """Append a plain id."""
        super().extend(_tagged((token,), self._owner, len(self)))

    def extend(self, tokens: Iterable[int]) -> None:
        """Append plain ids."""
        super().extend(_tagged(tokens, self._owner, len(self)))

    def insert(self, index: SupportsIndex, token: int) -> None:
        """Refuse to insert: tags depend on positions."""
        raise NotImplementedError(index, token)


def owned(token_ids: tuple[int, ...], owner: str | None) -> tuple[int, ...]:
    """Return tokens that share cached blocks with those of the same owner only.

    Args:
        token_ids: Plain ids.
        owner: The API key; ``None`` shares with all that have none.
    """
    return token_ids if owner is None else OwnedTokens.of(token_ids, owner)


def extended(token_ids: Sequence[int], more: Iterable[int]) -> tuple[int, ...]:
    """Return tokens with others behind them, of the same owner."""
    owner = token_ids.owner if isinstance(token_ids, OwnedTokens) else None
    return owned((*token_ids, *more), owner)


def cache_ids(token_ids: Sequence[int]) -> Sequence[int]:
    """Return the ids under which the cache knows tokens; for one object always the same."""
    return token_ids.cache_ids if isinstance(token_ids, OwnedTokens) else token_ids


def context_of(token_ids: Sequence[int], held: list[int]) -> list[int]:
    """Return the list of a context that runs, to which plain ids are appended.

    Args:
        token_ids: The tokens of its prompt.
        held: The ids in the cache that it has.
    """
    if isinstance(token_ids, OwnedTokens):
        return OwnedContext(held, token_ids.owner)
    return held
