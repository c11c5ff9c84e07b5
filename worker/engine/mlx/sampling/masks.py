"""The tokens that constraints allow, as masks of the rows of a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import mlx.core as mx

from worker.engine.grammar.ports import Constraint, ConstraintLost, LookAhead
from worker.engine.mlx.sampling.penalties import ReadTokens

_BITS = 8
#: Most tokens that a mask allows where one of them is expected, and the masks that are remembered.
FEW_ALLOWED, HABITS_MAX = 64, 4096
#: Probability of the token that was drawn last under a mask, at first; weight of the newest draw.
_FIRST_ODDS, _NEWEST = 0.7, 0.2


class _Habits:
    """What was drawn last under each mask that allows few tokens: the usual form of the text."""

    def __init__(self) -> None:
        #: By the hash of the mask; a collision makes a wrong draft at most.
        self._drawn: dict[int, tuple[int, float]] = {}

    def expected(self, mask: bytes) -> tuple[int, float] | None:
        """Return the token that is expected under a mask, and its probability."""
        bits = int.from_bytes(mask, "little")
        if (allowed := bits.bit_count()) == 1:
            return bits.bit_length() - 1, 1.0
        return self._drawn.get(hash(mask)) if allowed <= FEW_ALLOWED else None

    def learn(self, mask: bytes, token: int) -> None:
        """Record what was drawn under a mask."""
        if not 1 < int.from_bytes(mask, "little").bit_count() <= FEW_ALLOWED:
            return
        before, odds = self._drawn.get(hash(mask), (token, _FIRST_ODDS))
        if len(self._drawn) >= HABITS_MAX:
            self._drawn.clear()
        self._drawn[hash(mask)] = token, odds + _NEWEST * ((before == token) - odds)


class LogitMasks:
    """The constraints of the sequences in a batch.

    A constraint accepts a token when the next one is about to be drawn, not earlier. A token that
    was drawn but never returned, because its sequence was preempted, is drawn again.
    """

    def __init__(self) -> None:
        self._constraints: dict[int, Constraint] = {}
        #: The draws that the constraint has not accepted yet, each with its row and mask.
        self._drawn: defaultdict[int, list[tuple[ReadTokens, int, bytes | None]]] = defaultdict(
            list
        )
        self._habits = _Habits()
        self._ahead: dict[int, LookAhead] = {}
        #: The masks of the rows of the last call.
        self._masks: dict[int, bytes] = {}

    def add(self, uid: int, constraint: Constraint) -> None:
        """Restrict a sequence by a constraint, which returns the mask of each draw."""
        self._constraints[uid] = constraint

    def drop(self, uid: int) -> None:
        """Forget a sequence."""
        self._constraints.pop(uid, None)
        self._drawn.pop(uid, None)
        self._ahead.pop(uid, None)

    def looks_ahead(self, uid: int) -> bool:
        """Return whether tokens that may come can be followed; nothing restricts most sequences."""
        return uid not in self._constraints or self._constraints[uid].looks_ahead

    def is_masked(self, uid: int) -> bool:
        """Return whether the last token of a sequence was drawn under a mask."""
        drawn = self._drawn.get(uid, [])
        return bool(drawn) and drawn[-1][2] is not None

    def look_ahead(self, uid: int, guess: Sequence[int], limit: int) -> LookAhead | None:
        """Return the tokens that a sequence is expected to draw next; ``None`` if it is free.

        The next call of ``apply`` may have a row for each of the first of them.

        Args:
            guess: Expected tokens; followed as far as they are allowed.
            limit: Most tokens.
        """
        if uid not in self._constraints:
            return None
        found = LookAhead()
        ahead = self._accepted(uid).ahead()
        with suppress(ConstraintLost):
            while ahead is not None:
                mask, at = ahead.mask(), len(found.tokens)
                found.masks.append(mask)
                expected = _guessed(guess, at, mask) or (mask and self._habits.expected(mask))
                if at >= limit or ahead.is_over or not expected:
                    break
                ahead.accept(expected[0])
                found.tokens.append(expected[0])
                found.odds.append(expected[1])
        # Without the token after which the grammar is lost.
        del found.tokens[max(0, len(found.masks) - 1) :]
        self._ahead[uid] = found
        return found

    def take_back(self, uid: int, draws: int) -> None:
        """Forget the last draws of a sequence."""
        if uid in self._drawn:
            del self._drawn[uid][-draws:]

    def apply(
        self, uids: Sequence[int], logits: mx.array, faults: dict[int, Exception]
    ) -> mx.array:
        """Return the rows with forbidden tokens at minus infinity.

        Args:
            uids: The sequences of the rows. A sequence has several, in order, if it reads tokens of
                its last ``look_ahead``.
            logits: [rows, vocabulary].
            faults: Receives the error of each sequence whose constraint failed.
        """
        self._masks = {}
        if self._constraints.keys().isdisjoint(uids):
            return logits
        # The device computes the rows while the masks are built.
        mx.async_eval(logits)  # type: ignore[no-untyped-call]  # mlx ships it without types
        masks, places = self._masks, dict.fromkeys(uids, 0)
        for row, uid in enumerate(uids):
            place = places[uid]
            places[uid] += 1
            try:
                mask = self._mask_at(uid, place)
            except Exception as error:  # noqa: BLE001 - one row's fault must not end the whole batch
                faults[uid] = error
                self.drop(uid)
                continue
            if mask is not None:
                masks[row] = mask
        self._ahead.clear()
        return _masked(logits, masks) if masks else logits

    def within_limits(
        self, uids: Sequence[int], tokens: mx.array, read: mx.array | Sequence[int] | None
    ) -> mx.array:
        """Return the drawn tokens, [rows], replaced where a limit of tokens is near.

        Args:
            read: The token that each row has read.
        """
        near = [
            uid
            for uid in dict.fromkeys(uids)
            if uid in self._constraints and self._constraints[uid].is_near_limit
        ]
        if not near:
            return tokens
        drawn = cast("list[int]", tokens.tolist())
        for uid in near:
            rows = [row for row, one in enumerate(uids) if one == uid]
            following = (
                [] if len(rows) == 1 or read is None else [int(read[row]) for row in rows[1:]]
            )
            if not following:
                drawn[rows[0]] = self._constraints[uid].within_limit(drawn[rows[0]])
                continue
            ahead = self._constraints[uid].ahead()
            assert ahead is not None, "only what looks ahead has drafts"
            for row, draft in zip(rows, [*following, None], strict=True):
                drawn[row] = ahead.within_limit(drawn[row])
                if drawn[row] != draft:
                    break
                ahead.accept(drawn[row])
        return mx.array(drawn, dtype=tokens.dtype)

    def note(self, uids: Sequence[int], tokens: mx.array) -> None:
        """Keep the drawn tokens, [rows], for the constraints to accept."""
        if self._constraints.keys().isdisjoint(uids):
            return
        drawn = ReadTokens(tokens)
        for row, uid in enumerate(uids):
            if uid in self._constraints:
                self._drawn[uid].append((drawn, row, self._masks.get(row)))

    def _mask_at(self, uid: int, place: int) -> bytes | None:
        """Return the mask of a row: the ``place``-th of its sequence."""
        if uid not in self._constraints:
            return None
        ahead = self._ahead.get(uid)
        if ahead is not None and place < len(ahead.masks):
            return ahead.masks[place]
        constraint = self._accepted(uid)
        if constraint.is_free:
            self.drop(uid)
            return None
        return constraint.mask()

    def _accepted(self, uid: int) -> Constraint:
        """Return the constraint of a sequence after all of its drawn tokens."""
        constraint = self._constraints[uid]
        for drawn, row, mask in self._drawn.pop(uid, ()):
            token = drawn.of(row)
            if mask is not None:
                self._habits.learn(mask, token)
            constraint.accept(token)
        return constraint


def _guessed(guess: Sequence[int], at: int, mask: bytes | None) -> tuple[int, None] | None:
    """Return a guessed token if it is allowed."""
    if at >= len(guess):
        return None
    token = guess[at]
    if mask is None:
        return token, None
    byte = token // _BITS
    is_allowed = byte < len(mask) and mask[byte] >> token % _BITS & 1
    return (token, None) if is_allowed else None


def _masked(logits: mx.array, masks: dict[int, bytes]) -> mx.array:
    """Return rows in float32, with forbidden tokens at minus infinity; others are unchanged.

    Args:
        logits: [rows, vocabulary].
        masks: Packed bit masks by row, as ``Constraint.mask`` returns them.
    """
    size, vocabulary = logits.shape
    longest = max(map(len, masks.values()))
    packed = memoryview(b"".join(mask.ljust(longest, b"\0") for mask in masks.values()))
    bits = mx.array(packed).reshape(len(masks), -1)  # type: ignore[arg-type]  # a buffer will do
    allowed = (bits[:, :, None] >> mx.arange(_BITS, dtype=mx.uint8)) & 1
    allowed = allowed.reshape(len(masks), -1)[:, :vocabulary].astype(mx.bool_)
    missing = vocabulary - allowed.shape[1]
    if missing > 0:
        # A model's output is often padded beyond its vocabulary.
        allowed = mx.pad(allowed, [(0, 0), (0, missing)], constant_values=False)
    has_mask = [row in masks for row in range(size)]
    if not all(has_mask):
        places = [list(masks).index(row) if row in masks else 0 for row in range(size)]
        allowed = allowed[mx.array(places)] | ~mx.array(has_mask)[:, None]
    return mx.where(allowed, logits.astype(mx.float32), -mx.inf)
