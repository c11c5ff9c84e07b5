"""Speculation: drafts, their number, what a pass over them costs, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, Protocol

from domain.chat.images import IMAGE_ID_MIN
from domain.kv.hashing import common_tokens
from domain.kv.plan import DrafterMemory
from worker.engine.mlx.drafting.pass_times import CREDIT_PASSES, PassTimes
from worker.engine.mlx.drafting.prompt_lookup import FIRST_AGREEMENT, PromptLookup
from worker.engine.mlx.sampling.masks import LogitMasks

#: Weight of the newest token of a drafter, which counts for all rows; and how many tokens the first
#: guess of its agreement counts for, so that one that is often wrong is soon known.
_NEWEST_OF_ALL, _GUESSED_TOKENS = 0.02, 12


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


class Drafter(Protocol):
    """Drafts tokens of rows whose own text has no guess. It needs the drawn tokens, and has a cost.

    A draft model is one, and a head that the model brings.
    """

    def observe(
        self,
        rows: Sequence[SpeculatedRow],
        states: Any,  # noqa: ANN401 - an array of MLX
        lengths: Sequence[int],
        kept: Sequence[int],
    ) -> None:
        """Record a pass whose tokens are in the caches now.

        Args:
            states: What the output head has read: the state after each token, row by row,
                [tokens, dim].
            lengths: Tokens of each row in the pass.
            kept: How many of them the row has, the first ones.
        """
        ...

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        """Return the next ``count`` tokens of each row after the drawn one."""
        ...

    def drop(self, uids: Iterable[int]) -> None:
        """Forget sequences; unknown uids are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class DrafterSource:
    """What drafts, loaded; sequences come and go with each ``Drafter`` of it.

    Attributes:
        new_drafter: Returns what drafts, without a sequence.
        ability: What is reported of the model's speculation; empty for nothing.
    """

    new_drafter: Callable[[], Drafter]
    memory: DrafterMemory
    ability: str = ""


#: Most tokens of a draft.
DRAFT_TOKENS_MAX = 8
#: Most tokens of the first draft.
FIRST_DRAFT_TOKENS_MAX = 2
#: Most drafted tokens of a pass, in times the most that were measured; the same for a probe.
GROWTH, PROBE_GROWTH = 4, 2
#: Passes that are refused before a draft is verified after all: what one costs may have changed.
PROBE_PASSES = 32
#: Passes without the duration of a plain one before a pass over a draft of one token stands in for
#: it: prompts that are read between all passes leave none.
BASELINE_PASSES = 64
#: What drafts must be expected to win for each second that they cost; both are estimates.
_MARGIN = 1.25


class Speculation:
    """Drafts the next tokens of each row from its own tokens, or by a drafter.

    Args:
        room: From the uid of a row and its tokens in the caches to the most tokens that may be
            drafted for it.
        take_back: Called with the uid of a row and the number of its draws that were rejected; the
            sampler draws them again.
        end_ids: Tokens that end an answer; nothing is drafted after one.
        on_draft: Called with the length of a draft that was verified, and how many of its tokens
            were drawn.
        times: Measures the passes.
        drafter: Drafts for rows without a guess of their own; ``None`` for no others.
        restrictions: What the rows may draw; ``None`` where nothing restricts any.
    """

    def __init__(
        self,
        room: Callable[[int, int], int],
        take_back: Callable[[int, int], None],
        end_ids: frozenset[int],
        on_draft: Callable[[int, int], None],
        times: PassTimes | None = None,
        drafter: Drafter | None = None,
        restrictions: LogitMasks | None = None,
    ) -> None:
        self._restrictions = restrictions
        #: The probability of each guessed token of a restricted row, given those before it.
        self._odds: dict[int, list[float]] = {}
        #: Whether the present tokens are read before the next pass, whatever it drafts.
        self._reads_first = False
        self._room = room
        self._take_back = take_back
        self._end_ids = end_ids
        self._on_draft = on_draft
        self.times = PassTimes() if times is None else times
        self._drafter = drafter
        #: Probability that a token of the drafter is drawn if the one before it was.
        self._agreement = FIRST_AGREEMENT
        #: Its tokens that were drawn or not, and those that the first guess counts for.
        self._judged = _GUESSED_TOKENS
        #: Most tokens of each row of the last call of ``guess``.
        self._limits: dict[int, int] = {}
        #: What the drafter has proposed for the rows whose drafts are its own.
        self._drafted: dict[int, list[int]] = {}
        self._lookups: dict[int, PromptLookup] = {}
        #: Sequences whose next token is not the one that is guessed: it was drafted and rejected.
        self._rejected: set[int] = set()
        #: Passes refused since the last draft.
        self._refused = 0

    def drop(self, uids: Collection[int]) -> None:
        """Forget sequences; unknown uids are ignored."""
        for uid in uids:
            self._lookups.pop(uid, None)
            self._odds.pop(uid, None)
            self._rejected.discard(uid)
        if self._drafter is not None:
            self._drafter.drop(uids)

    def observe(
        self,
        rows: Sequence[SpeculatedRow],
        states: Any,  # noqa: ANN401 - an array of MLX
        lengths: Sequence[int],
        kept: Sequence[int],
    ) -> None:
        """Record what ``Drafter.observe`` does."""
        if self._drafter is not None:
            self._drafter.observe(rows, states, lengths, kept)

    def guess(self, rows: Sequence[SpeculatedRow]) -> dict[int, list[int]]:
        """Return guesses by uid: the token that is drawn but not read yet, and a draft after it.

        An empty one is left to the drafter, or to what a grammar lets follow the present token. No
        guess costs nothing but the look-up: the pass that draws the next tokens can be started
        before the present ones are read.
        """
        guesses: dict[int, list[int]] = {}
        self._limits = {}
        self._odds.clear()
        masked: dict[int, list[int]] = {}
        for row in rows:
            lookup = self._lookups.get(row.uid)
            if lookup is None:
                lookup = self._lookups[row.uid] = PromptLookup(row.tokens)
            limit = self._limits[row.uid] = self._limit(row)
            # Without room too, the index keeps up with the sequence.
            guess = lookup.propose(limit + 1)
            if limit and guess and row.uid not in self._rejected:
                guesses[row.uid] = guess
            if limit and self._restrictions is not None and self._restrictions.is_masked(row.uid):
                masked[row.uid] = guess
        self._rejected.clear()
        self._reads_first = bool(masked) and self._may_wait(len(rows))
        plan = self._plan(len(rows), guesses) if guesses else {}
        opened = {uid: guesses[uid] for uid in plan}
        left = [uid for uid, limit in self._limits.items() if limit and uid not in plan]
        if self._drafter is not None and left:
            if self._drafter_tokens(len(rows), len(left)):
                opened.update((uid, []) for uid in left)
            self._refused += not opened
        else:
            self._refused += bool(guesses) and not plan
        return masked | opened if self._reads_first else opened

    def _limit(self, row: SpeculatedRow) -> int:
        """Return the most tokens that may be drafted for a row."""
        if self._restrictions is not None and not self._restrictions.looks_ahead(row.uid):
            return 0
        return max(0, min(DRAFT_TOKENS_MAX, self._room(row.uid, len(row.tokens))))

    def _may_wait(self, rows: int) -> bool:
        """Return whether the next pass may wait until the present tokens are read."""
        times = self.times
        return times.plain_s(rows) is not None and times.credit_s >= 0 and not times.is_retiming

    def _plan(self, rows: int, guesses: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Return the tokens to draft, by uid: each row as many as win more than they cost."""
        plain = self.times.plain_s(rows)
        if plain is None:
            is_due = self.times.passes_unknown >= BASELINE_PASSES
            return dict.fromkeys(list(guesses)[:1], 1) if is_due else {}
        if self.times.credit_s < 0 or self.times.is_retiming:
            return {}
        cost = self.times.cost
        if cost is not None:
            start_s, token_s = _MARGIN * cost[0], _MARGIN * cost[1]
            plan, won, room = {}, -start_s, GROWTH * self.times.drafted_max
            for uid, guess in guesses.items():
                wins = [one - token_s for one in self._wins(uid, guess, plain / rows)]
                if length := min(sum(win > 0 for win in wins), room):
                    plan[uid] = length
                    won += sum(wins[:length])
                    room -= length
            if won > 0:
                return plan
            if self._refused < PROBE_PASSES and self.times.drafted_max >= DRAFT_TOKENS_MAX:
                return {}
        return self._probe(rows, guesses)

    def _wins(self, uid: int, guess: Sequence[int], token_value: float) -> list[float]:
        """Return what each drafted token of a row is expected to win, in seconds."""
        odds = self._odds.get(uid) or [self._lookups[uid].agreement] * (len(guess) - 1)
        return [token_value * one for one in accumulate(odds, mul)]

    def _drafter_tokens(self, rows: int, drafting: int) -> int:
        """Return how many tokens the drafter should draft of some of the rows; 0 for none."""
        plain, cost = self.times.plain_s(rows), self.times.cost
        if plain is None or self.times.credit_s < 0 or self.times.is_retiming:
            return 0
        if cost is None or not self.times.drafting_s:
            return FIRST_DRAFT_TOKENS_MAX
        each = _MARGIN * (drafting * cost[1] + self.times.drafting_s)
        tokens = range(1, DRAFT_TOKENS_MAX + 1)
        value = drafting * plain / rows
        wins = [value * self._agreement**at - each for at in tokens]
        length = min(sum(win > 0 for win in wins), GROWTH * self.times.drafted_max // drafting)
        if sum(wins[:length]) > _MARGIN * cost[0]:
            return length
        lost = cost[0] + each - value * self._agreement
        return int(self._refused >= PROBE_PASSES and lost <= self.times.credit_s)

    def _probe(self, rows: int, guesses: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Return a draft that shows what drafts cost, if the credit pays for it.

        Until the cost of a whole draft was measured, each is twice as long as the longest before:
        short ones do not show what a further token costs.
        """
        plain, cost = self.times.plain_s(rows), self.times.cost
        assert plain is not None, "the duration of a plain pass is known"
        uid = max(guesses, key=lambda one: self._lookups[one].agreement)
        most = len(guesses[uid]) - 1
        if cost is None:
            return {uid: min(most, FIRST_DRAFT_TOKENS_MAX)}
        most = min(most, PROBE_GROWTH * self.times.drafted_max)
        won = self._wins(uid, guesses[uid], plain / rows)
        lost = [cost[0] + cost[1] * at - sum(won[:at]) for at in range(1, most + 1)]
        length = sum(one <= self.times.credit_s for one in lost)
        wanted = 1 if self.times.drafted_max >= DRAFT_TOKENS_MAX else most
        # A draft that no credit pays for is tried with the most that there can be.
        if length < wanted and self.times.credit_s < CREDIT_PASSES * plain:
            return {}
        return {uid: max(1, length)}

    def confirm(
        self,
        rows: Sequence[SpeculatedRow],
        drawn: Sequence[int],
        guesses: Mapping[int, Sequence[int]],
    ) -> list[list[int]]:
        """Return the draft of each row, now that the drawn tokens are read; empty for none."""
        self.times.record_reading(waits=self._reads_first)
        right = {
            row.uid: self._until_end(guesses[row.uid])
            for row, token in zip(rows, drawn, strict=True)
            if guesses.get(row.uid) and guesses[row.uid][0] == token
        }
        if self._restrictions is not None:
            for row, token in zip(rows, drawn, strict=True):
                if row.uid in guesses:
                    self._restrict(self._restrictions, row.uid, token, right)
        plan = self._plan(len(rows), right) if right else {}
        drafts = {uid: right[uid][1 : 1 + count] for uid, count in plan.items()}
        self._drafted = {}
        if self._drafter is not None:
            self._draft(rows, drawn, drafts)
        return [drafts.get(row.uid, []) for row in rows]

    def _draft(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], drafts: dict[int, list[int]]
    ) -> None:
        """Add drafts of the drafter, for rows that have none."""
        assert self._drafter is not None, "there is one"
        left = [
            (row, token)
            for row, token in zip(rows, drawn, strict=True)
            if row.uid not in drafts and self._limits.get(row.uid) and token not in self._end_ids
        ]
        count = self._drafter_tokens(len(rows), len(left)) if left else 0
        if not count:
            return
        count = min(count, max(self._limits[row.uid] for row, _ in left))
        with self.times.drafting(count):
            proposed = self._drafter.propose(
                [row for row, _ in left], [token for _, token in left], count
            )
        self._refused = 0
        for (row, token), tokens in zip(left, proposed, strict=True):
            cut = self._until_end([token, *tokens])[1 : 1 + self._limits[row.uid]]
            if draft := self._allowed(row.uid, cut):
                drafts[row.uid], self._drafted[row.uid] = draft, cut
            else:
                self._judge(is_right=False)

    def _allowed(self, uid: int, draft: list[int]) -> list[int]:
        """Return a draft up to the first token that its row may not draw."""
        restrictions = self._restrictions
        found = None if restrictions is None else restrictions.look_ahead(uid, draft, len(draft))
        return draft if found is None else draft[: common_tokens(draft, found.tokens)]

    def _judge(self, *, is_right: bool) -> None:
        """Learn whether a token of the drafter is the one that comes."""
        self._judged += 1
        weight = max(_NEWEST_OF_ALL, 1 / self._judged)
        self._agreement += weight * (is_right - self._agreement)

    def _restrict(
        self, restrictions: LogitMasks, uid: int, token: int, right: dict[int, list[int]]
    ) -> None:
        """Replace the guess of a restricted row by what may follow its present token."""
        guess = right.get(uid, [token])[1:]
        found = restrictions.look_ahead(uid, guess, self._limits[uid])
        if found is None:
            return
        right.pop(uid, None)
        if found.tokens:
            right[uid] = [token, *found.tokens]
            agreement = self._lookups[uid].agreement
            self._odds[uid] = [agreement if one is None else one for one in found.odds]

    def settle(
        self,
        rows: Sequence[SpeculatedRow],
        drafts: Sequence[Sequence[int]],
        draws: Sequence[int],
        *,
        is_timed: bool = True,
    ) -> list[int]:
        """Record a pass with drafts; return how many tokens of each draft were drawn.

        Args:
            drafts: The draft of each row.
            draws: The tokens drawn after the present token of a row and after each of its draft,
                row by row.
            is_timed: Whether the pass computed nothing else.
        """
        accepted, first = [], 0
        for row, draft in zip(rows, drafts, strict=True):
            count = common_tokens(draft, draws[first : first + len(draft) + 1])
            accepted.append(count)
            if draft:
                self._on_draft(len(draft), count)
            following = draws[first : first + count + 1]
            for proposed, token in zip(self._drafted.get(row.uid, ()), following, strict=False):
                self._judge(is_right=proposed == token)
            first += len(draft) + 1
            if count < len(draft):
                self._take_back(row.uid, len(draft) - count)
                if row.uid not in self._drafted:
                    self._rejected.add(row.uid)
        if is_timed:
            self.times.record_drafts(len(rows), sum(map(len, drafts)), sum(accepted))
        self._refused = 0
        return accepted

    def _until_end(self, guess: Sequence[int]) -> list[int]:
        """Return a guess up to the first token that ends an answer, or is one of an image."""
        kept = [guess[0]]
        for before, token in pairwise(guess):
            if before in self._end_ids or token >= IMAGE_ID_MIN:
                break
            kept.append(token)
        return kept
