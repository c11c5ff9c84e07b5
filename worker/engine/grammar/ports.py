"""What a sequence may say next: the port between sampling and grammars.

A *matcher* follows one grammar token by token. A *constraint* follows one answer, of which only
parts have a grammar: reasoning and plain text are free.
"""

from __future__ import annotations

from typing import Protocol

from domain.errors import EngineFailure


class ConstraintLost(EngineFailure):
    """A grammar cannot be followed any further; what would come then might not match it."""

    code = "constraint_lost"


class GrammarRefused(ValueError):
    """The library cannot follow this grammar; says why."""


class Constraint(Protocol):
    """One answer. Belongs to one thread at a time; given the same tokens it says the same."""

    @property
    def accepted_count(self) -> int:
        """How many tokens of the answer it knows, from the first one on."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether nothing is held to anything any more, whatever comes."""
        ...

    def accept(self, token: int) -> None:
        """Take the next token of the answer. Never raises: what went wrong is said by ``mask``."""
        ...

    def mask(self) -> bytes | None:
        """Return which tokens may come next, a bit for each id, the lowest bit of a byte first.

        ``None`` means any; ids beyond the last bit may not come.

        Raises:
            ConstraintLost: That cannot be told any more.
        """
        ...


class Matcher(Protocol):
    """One grammar, from its beginning to its end."""

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of the turn may follow."""
        ...

    def accept(self, token: int) -> bool:
        """Take a token; return whether it fits. After one that does not, nothing fits."""
        ...

    def accept_text(self, text: str) -> bool:
        """The same for text that somebody else wrote."""
        ...

    def mask(self) -> bytes:
        """Return what may come next, as in ``Constraint``; end tokens too where it may end.

        Raises:
            ConstraintLost: The grammar has become too much to follow.
        """
        ...


class Grammars(Protocol):
    """Makes matchers for the vocabulary of one model. Safe to use from any thread."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a turn."""
        ...

    def tag(self, text: str) -> str:
        """Return how a grammar writes a tag, which may be a token of its own."""
        ...

    def refusal(self, grammar: str) -> str | None:
        """Return why the library cannot follow a grammar, ``None`` if it can."""
        ...

    def matcher(self, grammar: str) -> Matcher:
        """Return a fresh matcher.

        Args:
            grammar: In the library's Lark dialect.

        Raises:
            GrammarRefused: Saying why.
        """
        ...
