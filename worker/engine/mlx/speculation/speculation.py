"""The drafts of the rows that decode: what to verify in the next pass, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from domain.kv.hashing import common_tokens
from worker.engine.mlx.speculation.draft_pace import DraftPace
from worker.engine.mlx.speculation.pass_times import COST_MIN, PassTimes
from worker.engine.mlx.speculation.prompt_lookup import PromptLookup


class SpeculatedRow(Protocol):
    """A row as ``Speculation`` needs it."""

    @property
    def uid(self) -> int:
        """Its name."""
        ...

    @property
    def tokens(self) -> list[int]:
        """Ids of the tokens in its caches."""
        ...


#: Most tokens of a draft.
DRAFT_TOKENS_MAX = 8
#: Passes that are refused before drafts of ``_ATTEMPT_TOKENS`` are verified after all, at first and
#: at most. The cost of a pass may have changed.
ATTEMPT_PASSES_MIN, ATTEMPT_PASSES_MAX = 32, 512
_ATTEMPT_TOKENS = 2
#: What drafts must be expected to win for each token that they cost; both are estimates.
_MARGIN = 1.25


@dataclass(slots=True)
class _Sequence:
    lookup: PromptLookup
    pace: DraftPace


class Speculation:
    """Drafts the next tokens of each row from its own tokens.

    Args:
        room: From the uid of a row and its tokens in the caches to the most tokens that may be
            drafted for it.
        take_back: Called with the uid of a row and the number of its draws that were rejected; the
            sampler draws them again.
        end_ids: Tokens that end an answer; nothing is drafted after one.
        on_draft: Called with the length of a draft that was verified, and how many of its tokens
            were drawn.
        times: Measures the passes.
    """

    def __init__(
        self,
        room: Callable[[int, int], int],
        take_back: Callable[[int, int], None],
        end_ids: frozenset[int],
        on_draft: Callable[[int, int], None],
        times: PassTimes | None = None,
    ) -> None:
        self._room = room
        self._take_back = take_back
        self._end_ids = end_ids
        self._on_draft = on_draft
        self.times = PassTimes() if times is None else times
        self._sequences: dict[int, _Sequence] = {}
        #: Passes refused since the last draft, and how many are refused before an attempt.
        self._refused = 0
        self._attempt_passes = ATTEMPT_PASSES_MIN

    def drop(self, uids: Iterable[int]) -> None:
        """Forget sequences; unknown uids are ignored."""
        for uid in uids:
            self._sequences.pop(uid, None)

    def guess(self, rows: Sequence[SpeculatedRow]) -> dict[int, list[int]]:
        """Return guesses by uid: the token that is drawn but not read yet, and a draft after it.

        No guess costs nothing but the look-up: the pass that draws the next tokens can be started
        before the present ones are read.
        """
        guesses: dict[int, list[int]] = {}
        for row in rows:
            sequence = self._sequences.get(row.uid)
            if sequence is None:
                sequence = self._sequences[row.uid] = _Sequence(
                    PromptLookup(row.tokens), DraftPace()
                )
            tokens = len(row.tokens)
            paused = sequence.pace.is_paused(tokens)
            limit = 0 if paused else min(DRAFT_TOKENS_MAX, self._room(row.uid, tokens))
            # During a pause too, the index keeps up with the sequence.
            guess = sequence.lookup.propose(max(limit, 0) + 1)
            if limit > 0 and guess:
                guesses[row.uid] = guess
        length = self._best_length(len(rows), guesses) if guesses else 0
        return {uid: guess[: 1 + length] for uid, guess in guesses.items()} if length else {}

    def _best_length(self, rows: int, guesses: Mapping[int, Sequence[int]]) -> int:
        """Return the length of drafts that wins most tokens; 0 where none wins any."""
        position_cost = _MARGIN * self.times.position_cost(rows)
        won = best_won = 0.0
        best = 0
        for length in range(1, DRAFT_TOKENS_MAX + 1):
            won -= position_cost
            for uid, guess in guesses.items():
                if len(guess) > length:
                    won += self._sequences[uid].pace.agreement ** length
            if won > best_won:
                best, best_won = length, won
        if best:
            self._attempt_passes = ATTEMPT_PASSES_MIN
            return best
        self._refused += 1
        if self._refused < self._attempt_passes:
            return 0
        self._refused, self._attempt_passes = 0, min(2 * self._attempt_passes, ATTEMPT_PASSES_MAX)
        return _ATTEMPT_TOKENS

    def confirm(
        self,
        rows: Sequence[SpeculatedRow],
        drawn: Sequence[int],
        guesses: Mapping[int, Sequence[int]],
    ) -> list[list[int]]:
        """Return the draft of each row, now that the drawn tokens are read; empty for none."""
        self.times.record_reading()
        drafts = []
        for row, token in zip(rows, drawn, strict=True):
            guess = guesses.get(row.uid, ())
            draft = self._until_end(guess) if guess and guess[0] == token else []
            if guess and not draft:
                pace = self._sequences[row.uid].pace
                pace.record(len(row.tokens), drafted=0, accepted=0, cost=COST_MIN)
            drafts.append(draft)
        return drafts

    def settle(
        self, rows: Sequence[SpeculatedRow], drafts: Sequence[Sequence[int]], draws: Sequence[int]
    ) -> list[int]:
        """Record a pass with drafts; return how many tokens of each draft were drawn.

        Args:
            drafts: The draft of each row.
            draws: The tokens drawn after the present token of a row and after each of its draft,
                row by row.
        """
        lengths = [len(draft) + 1 for draft in drafts]
        drafting = sum(map(bool, drafts))
        cost = self.times.record_drafts(len(rows), drafting, max(lengths) - 1)
        accepted, first = [], 0
        for row, draft, length in zip(rows, drafts, lengths, strict=True):
            count = common_tokens(draft, draws[first : first + length])
            accepted.append(count)
            first += length
            if draft:
                self._record(row, len(draft), count, cost)
        return accepted

    def _record(self, row: SpeculatedRow, drafted: int, accepted: int, cost: float) -> None:
        self._on_draft(drafted, accepted)
        if accepted < drafted:
            self._take_back(row.uid, drafted - accepted)
        after = len(row.tokens) + 1 + accepted
        pace = self._sequences[row.uid].pace
        pace.record(after, drafted=drafted, accepted=accepted, cost=cost)

    def _until_end(self, guess: Sequence[int]) -> list[int]:
        """Return the draft of a guess, up to the first token that ends an answer."""
        draft: list[int] = []
        for before, token in pairwise(guess):
            if before in self._end_ids:
                break
            draft.append(token)
        return draft
