"""Keep a text closable: a known way from each of its states to an end of the grammar."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from heapq import heappop, heappush
from typing import Final

from llguidance import LLMatcher, LLTokenizer

#: Tokens to spare from which on each token is checked.
SPARE_TOKENS: Final = 128
#: Tokens before a check is due from which on draws are examined: a pass may verify a long draft.
_AHEAD_TOKENS: Final = 16
#: States that a search for an end visits.
_STATES_MAX: Final = 200
#: What a token costs that leaves the choices as they were, in choices of another token.
_REPETITION: Final = 1 / 32
#: The first choices: what closes a value, begins a short one, or stands between values; the same
#: within a string.
_USUAL: Final = ('}]",01nft-[{: aA2', '"aA012-: ')
#: Other tokens that are tried in a state, those with the lowest ids.
_OTHERS_MAX: Final = 12


class EndSearch:
    """Searches the shortest text with which a grammar may end, on matchers of one vocabulary."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self.vocabulary = vocabulary
        self._in_text = [one for text in "}a" for one in self._single(text)]
        self._usual = [[one for text in texts for one in self._single(text)] for texts in _USUAL]

    def find(self, matcher: LLMatcher, most: int) -> tuple[int, ...] | None:
        """Return the tokens from the matcher's state to an end; ``None`` if none is found.

        The first choice in each state closes what is open, or begins a short value. Other choices
        are tried in the order of their number, as in a limited discrepancy search.

        Args:
            most: Most tokens.
        """
        #: Cost, order, path, the mask before its last token, and choices in place of that token.
        queue: list[tuple[float, int, list[int], bytes, list[int]]] = [(0.0, 0, [], b"", [])]
        found = None
        for state in range(1, _STATES_MAX):
            if not queue or found is not None:
                break
            cost, _, path, before, others = heappop(queue)
            if others:
                heappush(queue, (cost + 1, state, [*path[:-1], others[0]], before, others[1:]))
            after = matcher.deep_copy()
            after.consume_tokens(path)
            forced = [] if after.is_accepting() else after.compute_ff_tokens()
            after.consume_tokens(forced)
            here = [*path, *forced]
            if len(here) > most:
                continue
            if after.is_accepting():
                found = tuple(here)
                continue
            mask = after.compute_bitmask()
            if choices := self._choices(mask):
                cost += _REPETITION if mask == before else 0.0
                heappush(queue, (cost, state, [*here, choices[0]], mask, choices[1:]))
        return found

    def _choices(self, mask: bytes) -> list[int]:
        """Return the tokens to try in a state."""
        in_text = all(_is_allowed(mask, one) for one in self._in_text)
        usual = (one for one in self._usual[in_text] if _is_allowed(mask, one))
        return list(dict.fromkeys([*usual, *self._lowest(mask)]))

    def _lowest(self, mask: bytes) -> Iterator[int]:
        bits, left = int.from_bytes(mask, "little"), _OTHERS_MAX
        while bits and left:
            token = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            # Marks begin other parts of an answer.
            if not self.vocabulary.is_special_token(token):
                left -= 1
                yield token

    def _single(self, text: str) -> list[int]:
        tokens = self.vocabulary.tokenize_str(text)
        return tokens if len(tokens) == 1 else []


class Closing:
    """Lets a text open nothing that it cannot close with the tokens that are left.

    A way is a list of tokens from a state to an end of the grammar. Near the limit, a token may
    come if a way from the state after it fits into the rest; otherwise the first token of the known
    way comes. So the way never becomes longer than the rest. What is known depends on the tokens
    of the text alone.

    Args:
        matcher: At the beginning of the text; the caller makes it consume each accepted token.
        left: Tokens that may come.
    """

    def __init__(self, matcher: LLMatcher, search: EndSearch, left: int) -> None:
        self._matcher = matcher
        self._search = search
        self._left = left
        #: With so many tokens left, a way is needed; -1 if none was found.
        self._due = left
        self._way: tuple[int, ...] | None = None
        #: Drawn tokens in whose place others came, also those of copies.
        self._replaced: list[int] = []

    def copied(self, matcher: LLMatcher) -> Closing:
        """Return one that continues with a copy of the matcher."""
        other = copy(self)
        other._matcher = matcher  # noqa: SLF001 - a copy of this one
        return other

    @property
    def is_cut(self) -> bool:
        """Whether a token came in the place of the one that was drawn."""
        return bool(self._replaced)

    @property
    def is_near(self) -> bool:
        """Whether the next draws must be examined."""
        return self._left - _AHEAD_TOKENS <= self._due

    def within(self, token: int) -> int:
        """Return the token that comes where ``token`` was drawn; it is not accepted yet."""
        end_tokens = self._search.vocabulary.eos_tokens
        way = None if token in end_tokens else self._way_now()
        if way is None or self._way_after(token, way) is not None:
            return token
        self._replaced.append(token)
        return way[0] if way else end_tokens[0]

    def accept(self, token: int) -> None:
        """Note a token that the matcher is about to consume."""
        way = self._way_now()
        self._way = None if way is None else self._way_after(token, way)
        self._left -= 1

    def _way_now(self) -> tuple[int, ...] | None:
        """Return a way from the present state; ``None`` where none is needed yet or none fits."""
        if self._left > self._due:
            return None
        if self._way is None:
            self._way = self._search.find(self._matcher, self._left)
        if self._way is None:
            self._due = -1
            return None
        spare = self._left - len(self._way)
        if spare > max(SPARE_TOKENS, 2 * len(self._way)):
            self._due, self._way = self._left - spare // 4, None
        return self._way

    def _way_after(self, token: int, way: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return a way from the state after a token that fits into the rest."""
        if way[:1] == (token,):
            return way[1:]
        after = self._matcher.deep_copy()
        if after.validate_tokens([token]) != 1:
            return None
        after.consume_token(token)
        most = self._left - 1
        for at in range(3):
            if len(way) - at <= most and _is_end(after.deep_copy(), way[at:]):
                return way[at:]
        return self._search.find(after, most)


def _is_end(matcher: LLMatcher, way: tuple[int, ...]) -> bool:
    """Return whether a way leads from the state of a matcher to an end."""
    tokens = list(way)
    is_possible = matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens)
    return is_possible and matcher.is_accepting()


def _is_allowed(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)
