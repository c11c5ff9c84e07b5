"""How much reasoning an effort is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from api.schemas.base import MAX_TOKENS_CEILING
from domain.chat.reasoning_limit import ThinkingLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Efforts:
    """Shares of the tokens that may be generated, each in [0, 1].

    The shares of the lower efforts are those that routers between these protocols use; nothing
    standardises them. Any other effort sets no limit but the room of the answer: that there is an
    answer at all is part of every effort.

    Attributes:
        minimal: Of ``minimal``.
        low: Of ``low``.
        medium: Of ``medium``.
        answer: What is kept for the answer, whatever was asked.
    """

    minimal: float = 0.1
    low: float = 0.2
    medium: float = 0.5
    answer: float = 0.2

    def limit(
        self, effort: str | None, *, budget: int | None = None, forbidden: bool = False
    ) -> ThinkingLimit:
        """Return what reasoning may take.

        Args:
            effort: As the caller wrote it; ``none`` forbids reasoning.
            budget: Most tokens, if the caller says so.
            forbidden: Whether the caller wants none.
        """
        most = 1 - self.answer
        if forbidden or effort == "none":
            return ThinkingLimit(tokens=0, share=most)
        shares: Mapping[str | None, float] = {
            "minimal": self.minimal,
            "low": self.low,
            "medium": self.medium,
        }
        tokens = None if budget is None else min(budget, MAX_TOKENS_CEILING)
        return ThinkingLimit(tokens=tokens, share=min(shares.get(effort, most), most))


#: Where nothing else is set.
EFFORTS: Final = Efforts()
