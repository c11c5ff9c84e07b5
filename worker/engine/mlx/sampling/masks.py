"""The tokens that constraints allow, as masks of the rows of a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import mlx.core as mx

from worker.engine.grammar.ports import Constraint

_BITS = 8


class _Drawn:
    """The tokens of one step, fetched from the device at most once."""

    def __init__(self, tokens: mx.array) -> None:
        self._tokens = tokens
        self._ids: list[int] | None = None

    def of(self, row: int) -> int:
        if self._ids is None:
            self._ids = cast("list[int]", self._tokens.tolist())
        return self._ids[row]


class LogitMasks:
    """The constraints of the sequences in a batch.

    A constraint accepts a token when the next one is about to be drawn, not earlier. A token that
    was drawn but never returned, because its sequence was preempted, is drawn again.
    """

    def __init__(self) -> None:
        self._constraints: dict[int, Constraint] = {}
        self._drawn: dict[int, tuple[_Drawn, int]] = {}
        self._unnormalised: set[int] = set()

    def add(self, uid: int, constraint: Constraint, *, is_renormalised: bool = True) -> None:
        """Restrict a sequence.

        Args:
            uid: The sequence.
            constraint: Returns the mask of allowed tokens before each draw.
            is_renormalised: Whether the allowed tokens' probabilities are made to sum to 1, which
                ``top_p`` needs. Costs one exponential for each token of the vocabulary.
        """
        self._constraints[uid] = constraint
        if not is_renormalised:
            self._unnormalised.add(uid)

    def drop(self, uid: int) -> None:
        """Forget a sequence."""
        self._constraints.pop(uid, None)
        self._unnormalised.discard(uid)
        self._drawn.pop(uid, None)

    def restricts(self, uid: int) -> bool:
        """Return whether a sequence has a constraint that is not free yet."""
        return uid in self._constraints

    def apply(
        self, uids: Sequence[int], logprobs: mx.array, faults: dict[int, Exception]
    ) -> mx.array:
        """Return the rows with forbidden tokens at minus infinity, renormalised where needed.

        Args:
            uids: The sequences of the rows.
            logprobs: Log-probabilities, [rows, vocabulary].
            faults: Receives the error of each sequence whose constraint failed.
        """
        if self._constraints.keys().isdisjoint(uids):
            return logprobs
        # The device computes the rows while the masks are built.
        mx.async_eval(logprobs)  # type: ignore[no-untyped-call]  # mlx ships it without types
        masks: dict[int, bytes] = {}
        for row, uid in enumerate(uids):
            try:
                mask = self._next_mask(uid)
            except Exception as error:  # noqa: BLE001 - one row's fault must not end the whole batch
                faults[uid] = error
                self.drop(uid)
                continue
            if mask is not None:
                masks[row] = mask
        renormalised = {row for row in masks if uids[row] not in self._unnormalised}
        return masked(logprobs, masks, renormalised) if masks else logprobs

    def note(self, uids: Sequence[int], tokens: mx.array) -> None:
        """Keep the drawn tokens, [rows], for the constraints to accept."""
        if self._constraints.keys().isdisjoint(uids):
            return
        drawn = _Drawn(tokens)
        for row, uid in enumerate(uids):
            if uid in self._constraints:
                self._drawn[uid] = (drawn, row)

    def _next_mask(self, uid: int) -> bytes | None:
        constraint = self._constraints.get(uid)
        if constraint is None:
            return None
        if uid in self._drawn:
            drawn, row = self._drawn.pop(uid)
            constraint.accept(drawn.of(row))
        if constraint.is_free:
            self.drop(uid)
            return None
        return constraint.mask()


def masked(logprobs: mx.array, masks: dict[int, bytes], renormalised: Collection[int]) -> mx.array:
    """Return rows with forbidden tokens at minus infinity; rows without a mask are unchanged.

    Args:
        logprobs: Log-probabilities, [rows, vocabulary].
        masks: Packed bit masks by row, as ``Constraint.mask`` returns them.
        renormalised: Rows whose allowed tokens are made to sum to probability 1.

    Returns:
        [rows, vocabulary], float32.
    """
    size, vocabulary = logprobs.shape
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
    kept = mx.where(allowed, logprobs.astype(mx.float32), -mx.inf)
    if not renormalised:
        return kept
    whole = kept - mx.logsumexp(kept, axis=-1, keepdims=True)
    if len(renormalised) == size:
        return whole
    return mx.where(mx.array([row in renormalised for row in range(size)])[:, None], whole, kept)
