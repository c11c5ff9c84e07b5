"""Token limits of reasoning by effort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api.schemas.base import MAX_TOKENS_CEILING
from domain.chat.reasoning_limit import ThinkingLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Efforts:
    """Shares of an answer's token limit, each in [0, 1].

    The defaults of the lower efforts are those of the usual routers between these protocols; no
    vendor defines them. Every other effort may take all tokens except the share of the answer.

    Attributes:
        minimal: Share of reasoning at effort ``minimal``.
        low: Share of reasoning at effort ``low``.
        medium: Share of reasoning at effort ``medium``.
        answer: Share that every effort leaves to the answer.
    """

    minimal: float = 0.1
    low: float = 0.2
    medium: float = 0.5
    answer: float = 0.2

    def limit(
        self, effort: str | None, *, budget: int | None = None, forbidden: bool = False
    ) -> ThinkingLimit:
        """Return the limit of reasoning.

        Args:
            effort: Effort of the request; ``none`` forbids reasoning.
            budget: Most reasoning tokens of the request, if it sets a budget.
            forbidden: Whether the request turns reasoning off.
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
