"""Speculation: drafts, their number, what a pass over them costs, and what came of them."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, combinations, pairwise
from operator import mul
from statistics import median, median_low
from typing import Protocol

from domain.chat.images import IMAGE_ID_MIN
from domain.kv.hashing import common_tokens
from worker.engine.grammar.ports import LookAhead

#: Share of the decode time that drafts may lose; with what noise hides it stays below 2 %.
LOSS_SHARE = 0.015
#: Most time that is saved up for losses, in plain passes.
CREDIT_PASSES = 2.0
#: Plain passes of one number of rows whose median counts, and the fewest that show it.
_PLAIN_PASSES, _PLAIN_PASSES_MIN = 5, 2
#: Passes with drafts from which their cost is estimated.
_DRAFTED_PASSES = 11
#: A pass with drafts counts as at most so many times what was expected of it, for another process
#: may have interrupted it; and at most, if that of the one before was exceeded too.
OUTLIER, OUTLIER_AGAIN = 1.5, 5.0
#: Passes after which a plain one is timed again, and the passes that this takes.
RETIMED_PASSES, _RETIMING_PASSES = 32, 2


class PassTimes:
    """The durations of passes, and the balance of the time that drafts have lost and won.

    A plain pass is started before the tokens of the one before are read. Its duration is therefore
    the time from one reading to the next. What a pass with drafts takes longer is a line over its
    drafted tokens, the same for any number of rows; medians keep interrupted passes out of both.

    Args:
        clock: Returns seconds.
        overlaps: Whether the device computes while the host prepares the next pass. Only then does
            it lose time to read the present tokens before that pass starts.

    Attributes:
        credit_s: Seconds that drafts may lose now: ``LOSS_SHARE`` of the decode time and what they
            have won, less what they have lost. Below zero, nothing is drafted.
        cost: Seconds that any draft costs a pass, and those of each drafted token; ``None`` before
            the first pass with drafts.
        drafting_s: Seconds that a drafter takes for each token that it drafts, of all rows at once;
            0 before the first.
        passes_unknown: Passes in which the duration of a plain one was unknown.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, *, overlaps: bool = False
    ) -> None:
        self._clock = clock
        self._overlaps = overlaps
        self.credit_s = 0.0
        self.passes_unknown = 0
        #: Passes since a plain one was timed.
        self._untimed = 0
        #: Seconds of the last plain passes, by rows.
        self._plain: defaultdict[int, deque[float]] = defaultdict(partial(deque, (), _PLAIN_PASSES))
        #: Drafted tokens of the last passes with drafts, and the seconds that each took longer.
        self._drafted: deque[tuple[int, float]] = deque(maxlen=_DRAFTED_PASSES)
        self.cost: tuple[float, float] | None = None
        #: Seconds of a drafter for each token, of the last passes.
        self._drafting: deque[float] = deque(maxlen=_DRAFTED_PASSES)
        self.drafting_s = 0.0
        #: Seconds of it in the pass that is read next.
        self._drafted_s = 0.0
        self._was_slow = False
        self._since: float | None = None
        #: Rows of the last pass, if it was plain.
        self._plain_rows = 0
        self._waits = False
        #: Whether the pass that is read next was started before the last reading.
        self._is_ahead = False

    def plain_s(self, rows: int) -> float | None:
        """Return the seconds of a plain pass; ``None`` where none is known of any number of rows.

        The nearest number of rows stands in for one that is unknown. More rows count as much, fewer
        in proportion: a pass that seems shorter than it is makes drafts seem dearer than they are.
        """
        known = [one for one, seen in self._plain.items() if len(seen) >= _PLAIN_PASSES_MIN]
        if not known:
            return None
        nearest = min(known, key=lambda one: (abs(one - rows), one))
        return median_low(self._plain[nearest]) * min(1.0, rows / nearest)

    @property
    def is_retiming(self) -> bool:
        """Whether the next pass must be plain, so that one is timed again; not for long."""
        return self._untimed % (RETIMED_PASSES + _RETIMING_PASSES) >= RETIMED_PASSES

    @property
    def drafted_max(self) -> int:
        """Return the most drafted tokens of the passes that show the cost; 0 before the first."""
        return max((drafted for drafted, _ in self._drafted), default=0)

    def expected_s(self, rows: int, drafted: int) -> float | None:
        """Return the seconds of a pass with drafts, a drafted token being a row at first."""
        plain = self.plain_s(rows)
        if plain is None:
            return None
        start_s, token_s = self.cost or (0.0, plain / rows)
        return plain + start_s + token_s * drafted

    def interrupt(self) -> None:
        """Leave out the time until the next pass: something else runs in between."""
        self._since = None

    def record_reading(self, *, waits: bool = False) -> None:
        """Record that the tokens of the last pass are read; a pass with drafts may start.

        Args:
            waits: Whether this happens before each pass, so that a plain one is measured from here.
        """
        if self._is_ahead or self._since is None:
            now = self._clock()
            if waits and self._since is not None and self._plain_rows:
                # The pass that is read now was plain.
                self._plain[self._plain_rows].append(now - self._since)
                self._untimed = 0
                plain = self.plain_s(self._plain_rows)
                if plain is not None:
                    self._settle(plain, LOSS_SHARE * min(now - self._since, plain))
            self._since = now
        self._is_ahead, self._plain_rows, self._waits = False, 0, waits

    def record_plain(self, rows: int) -> None:
        """Record a plain pass."""
        since, now = self._since, self._clock()
        self._untimed += 1
        if since is not None and self._is_ahead:
            self._plain[rows].append(now - since)
            self._untimed = 0
        plain = self.plain_s(rows)
        if plain is None:
            self.passes_unknown += 1
        else:
            seconds = plain if since is None else min(now - since, plain)
            # After a wrong guess the device has waited until the pass was prepared.
            has_waited = self._overlaps and since is not None and not self._is_ahead
            self._settle(plain, (LOSS_SHARE - has_waited) * seconds)
        if since is None or self._is_ahead or self._overlaps or not self._waits:
            self._since = now
        self._is_ahead, self._plain_rows = True, rows

    @contextmanager
    def drafting(self, tokens: int) -> Generator[None]:
        """Measure a drafter, whose time belongs to the next pass with drafts.

        Args:
            tokens: How many it drafts of each row.
        """
        started = self._clock()
        yield
        self._drafted_s = self._clock() - started
        self._drafting.append(self._drafted_s / tokens)
        self.drafting_s = median(self._drafting)

    def record_drafts(self, rows: int, drafted: int, accepted: int) -> None:
        """Record a pass with drafts.

        Args:
            rows: Rows of the pass.
            drafted: Drafted tokens of all rows.
            accepted: How many of them were drawn.
        """
        since, now = self._since, self._clock()
        self._since, self._is_ahead = now, False
        drafted_s, self._drafted_s = self._drafted_s, 0.0
        assert since is not None, "tokens are read before they are drafted"
        plain, expected = self.plain_s(rows), self.expected_s(rows, drafted)
        if plain is None or expected is None:
            # As long as a plain pass over so many rows, or longer.
            self._plain[rows + drafted].append(now - since)
            return
        verified_s = now - since - drafted_s
        most = (OUTLIER_AGAIN if self._was_slow else OUTLIER) * expected
        self._was_slow = verified_s > OUTLIER * expected
        seconds = min(verified_s, most)
        self._untimed += 1
        self._drafted.append((drafted, seconds - plain))
        self.cost = _line(self._drafted)
        seconds += drafted_s
        won = plain * (1 + accepted / rows) - seconds
        self._settle(plain, LOSS_SHARE * seconds + won)

    def _settle(self, plain: float, seconds: float) -> None:
        self.credit_s = min(self.credit_s + seconds, CREDIT_PASSES * plain)


def _line(points: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """Return start and slope, neither negative, of the line through most of the points."""
    seen = list(points)
    slopes = [
        (other_y - one_y) / (other_x - one_x)
        for (one_x, one_y), (other_x, other_y) in combinations(seen, 2)
        if one_x != other_x
    ]
    # Points of one size show no start.
    slope = max(0.0, median(slopes) if slopes else median(y / x for x, y in seen))
    return max(0.0, median(y - slope * x for x, y in seen)), slope


#: Tokens that two places must share for one to continue as the other did.
GRAM_TOKENS = 3
#: N-grams in the younger of two indexes; the older one holds as many.
GRAMS_MAX = 32_768
#: N-grams indexed in one call, so that a long prompt delays no step.
GRAMS_PER_CALL = 512
#: Share of guesses that are drawn after one that was, before any is known; weight of the newest.
_FIRST_AGREEMENT, _NEWEST = 0.8, 0.1
#: Weight of the newest token of a drafter, which counts for all rows.
_NEWEST_OF_ALL = 0.02
#: Bits of a token id in a key. Longer ids may collide, which is checked.
_ID_BITS = 21


class PromptLookup:
    """The places of the n-grams of one sequence, the latest of each.

    Args:
        tokens: The tokens of the sequence. The caller appends to them between calls and never
            changes them.

    Attributes:
        agreement: Probability that a guessed token is drawn if the one before it was. Each guess
            counts, whether it was verified as a draft or not.
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
        self.agreement = _FIRST_AGREEMENT
        #: Whether the place has guessed right so far, at least once.
        self._is_confirmed = False

    def propose(self, count: int) -> list[int]:
        """Return a guess of the next ``count`` tokens; empty where no earlier place is known.

        A place that has guessed right so far is followed. Where it ends at the newest token, the
        guess repeats what lies between.
        """
        self._index()
        source = self._follow()
        if source is None:
            source, self._is_confirmed = self._find(), False
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
            is_right = self._tokens[source + at] == self._tokens[self._length + at]
            if self._is_confirmed:
                self.agreement += _NEWEST * (is_right - self.agreement)
            if not is_right:
                return None
            self._is_confirmed = True
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


class Drafter(Protocol):
    """Drafts tokens of rows whose own text has no guess. It needs the drawn tokens, and has a cost.

    A draft model is one.
    """

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        """Return the next ``count`` tokens of each row after the drawn one."""
        ...

    def drop(self, uids: Iterable[int]) -> None:
        """Forget sequences; unknown uids are ignored."""
        ...


class Restrictions(Protocol):
    """What the rows may draw, where grammars restrict them."""

    def restricts(self, uid: int) -> bool:
        """Return whether a row is restricted, now or later."""
        ...

    def is_masked(self, uid: int) -> bool:
        """Return whether the last token of a row was drawn under a mask."""
        ...

    def look_ahead(self, uid: int, guess: Sequence[int], limit: int) -> LookAhead:
        """Return at most ``limit`` tokens that a restricted row is expected to draw next.

        Args:
            guess: Expected tokens; followed as far as they are allowed.
        """
        ...


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
        restrictions: Restrictions | None = None,
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
        self._agreement = _FIRST_AGREEMENT
        #: Most tokens of each row of the last call of ``guess``.
        self._limits: dict[int, int] = {}
        #: Rows whose draft is the drafter's.
        self._drafted: set[int] = set()
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
            limit = min(DRAFT_TOKENS_MAX, self._room(row.uid, len(row.tokens)))
            self._limits[row.uid] = limit
            # Without room too, the index keeps up with the sequence.
            guess = lookup.propose(max(limit, 0) + 1)
            if limit > 0 and guess and row.uid not in self._rejected:
                guesses[row.uid] = guess
            restrictions = self._restrictions
            if limit > 0 and restrictions is not None and restrictions.is_masked(row.uid):
                masked[row.uid] = guess
        self._rejected.clear()
        self._reads_first = bool(masked) and self._may_wait(len(rows))
        plan = self._plan(len(rows), guesses) if guesses else {}
        opened = {uid: guesses[uid] for uid in plan}
        left = [
            uid
            for uid, limit in self._limits.items()
            if limit > 0 and uid not in plan and not self._restricts(uid)
        ]
        if self._drafter is not None and left:
            if self._drafter_tokens(len(rows), len(left)):
                opened.update((uid, []) for uid in left)
            self._refused += not opened
        else:
            self._refused += bool(guesses) and not plan
        return masked | opened if self._reads_first else opened

    def _restricts(self, uid: int) -> bool:
        return self._restrictions is not None and self._restrictions.restricts(uid)

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
                if row.uid in guesses and self._restrictions.restricts(row.uid):
                    self._restrict(self._restrictions, row, token, right)
        plan = self._plan(len(rows), right) if right else {}
        drafts = {uid: right[uid][1 : 1 + count] for uid, count in plan.items()}
        self._drafted = set()
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
            if row.uid not in drafts
            and self._limits.get(row.uid, 0) > 0
            and not self._restricts(row.uid)
            and token not in self._end_ids
        ]
        count = self._drafter_tokens(len(rows), len(left)) if left else 0
        if not count:
            return
        count = min(count, max(self._limits[row.uid] for row, _ in left))
        with self.times.drafting(count):
            proposed = self._drafter.propose(
                [row for row, _ in left], [token for _, token in left], count
            )
        for (row, token), draft in zip(left, proposed, strict=True):
            cut = self._until_end([token, *draft])[1 : 1 + self._limits[row.uid]]
            drafts[row.uid] = cut
            self._drafted.add(row.uid)

    def _restrict(
        self,
        restrictions: Restrictions,
        row: SpeculatedRow,
        token: int,
        right: dict[int, list[int]],
    ) -> None:
        """Replace the guess of a row by what its grammar lets follow its present token."""
        limit = min(DRAFT_TOKENS_MAX, self._room(row.uid, len(row.tokens)))
        found = restrictions.look_ahead(row.uid, right.pop(row.uid, [token])[1:], limit)
        agreement = self._lookups[row.uid].agreement
        if found.tokens:
            right[row.uid] = [token, *found.tokens]
            self._odds[row.uid] = [agreement if one is None else one for one in found.odds]

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
            first += len(draft) + 1
            if draft:
                self._on_draft(len(draft), count)
            if row.uid in self._drafted:
                for at in range(min(count + 1, len(draft))):
                    self._agreement += _NEWEST_OF_ALL * ((at < count) - self._agreement)
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
