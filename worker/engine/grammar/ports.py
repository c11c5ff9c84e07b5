"""The port between sampling and grammars: which tokens may come next in an answer.

A ``GuidanceMatcher`` follows one grammar token by token. A ``Constraint`` follows one answer, of
which only some parts have a grammar; reasoning and plain text are free. The sampler asks the
constraint for a mask before each token, and passes it the sampled token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from domain.errors import EngineFailure


class ConstraintLost(EngineFailure):
    """A matcher can no longer follow its grammar, so further tokens might not match it."""

    code = "constraint_lost"


class GrammarRefused(ValueError):
    """The library cannot compile or follow a grammar; the message has the reason."""


@dataclass(frozen=True, slots=True)
class LookAhead:
    """The tokens that a sequence may draw after its present one.

    Attributes:
        tokens: In order; each is allowed after those before it.
        odds: Probability of each, given those before it; ``None`` for a token of the caller's.
        masks: The mask before each of them, and after the last.
    """

    tokens: list[int] = field(default_factory=list)
    odds: list[float | None] = field(default_factory=list)
    masks: list[bytes | None] = field(default_factory=list)


class Unlimited:
    """The parts of a ``Constraint`` whose draws no limit of tokens changes."""

    is_near_limit = False
    is_cut = False
    looks_ahead = False

    def within_limit(self, token: int) -> int:
        """Return the token."""
        return token

    def ahead(self) -> Constraint | None:
        """Return ``None``."""
        return None


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

    @property
    def is_near_limit(self) -> bool:
        """Whether the limit of tokens may change one of the next draws."""
        ...

    @property
    def is_cut(self) -> bool:
        """Whether the limit of tokens has changed a draw."""
        ...

    def within_limit(self, token: int) -> int:
        """Return the token that comes in the place of a drawn one, usually the same.

        Near the limit of tokens, it is one that begins the end of the answer where the drawn one
        would open more than can be closed.
        """
        ...

    @property
    def looks_ahead(self) -> bool:
        """Whether ``ahead`` returns a copy."""
        ...

    def ahead(self) -> Constraint | None:
        """Return a copy, to follow tokens that may come; ``None`` if there can be none now."""
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
