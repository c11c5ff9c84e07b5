"""Prompt-lookup speculation: guesses, their number, what a pass costs, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from domain.kv.hashing import common_tokens

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


#: Weight of the newest plain pass in the average.
_NEWEST = 0.2
#: A plain pass counts at most as this many average ones; another process may have interrupted it.
_OUTLIER = 2.0
#: Least cost of a draft, in tokens.
COST_MIN = 0.1
#: Most cost of a position for each row, in tokens; another process may have interrupted the pass.
ROW_COST_MAX = 2.0


class PassTimes:
    """The duration of plain passes by number of rows, and the cost of those with drafts.

    A plain pass is started before the tokens of the one before are read. Its duration is therefore
    the time from one reading to the next.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        #: Average seconds of a plain pass, by rows.
        self._plain: dict[int, float] = {}
        #: Average cost of a drafted position, in tokens, by rows.
        self._position_costs: dict[int, float] = {}
        self._since: float | None = None
        self._was_plain = False

    def position_cost(self, rows: int) -> float:
        """Return what each position of a draft costs a pass, in tokens; 0 where it is unknown.

        All rows of a pass are as long as its longest draft.
        """
        return self._position_costs.get(rows, 0.0)

    def interrupt(self) -> None:
        """Leave out the time until the next pass: something else runs in between."""
        self._since = None

    def record_reading(self) -> None:
        """Record that the tokens of the last pass are read; a pass with drafts may start."""
        if self._was_plain or self._since is None:
            self._since = self._clock()

    def record_plain(self, rows: int) -> None:
        """Record a plain pass."""
        now = self._clock()
        if self._since is not None and self._was_plain:
            seconds = now - self._since
            average = self._plain.setdefault(rows, seconds)
            self._plain[rows] += _NEWEST * (min(seconds, _OUTLIER * average) - average)
        self._since, self._was_plain = now, True

    def record_drafts(self, rows: int, drafting: int, positions: int) -> float:
        """Record a pass with drafts.

        Args:
            rows: Rows of the pass.
            drafting: How many of them had a draft.
            positions: Length of the longest draft.

        Returns:
            The cost for each row with a draft: what the pass took longer than a plain one, times
            the tokens that a plain one draws.
        """
        since, now = self._since, self._clock()
        self._since, self._was_plain = now, False
        plain = self._plain.get(rows)
        if since is None or not plain:
            return COST_MIN
        longer = max(0.0, (now - since) / plain - 1)
        cost = min(longer, ROW_COST_MAX * positions) * rows
        known = self._position_costs.setdefault(rows, cost / positions)
        self._position_costs[rows] += _NEWEST * (cost / positions - known)
        return max(COST_MIN, cost / drafting)


#: Tokens that two places must share for one to continue as the other did.
GRAM_TOKENS = 3
#: N-grams in the younger of two indexes; the older one holds as many.
GRAMS_MAX = 32_768
#: N-grams indexed in one call, so that a long prompt delays no step.
GRAMS_PER_CALL = 512
#: Bits of a token id in a key. Longer ids may collide, which is checked.
_ID_BITS = 21


class PromptLookup:
    """The places of the n-grams of one sequence, the latest of each.

    Args:
        tokens: The tokens of the sequence. The caller appends to them between calls and never
            changes them.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        #: The n-gram that ends before this token is the next to be indexed.
        self._next_end = GRAM_TOKENS
        #: The token that the next one is expected to equal, and for what number of tokens.
        self._source: int | None = None
        self._length = 0

    @property
    def entries(self) -> int:
        """Return the number of n-grams in the index."""
        return len(self._young) + len(self._old)

    def propose(self, count: int) -> list[int]:
        """Return a guess of the next ``count`` tokens; empty where no earlier place is known.

        A place that has guessed right so far is followed. Where it ends at the newest token, the
        guess repeats what lies between.
        """
        self._index()
        source = self._follow()
        if source is None:
            source = self._find()
        self._source, self._length = source, len(self._tokens)
        if source is None:
            return []
        period = self._length - source
        return [self._tokens[source + at % period] for at in range(count)]

    def _index(self) -> None:
        # The last n-gram is left out: nothing follows it yet.
        first = self._next_end
        self._next_end = max(first, min(len(self._tokens), first + GRAMS_PER_CALL))
        for end in range(first, self._next_end):
            self._young[self._key(end)] = end
        if len(self._young) >= GRAMS_MAX:
            self._old, self._young = self._young, {}

    def _follow(self) -> int | None:
        """Return the place after the new tokens, if they are those that were expected."""
        source = self._source
        if source is None:
            return None
        new = len(self._tokens) - self._length
        for at in range(new):
            if self._tokens[source + at] != self._tokens[self._length + at]:
                return None
        return source + new

    def _find(self) -> int | None:
        """Return the token after the latest indexed place with the same last tokens."""
        length = len(self._tokens)
        if length < GRAM_TOKENS:
            return None
        key = self._key(length)
        end = self._young.get(key) or self._old.get(key)
        if end is None:
            return None
        same = all(self._tokens[end - at] == self._tokens[length - at] for at in (1, 2, 3))
        return end if same else None

    def _key(self, end: int) -> int:
        first, second, third = self._tokens[end - GRAM_TOKENS : end]
        return (first << _ID_BITS | second) << _ID_BITS | third


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
