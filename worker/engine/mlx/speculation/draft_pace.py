"""Decide for one sequence how many tokens are drafted, and stop where drafts do not pay."""

from __future__ import annotations

#: Most tokens of a draft.
DRAFT_TOKENS_MAX = 8
_FIRST_LIMIT, _SHORTEST_LIMIT = 4, 2
#: Bounds of the balance, in tokens: at the lower one drafting pauses.
_CREDIT_MAX, _DEBT_MAX = 4.0, 2.0
#: Balance after a pause: one failure is enough for the next one.
_BALANCE_AFTER_PAUSE = -1.0
#: Length of the first pause in tokens, and of the longest.
PAUSE_MIN, PAUSE_MAX = 32, 512


class DraftPace:
    """The balance of one sequence: tokens that drafts have won, less what they have cost.

    A token that is drafted and accepted saves a pass. A pass that verifies drafts takes longer than
    a plain one; what it takes longer is its cost, in plain passes, which are tokens not drawn.
    """

    def __init__(self) -> None:
        self._limit = _FIRST_LIMIT
        self._balance = 0.0
        self._pause = PAUSE_MIN
        self._resumes_at = 0

    def limit_at(self, tokens: int) -> int:
        """Return how many tokens may be drafted after ``tokens``; 0 during a pause."""
        return self._limit if tokens >= self._resumes_at else 0

    def record(self, tokens: int, *, drafted: int, accepted: int, cost: float) -> None:
        """Record a draft.

        Args:
            tokens: Tokens of the sequence after it.
            drafted: Tokens that were drafted; 0 for a guess that was wrong before it was verified.
            accepted: How many of them were drawn.
            cost: What the pass took longer, in tokens.
        """
        if drafted:
            wanted = 2 * self._limit if accepted == drafted else accepted + 1
            self._limit = max(_SHORTEST_LIMIT, min(wanted, DRAFT_TOKENS_MAX))
        self._balance = min(_CREDIT_MAX, self._balance + accepted - cost)
        if self._balance >= _CREDIT_MAX:
            self._pause = PAUSE_MIN
        if self._balance <= -_DEBT_MAX:
            self._resumes_at = tokens + self._pause
            self._pause = min(2 * self._pause, PAUSE_MAX)
            self._balance = _BALANCE_AFTER_PAUSE
