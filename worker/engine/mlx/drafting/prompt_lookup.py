"""Guesses of the next tokens of a sequence from its own text."""

from __future__ import annotations

from collections.abc import Sequence

from domain.kv.hashing import ID_BITS, ID_MASK
from domain.kv.owned_tokens import plain_ids

#: Tokens that two places must share for one to continue as the other did.
GRAM_TOKENS = 3
#: N-grams in the younger of two indexes; the older one holds as many.
GRAMS_MAX = 32_768
#: N-grams indexed in one call, so that a long prompt delays no step.
GRAMS_PER_CALL = 512
#: Share of guesses that are drawn after one that was, before any is known; weight of the newest.
FIRST_AGREEMENT, _NEWEST = 0.8, 0.1


class PromptLookup:
    """The places of the n-grams of one sequence, the latest of each.

    Args:
        tokens: The tokens of the sequence under their ids in the cache, of which the plain ones
            count. The caller appends to them between calls and never
            changes them.

    Attributes:
        agreement: Probability that a guessed token is drawn if the one before it was. Each guess
            counts, whether it was verified as a draft or not.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        #: The n-gram that ends before this token is the next to be indexed.
        self._next_end = GRAM_TOKENS
        #: The token that the next one is expected to equal, and for what number of tokens.
        self._source: int | None = None
        self._length = 0
        self.agreement = FIRST_AGREEMENT
        #: Whether the place has guessed right so far, at least once.
        self._is_confirmed = False

    def propose(self, count: int) -> list[int]:
        """Return a guess of the next ``count`` tokens; empty where no earlier place is known.

        A place that has guessed right so far is followed. Where it ends at the newest token, the
        guess repeats what lies between.
        """
        self._index()
        source = self._follow()
        if source is None:
            source, self._is_confirmed = self._find(), False
        self._source, self._length = source, len(self._tokens)
        if source is None:
            return []
        period = self._length - source
        return plain_ids(self._tokens[source + at % period] for at in range(count))

    def _index(self) -> None:
        # The last n-gram is left out: nothing follows it yet.
        first = self._next_end
        self._next_end = max(first, min(len(self._tokens), first + GRAMS_PER_CALL))
        for end in range(first, self._next_end):
            self._young[self._key(end)] = end
        if len(self._young) >= GRAMS_MAX:
            self._old, self._young = self._young, {}

    def _follow(self) -> int | None:
        """Return the place after the new tokens, if they are those that were expected."""
        source = self._source
        if source is None:
            return None
        new = len(self._tokens) - self._length
        for at in range(new):
            is_right = self._are_equal(source + at, self._length + at)
            if self._is_confirmed:
                self.agreement += _NEWEST * (is_right - self.agreement)
            if not is_right:
                return None
            self._is_confirmed = True
        return source + new

    def _find(self) -> int | None:
        """Return the token after the latest indexed place with the same last tokens."""
        length = len(self._tokens)
        if length < GRAM_TOKENS:
            return None
        key = self._key(length)
        end = self._young.get(key) or self._old.get(key)
        if end is None:
            return None
        same = all(self._are_equal(end - at, length - at) for at in (1, 2, 3))
        return end if same else None

    def _are_equal(self, one: int, other: int) -> bool:
        return not (self._tokens[one] ^ self._tokens[other]) & ID_MASK

    def _key(self, end: int) -> int:
        first, second, third = plain_ids(self._tokens[end - GRAM_TOKENS : end])
        return (first << ID_BITS | second) << ID_BITS | third
