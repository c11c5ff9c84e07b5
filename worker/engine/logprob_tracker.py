"""Which tokens the answer is made of, told while its text is still being sorted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from domain.chat.logprobs import Alternative, TokenLogprob
from worker.engine.ports import TokenLikelihood


@dataclass(slots=True)
class _Placed:
    """A token and the characters that it is part of, in all that was decoded."""

    value: TokenLogprob
    start: int
    end: int


class LogprobTracker:
    """The likelihoods of tokens whose text may become part of the answer.

    A token belongs to the answer if any of its characters does; it is told with the first of them.
    The tokens of one character share it. Those of tags, calls and reasoning, and tokens without
    bytes, are let go.

    Args:
        spelling: The bytes that a token adds to a text.
        known: What was told of tokens by earlier attempts, by place.
    """

    def __init__(
        self, spelling: Callable[[int], bytes], known: Mapping[int, TokenLogprob] | None = None
    ) -> None:
        self._spelling = spelling
        self._known = known or {}
        #: Tokens taken.
        self._count = 0
        #: Characters decoded, and how many they were before the latest token.
        self._at = self._before = 0
        #: Tokens of a character that is not complete.
        self._open: list[TokenLogprob] = []
        self._placed: deque[_Placed] = deque()
        #: What was told of the answer.
        self.told: list[TokenLogprob] = []

    def skip(self, text: str) -> None:
        """Take text that no token stands for."""
        self._before = self._at
        self._at += len(text)

    def add(self, token: int, likelihood: TokenLikelihood | None, text: str) -> None:
        """Take the next token.

        Args:
            token: Its id.
            likelihood: ``None`` where an earlier attempt knew.
            text: What became certain with it; empty inside a character.
        """
        value = self._known.get(self._count)
        if likelihood is not None:
            value = self._valued(token, likelihood)
        if value is not None and value.token:
            self._open.append(value)
        self._count += 1
        self.close(text)

    def close(self, text: str) -> None:
        """Take text that the tokens since the last text stand for."""
        self.skip(text)
        if text:
            self._placed += [_Placed(value, self._before, self._at) for value in self._open]
            self._open = []

    def take(self, start: int, end: int) -> tuple[TokenLogprob, ...]:
        """Return the tokens that begin with a part of the answer; let go of those before it."""
        taken = []
        while self._placed and self._placed[0].start < end:
            placed = self._placed.popleft()
            if placed.end > start:
                taken.append(placed.value)
        return tuple(taken)

    def let_go(self, end: int | None = None) -> None:
        """Let go of what ends before some place, by default before the latest token."""
        limit = self._before if end is None else end
        while self._placed and self._placed[0].end <= limit:
            self._placed.popleft()

    def later(
        self, last: int, ready: Iterable[tuple[TokenLogprob, ...]]
    ) -> tuple[TokenLogprob, ...]:
        """Return what is known of the last so many tokens and not told yet.

        Args:
            last: How many.
            ready: What is taken already for texts that are about to be said.
        """
        first = self._count - last
        waiting = [value for values in ready for value in values]
        waiting += [placed.value for placed in self._placed]
        return tuple(value for value in (*waiting, *self._open) if value.index >= first)

    def _valued(self, token: int, likelihood: TokenLikelihood) -> TokenLogprob:
        top = [Alternative(self._spelling(one), logprob) for one, logprob in likelihood.top]
        return TokenLogprob(self._count, self._spelling(token), likelihood.logprob, tuple(top))
