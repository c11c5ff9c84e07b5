"""Tokens of a prompt whose cached blocks belong to one API key.

The cache knows the tokens of such a prompt under other ids: each id has 11 bits of the digest of
its owner above its own 20 bits, 16 tokens use up 176 bits of the digest. So names of blocks, of
partial blocks and of checkpoints differ between owners from the first token on, in memory and on
the disk, and no prefix of another owner is found. The model gets the plain ids. Tokens without an
owner are known under their own ids.

Owners may share whole blocks (``sharing_blocks``). Their ids have ``SHARED_BIT`` too, and the names
of whole blocks cover the plain ids. Tokens after the last whole block, partial blocks and
checkpoints within a block still differ between owners. So an owner who guesses the prompt of
another one learns nothing before a whole block is right, neither from counts nor from times.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import SupportsIndex

from domain.kv.hashing import ID_BITS, ID_MASK, SHARED_BIT
from domain.values import Owner

_TAG_BITS = 11
_TAGS = 16
#: Owners whose tags are kept.
_OWNERS_MAX = 1024
#: Begins the ``cache_owner`` of jobs whose owner shares whole blocks; no name of a key has a colon.
_SHARING = "shared:"


def sharing_blocks(owner: Owner | None) -> Owner | None:
    """Return the ``cache_owner`` of an owner who shares whole blocks with all that have such a one.

    Jobs without a ``cache_owner`` have these blocks too.
    """
    return None if owner is None else Owner(_SHARING + owner)


@lru_cache(maxsize=_OWNERS_MAX)
def _tags(owner: str) -> tuple[int, ...]:
    digest = hashlib.sha256(b"semantic-kv owner\0" + owner.encode()).digest()
    words = struct.unpack(f"<{_TAGS}H", digest)
    shared = SHARED_BIT if owner.startswith(_SHARING) else 0
    return tuple((word & ((1 << _TAG_BITS) - 1)) << ID_BITS | shared for word in words)


def _tagged(token_ids: Iterable[int], owner: str, start: int) -> list[int]:
    tags, plain = _tags(owner), list(token_ids)
    assert not any(one >> ID_BITS for one in plain), "an id has 20 bits"
    return [one | tags[at % _TAGS] for at, one in enumerate(plain, start)]


class OwnedTokens(tuple[int, ...]):  # noqa: SLOT001 - the ids are cached in its dictionary
    """Plain token ids, and the ids under which the cache knows them."""

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
        owner: The API key, or what ``sharing_blocks`` returned; ``None`` shares with all that have
            none.
    """
    return token_ids if owner is None else OwnedTokens.of(token_ids, owner)


def extended(token_ids: Sequence[int], more: Iterable[int]) -> tuple[int, ...]:
    """Return tokens with others behind them, of the same owner."""
    owner = token_ids.owner if isinstance(token_ids, OwnedTokens) else None
    return owned((*token_ids, *more), owner)


def cache_ids(token_ids: Sequence[int]) -> Sequence[int]:
    """Return the ids under which the cache knows tokens; for one object always the same."""
    return token_ids.cache_ids if isinstance(token_ids, OwnedTokens) else token_ids


def plain_ids(held: Iterable[int]) -> list[int]:
    """Return the ids that a model knows, of ids in the cache."""
    return [one & ID_MASK for one in held]


def context_of(token_ids: Sequence[int], held: list[int]) -> list[int]:
    """Return the list of a context that runs, to which plain ids are appended.

    Args:
        held: The first of them, under the ids of the owner of the context that runs again.
    """
    own = cache_ids(token_ids)[: len(held)]
    if isinstance(token_ids, OwnedTokens):
        return OwnedContext(own, token_ids.owner)
    return list(own)
