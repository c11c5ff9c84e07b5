"""Who goes next, how much of a prompt at a time, and when to wait for company.

Arithmetic alone: instants and durations come from the caller, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

#: How often later arrivals may go first before somebody's turn has come whatever it costs.
PASSES_MAX = 8
#: How long somebody may wait before that, in seconds.
WAIT_S_MAX = 20.0
#: Least and granularity of a piece that is read beside running streams. Shorter ones cost far more
#: for each token than they save in the gap.
PIECE_TOKENS_MIN = 16
#: How much of the longest gap a piece is planned to fill; the rest is for what it turns out to be.
GAP_SHARE = 0.8
#: Time that goes to running streams while a prompt is read, as a share of the time of reading.
DECODE_SHARE = 0.25
#: Most decode steps between two pieces.
DECODES_MAX = 32
#: Weight of the newest measurement.
NEWEST = 0.5

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Place(Generic[T]):
    item: T
    cost: float
    since: float
    passed: int = 0


class FairQueue(Generic[T]):
    """A line in which the cheapest goes first, but nobody is passed for ever.

    Whoever was passed ``passes_max`` times by later arrivals, or has waited for ``wait_s_max``, is
    *due* and comes before all that are not. Somebody who was put back comes before everybody.

    Args:
        passes_max: Later arrivals that may go first.
        wait_s_max: Longest wait with others going first, in seconds.
    """

    def __init__(self, *, passes_max: int = PASSES_MAX, wait_s_max: float = WAIT_S_MAX) -> None:
        self._passes_max = passes_max
        self._wait_s_max = wait_s_max
        #: In order of arrival.
        self._places: list[_Place[T]] = []
        self._back: list[T] = []

    def __len__(self) -> int:
        return len(self._back) + len(self._places)

    def __contains__(self, item: object) -> bool:
        return item in self._back or any(place.item is item for place in self._places)

    def add(self, item: T, *, cost: float, now: float) -> None:
        """Let somebody join at the end."""
        self._places.append(_Place(item, cost, now))

    def put_back(self, item: T) -> None:
        """Let somebody whose turn it had been wait before all others."""
        self._back.insert(0, item)

    def order(self, now: float) -> list[T]:
        """Return everybody in the order in which they should go."""
        due: list[_Place[T]] = []
        rest: list[_Place[T]] = []
        for place in self._places:
            (due if self._is_due(place, now) else rest).append(place)
        rest.sort(key=lambda place: place.cost)
        return [*self._back, *(place.item for place in (*due, *rest))]

    def serve(self, item: T, now: float, excused: Collection[T] = ()) -> None:
        """Note that somebody goes now, perhaps not for the last time.

        Args:
            item: Who.
            now: The instant.
            excused: Those who could not have gone whatever their turn; they were not passed.
        """
        if item in self._back:
            return
        for place in self._places:
            if place.item is item:
                place.passed, place.since = 0, now
                return
            if place.item not in excused:
                place.passed += 1

    def remove(self, item: T) -> bool:
        """Let somebody leave; return whether they were there."""
        if item in self._back:
            self._back.remove(item)
            return True
        found = [place for place in self._places if place.item is item]
        for place in found:
            self._places.remove(place)
        return bool(found)

    def clear(self) -> list[T]:
        """Let everybody leave and return them."""
        everybody = [*self._back, *(place.item for place in self._places)]
        self._back.clear()
        self._places.clear()
        return everybody

    def _is_due(self, place: _Place[T], now: float) -> bool:
        return place.passed >= self._passes_max or now - place.since >= self._wait_s_max


class BatchWindow:
    """Holds arrivals that come close together, so that they join the batch together.

    Who comes alone, with nobody in the time of a window before, goes at once. Who comes in a
    stream of others waits until a window after the first that waits, and never longer.

    Args:
        window_s: Length; 0 holds nobody.
    """

    def __init__(self, window_s: float) -> None:
        #: May be set at any time and from any thread.
        self.window_s = window_s
        self._latest = -math.inf
        self._opened: float | None = None

    def arrived(self, at: float) -> None:
        """Note an arrival."""
        if self._opened is None:
            in_company = at - self._latest < self.window_s
            self._opened = at if in_company else -math.inf
        self._latest = max(at, self._latest)

    def wait_s(self, now: float) -> float:
        """Return how long those who wait are still to be held."""
        if self._opened is None:
            return 0.0
        return max(0.0, self._opened + self.window_s - now)

    def close(self) -> None:
        """Note that all who could go went."""
        self._opened = None


class PrefillPace:
    """How much of a prompt to read between the steps of running streams.

    Between two tokens of a stream lies one decode step and at most one piece; the piece is made as
    long as the gap allows at the pace that was measured. Several decode steps follow, so that
    streams keep a share of the time.

    Args:
        gap_max_s: Longest gap to leave between two tokens of a stream; 0 for any.
        step_tokens: Most tokens in a piece.
    """

    def __init__(self, *, gap_max_s: float, step_tokens: int) -> None:
        self._gap_max_s = gap_max_s
        self._step_tokens = step_tokens
        self._token_s: float | None = None
        self._decode_s: float | None = None
        self._piece_s = 0.0
        self._decodes_left = 0

    def piece_tokens(self, *, streams: int) -> int:
        """Return how many tokens to read now beside so many running streams; 0 for not yet."""
        if not streams or not self._gap_max_s:
            return self._step_tokens
        if self._decodes_left > 0:
            return 0
        if self._token_s is None:
            return min(PIECE_TOKENS_MIN, self._step_tokens)
        room_s = self._gap_max_s * GAP_SHARE - (self._decode_s or 0.0)
        fitting = int(max(0.0, room_s) / self._token_s)
        whole = fitting - fitting % PIECE_TOKENS_MIN
        return min(max(whole, PIECE_TOKENS_MIN), self._step_tokens)

    def note_piece(self, tokens: int, seconds: float) -> None:
        """Note how long a piece took."""
        assert tokens > 0, "an empty piece tells nothing"
        self._token_s = _mixed(self._token_s, seconds / tokens)
        self._piece_s = seconds
        wanted = math.ceil(DECODE_SHARE * seconds / self._decode_s) if self._decode_s else 1
        self._decodes_left = min(max(wanted, 1), DECODES_MAX)

    def note_decode(self, seconds: float) -> None:
        """Note how long a decode step took."""
        self._decodes_left -= 1
        self._decode_s = _mixed(self._decode_s, seconds)


def _mixed(known: float | None, newest: float) -> float:
    return newest if known is None else (1 - NEWEST) * known + NEWEST * newest
