"""How much of an answer may be reasoning."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """What reasoning may take before it is closed and the answer goes on; the lesser counts.

    It is part of the request in the log, so that each attempt and each replay closes the reasoning
    at the same token whatever the settings are by then.

    Attributes:
        tokens: Most tokens, the tags around it included; ``None`` if the caller set no budget.
        share: Most of the tokens that may be generated, in [0, 1]; 1 limits nothing.
    """

    tokens: int | None = None
    share: float = 1.0

    def within(self, max_tokens: int) -> int | None:
        """Return the limit of an answer of so many tokens, ``None`` if there is none."""
        limits = [] if self.tokens is None else [self.tokens]
        if self.share < 1:
            limits.append(math.floor(self.share * max_tokens))
        return min(limits, default=None)
