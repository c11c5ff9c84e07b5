"""Log-probabilities of tokens, computed in the step that draws them or the piece that reads them.

The values are those of the model's own distribution, before any sampling rule, in float32 whatever
the model computes in. Rows without a request for them cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import cast

import mlx.core as mx

from domain.chat.logprobs import UNLIKELY
from worker.engine.ports import TokenLikelihood

#: Most tokens of a piece of a prompt whose tokens are scored. Its logits take about the memory that
#: the layers of a piece of usual length take.
SCORED_PIECE_TOKENS = 64
#: Decimal places of a returned value: more than float32 has for usual values.
DIGITS = 6


class _Drawn:
    """The log-probabilities of one step, fetched from the device at most once."""

    def __init__(self, drawn: mx.array, top: mx.array | None, ids: mx.array | None) -> None:
        self._arrays = (drawn, top, ids)
        self._lists: tuple[list[float], list[list[float]], list[list[int]]] | None = None

    def of(self, row: int, top: int) -> TokenLikelihood:
        if self._lists is None:
            drawn, values, ids = self._arrays
            self._lists = (
                cast("list[float]", drawn.tolist()),
                cast("list[list[float]]", [] if values is None else values.tolist()),
                cast("list[list[int]]", [] if ids is None else ids.tolist()),
            )
        logprobs, values_of, ids_of = self._lists
        best: list[tuple[int, float]] = []
        if top and values_of:
            pairs = zip(ids_of[row], map(_clamped, values_of[row]), strict=True)
            best = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
        return TokenLikelihood(_clamped(logprobs[row]), tuple(islice(best, top)))


class LogprobRows:
    """The log-probabilities of the sequences in a batch.

    mlx-lm draws a token one step before it returns it, so the values of a sequence wait here in the
    order of its tokens. Values of tokens that were drawn and never returned are dropped with their
    sequence.
    """

    def __init__(self) -> None:
        self._tops: dict[int, int] = {}
        self._drawn: dict[int, deque[tuple[_Drawn, int]]] = {}

    def add(self, uid: int, top: int) -> None:
        """Record a sequence, with the ``top`` most likely tokens at each position."""
        self._tops[uid] = top
        self._drawn[uid] = deque()

    def drop(self, uid: int) -> None:
        """Forget a sequence."""
        self._tops.pop(uid, None)
        self._drawn.pop(uid, None)

    def note(self, uids: Sequence[int], logits: mx.array, tokens: mx.array) -> None:
        """Start to compute the log-probabilities of a draw.

        Args:
            logits: The model's logits, [rows, vocabulary].
        """
        if not self._tops or self._tops.keys().isdisjoint(uids):
            return
        logged_rows = [row for row, uid in enumerate(uids) if uid in self._tops]
        if len(logged_rows) < len(uids):
            rows = mx.array(logged_rows)
            logits, tokens = logits[rows], tokens[rows]
        known = _computed(logits, tokens, max(self._tops[uids[row]] for row in logged_rows))
        for place, row in enumerate(logged_rows):
            self._drawn[uids[row]].append((known, place))

    def take_back(self, uid: int, draws: int) -> None:
        """Forget the last values of a sequence, whose tokens were rejected."""
        if uid in self._drawn:
            for _ in range(draws):
                self._drawn[uid].pop()

    def first(self, uid: int) -> TokenLikelihood | None:
        """Return the values of a sequence's next token, and keep them."""
        if not self._drawn.get(uid):
            return None
        known, row = self._drawn[uid][0]
        return known.of(row, self._tops[uid])

    def next(self, uid: int) -> TokenLikelihood | None:
        """Return the values of a sequence's next token, and remove them."""
        if uid not in self._tops:
            return None
        likelihood = self.first(uid)
        if likelihood is not None:
            self._drawn[uid].popleft()
        return likelihood


class PromptRows:
    """The log-probabilities of the tokens of prompts, which are read from their first token on."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[Sequence[int], int]] = {}
        self._scored: dict[int, list[TokenLikelihood]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._prompts

    def add(self, uid: int, tokens: Sequence[int], top: int) -> None:
        """Record a sequence, with the ``top`` most likely tokens at each position."""
        self._prompts[uid], self._scored[uid] = (tokens, top), []

    def drop(self, uid: int) -> None:
        """Forget a sequence."""
        self._prompts.pop(uid, None)
        self._scored.pop(uid, None)

    def note(self, uid: int, logits: mx.array) -> None:
        """Score the tokens that follow those of a sequence's next piece.

        Args:
            logits: The model's logits after each token of the piece, [tokens, vocabulary].
        """
        (tokens, top), scored = self._prompts[uid], self._scored[uid]
        first = len(scored) + 1
        following = mx.array(list(tokens[first : first + logits.shape[0]]))
        known = _computed(logits, following, top)
        scored += [known.of(row, top) for row in range(logits.shape[0])]

    def take(self, uid: int) -> list[TokenLikelihood]:
        """Return the values of a sequence, and forget it."""
        scored = self._scored[uid]
        self.drop(uid)
        return scored


def _computed(logits: mx.array, tokens: mx.array, widest: int) -> _Drawn:
    """Start to compute the values of one token in each row, and of the ``widest`` likeliest."""
    widest = min(widest, logits.shape[-1])
    whole = mx.logsumexp(logits.astype(mx.float32), axis=-1, keepdims=True)
    drawn = (_at(logits, tokens[:, None]) - whole)[:, 0]
    ids = top = None
    if widest:
        ids = mx.argpartition(logits, -widest, axis=-1)[:, -widest:]
        top = _at(logits, ids) - whole
    # Evaluated with the tokens, so that the device does not run the next step first.
    mx.async_eval(*(each for each in (tokens, drawn, top, ids) if each is not None))  # type: ignore[no-untyped-call]  # mlx ships it without types
    return _Drawn(drawn, top, ids)


def logprobs_of(row: mx.array, tokens: Sequence[int]) -> list[float]:
    """Return the log-probabilities of some tokens in one row [vocabulary], in float32."""
    row = row.astype(mx.float32)
    whole = mx.logsumexp(row)
    return cast("list[float]", (mx.take(row, mx.array(list(tokens))) - whole).tolist())


def _at(logits: mx.array, ids: mx.array) -> mx.array:
    return mx.take_along_axis(logits, ids, axis=-1).astype(mx.float32)


def _clamped(value: float) -> float:
    """Return a value rounded, at least ``UNLIKELY`` and at most 0."""
    if not value > UNLIKELY:
        return UNLIKELY  # also for NaN
    return min(0.0, round(value, DIGITS))
