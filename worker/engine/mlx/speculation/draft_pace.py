"""Decide for one sequence how many tokens are drafted, and stop where drafts do not pay."""

from __future__ import annotations

#: Bounds of the balance, in tokens: at the lower one drafting pauses.
_CREDIT_MAX, _DEBT_MAX = 4.0, 2.0
#: Balance after a pause: one failure is enough for the next one.
_BALANCE_AFTER_PAUSE = -1.0
#: Length of the first pause in tokens, and of the longest.
PAUSE_MIN, PAUSE_MAX = 32, 512
#: Share of drafted tokens that are drawn, before any is known; weight of the newest token.
_FIRST_AGREEMENT, _NEWEST = 0.8, 0.1


class DraftPace:
    """The balance of one sequence: tokens that drafts have won, less what they have cost.

    A token that is drafted and accepted saves a pass. A pass that verifies drafts takes longer than
    a plain one; what it takes longer is its cost, in plain passes, which are tokens not drawn.

    Attributes:
        agreement: Probability that a drafted token is drawn, if those before it are.
    """

    def __init__(self) -> None:
        self.agreement = _FIRST_AGREEMENT
        self._balance = 0.0
        self._pause = PAUSE_MIN
        self._resumes_at = 0

    def is_paused(self, tokens: int) -> bool:
        """Return whether nothing is drafted after ``tokens``."""
        return tokens < self._resumes_at

    def record(self, tokens: int, *, drafted: int, accepted: int, cost: float) -> None:
        """Record a draft.

        Args:
            tokens: Tokens of the sequence after it.
            drafted: Tokens that were drafted; 0 for a guess that was wrong before it was verified.
            accepted: How many of them were drawn.
            cost: What the pass took longer, in tokens.
        """
        for _ in range(accepted):
            self.agreement += _NEWEST * (1 - self.agreement)
        if accepted < max(drafted, 1):
            self.agreement -= _NEWEST * self.agreement
        self._balance = min(_CREDIT_MAX, self._balance + accepted - cost)
        if self._balance >= _CREDIT_MAX:
            self._pause = PAUSE_MIN
        if self._balance <= -_DEBT_MAX:
            self._resumes_at = tokens + self._pause
            self._pause = min(2 * self._pause, PAUSE_MAX)
            self._balance = _BALANCE_AFTER_PAUSE
