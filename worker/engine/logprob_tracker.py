"""Assign log probabilities to the parts of the answer while its text is being parsed.

The parser decides late which characters are answer text, and one token may end in the middle of a
character. So the tracker keeps the character range of each token until its text is decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from domain.chat.logprobs import Alternative, TokenLogprob
from worker.engine.ports import TokenLikelihood


@dataclass(slots=True)
class _Placed:
    """A token and its range of characters in the decoded output."""

    value: TokenLogprob
    start: int
    end: int


class LogprobTracker:
    """The log probabilities of tokens whose text may become part of the answer.

    A token belongs to the answer if at least one of its characters does; it is emitted with the
    first of them. Several tokens of one character share that character. Tokens of tags, tool calls
    and reasoning, and tokens without bytes, are discarded.

    Args:
        token_bytes: The bytes that a token adds to the text.
        recorded: Log probabilities that earlier attempts recorded, by index of the token.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        recorded: Mapping[int, TokenLogprob] | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._recorded = recorded or {}
        #: Number of tokens added.
        self._count = 0
        #: Number of characters decoded, and the same before the latest token.
        self._at = self._before = 0
        #: Tokens of a character that is not complete.
        self._open: list[TokenLogprob] = []
        self._placed: deque[_Placed] = deque()
        #: Log probabilities of the answer's tokens so far.
        self.emitted: list[TokenLogprob] = []

    def skip(self, text: str) -> None:
        """Advance past text that belongs to no token."""
        self._before = self._at
        self._at += len(text)

    def add(self, token: int, likelihood: TokenLikelihood | None, text: str) -> None:
        """Add the next token.

        Args:
            token: Its id.
            likelihood: ``None`` for a token of an earlier attempt.
            text: Text that the token completes; empty inside a character.
        """
        value = self._recorded.get(self._count)
        if likelihood is not None:
            value = self._logprob_of(token, likelihood)
        if value is not None and value.token:
            self._open.append(value)
        self._count += 1
        self.close(text)

    def close(self, text: str) -> None:
        """Assign text to the tokens added since the last text."""
        self.skip(text)
        if text:
            self._placed += [_Placed(value, self._before, self._at) for value in self._open]
            self._open = []

    def take(self, start: int, end: int) -> tuple[TokenLogprob, ...]:
        """Remove and return the tokens of a range of answer characters; discard those before it."""
        taken = []
        while self._placed and self._placed[0].start < end:
            placed = self._placed.popleft()
            if placed.end > start:
                taken.append(placed.value)
        return tuple(taken)

    def discard(self, end: int | None = None) -> None:
        """Discard tokens that end at or before a character, by default before the latest token."""
        limit = self._before if end is None else end
        while self._placed and self._placed[0].end <= limit:
            self._placed.popleft()

    def pending(
        self, last: int, ready: Iterable[tuple[TokenLogprob, ...]]
    ) -> tuple[TokenLogprob, ...]:
        """Return the log probabilities of the ``last`` newest tokens that are not emitted yet.

        Args:
            last: Number of tokens.
            ready: Log probabilities already taken for texts that wait to be emitted.
        """
        first = self._count - last
        waiting = [value for values in ready for value in values]
        waiting += [placed.value for placed in self._placed]
        return tuple(value for value in (*waiting, *self._open) if value.index >= first)

    def _logprob_of(self, token: int, likelihood: TokenLikelihood) -> TokenLogprob:
        top = [Alternative(self._token_bytes(other), logprob) for other, logprob in likelihood.top]
        return TokenLogprob(self._count, self._token_bytes(token), likelihood.logprob, tuple(top))
