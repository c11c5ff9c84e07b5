"""What passes take, and the balance of the time that drafts lose and win."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from statistics import median, median_low

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
        """Record a plain pass. A drafter whose tokens were not verified has lost its time."""
        since, now = self._since, self._clock()
        drafted_s, self._drafted_s = self._drafted_s, 0.0
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
            self._settle(plain, (LOSS_SHARE - has_waited) * seconds - drafted_s)
        if since is None or self._is_ahead or self._overlaps or not self._waits:
            self._since = now
        else:
            self._since = since + drafted_s
        self._is_ahead, self._plain_rows = True, rows

    @contextmanager
    def drafting(self, tokens: int) -> Generator[None]:
        """Measure a drafter, whose time belongs to the next pass.

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
