"""The port between sampling and grammars: which tokens may come next in an answer.

A ``Matcher`` follows one grammar token by token. A ``Constraint`` follows one answer, of which only
some parts have a grammar; reasoning and plain text are free. The sampler asks the constraint for a
mask before each token, and passes it the sampled token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from domain.chat.generation import Claim
from domain.errors import EngineFailure


class ConstraintLost(EngineFailure):
    """A matcher can no longer follow its grammar, so further tokens might not match it."""

    code = "constraint_lost"


class GrammarRefused(ValueError):
    """The library cannot compile or follow a grammar; the message has the reason."""


class Constraint(Protocol):
    """The constraint of one answer: a pure function of its tokens. Used by one thread at a time."""

    @property
    def accepted_count(self) -> int:
        """Number of tokens of the answer accepted so far."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether all further tokens are unconstrained."""
        ...

    def accept(self, token: int) -> None:
        """Accept the next token of the answer. Never raises; ``mask`` raises for a lost grammar."""
        ...

    def mask(self) -> bytes | None:
        """Return the mask of allowed next tokens, ``None`` if all are allowed.

        The mask has one bit for each token id, the lowest bit of a byte first; ids beyond its end
        are not allowed.

        Raises:
            ConstraintLost: The matcher can no longer follow the grammar.
        """
        ...


class Matcher(Protocol):
    """Follows one grammar from its beginning to its end."""

    @property
    def is_over(self) -> bool:
        """Whether only the end of the turn may follow."""
        ...

    def accept(self, token: int) -> bool:
        """Accept a token; return whether it matches. After a mismatch no token matches."""
        ...

    def accept_text(self, text: str) -> bool:
        """Accept text that the model did not sample, such as the end of the prompt."""
        ...

    def mask(self) -> bytes:
        """Return the mask of allowed next tokens, including end tokens where the grammar may end.

        Raises:
            ConstraintLost: The grammar exceeds the limits of the library.
        """
        ...


class Grammars(Protocol):
    """Makes matchers for the vocabulary of one model, for one request."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a turn."""
        ...

    def tag(self, text: str) -> str:
        """Return a tag as a grammar writes it: by its id if it is a token, else as text."""
        ...

    def refusal(self, grammar: str) -> str | None:
        """Return why the library cannot follow a grammar, ``None`` if it can."""
        ...

    def matchers(self, grammar: str) -> Callable[[], Matcher]:
        """Return what makes fresh matchers of a grammar, without compiling it again.

        Args:
            grammar: In the library's Lark dialect.

        Raises:
            GrammarRefused: The library cannot follow the grammar.
            GenerationCancelled: The request was cancelled.
        """
        ...


class GrammarLibrary(Protocol):
    """The grammars of all requests. Safe to use from any thread."""

    def of(self, claim: Claim) -> Grammars:
        """Return the grammars of a request."""
        ...
