"""Draw the tokens of a whole batch at once, each row with its own rules and its own random key."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from domain.values import Sampling
from worker.engine.grammar.ports import Constraint
from worker.engine.mlx.sampling.logit_masks import LogitMasks
from worker.engine.mlx.sampling.logprobs import LogprobRows

#: Most likely tokens among which ``top_p`` and ``top_k`` choose. Sorting a whole vocabulary takes
#: longer than a step of a small model; a wider nucleus is cut to this size.
CANDIDATES_MAX = 1024
#: Compositions of a batch whose rule columns are cached.
RULES_MAX = 64


@dataclass(slots=True)
class SamplerRow:
    """How one sequence draws.

    Attributes:
        sampling: The request's sampling parameters.
        index: Index in the generation of the next token drawn.
        constraint: Restricts what may be drawn; has accepted every token before.
        logprobs: How many of the most likely tokens to record at each position; ``None`` for none.
    """

    sampling: Sampling
    index: int
    constraint: Constraint | None = None
    logprobs: int | None = None

    def next_key(self) -> tuple[int, int]:
        """Return the random key of the next token, two uint32: a function of seed and index alone.

        Raises:
            struct.error: The seed does not fit 64 bits.
        """
        digest = hashlib.blake2b(
            struct.pack("<QQ", self.sampling.seed, self.index), digest_size=8
        ).digest()
        low, high = struct.unpack("<II", digest)
        self.index += 1
        return low, high


class BatchSampler:
    """One sampler for every row of the batch, so that a step costs one draw and not one per row.

    Args:
        rows_of: Returns the uids of the rows of a batch of a given size, in order.
    """

    def __init__(self, rows_of: Callable[[int], Sequence[int]]) -> None:
        self._rows_of = rows_of
        self._rows: dict[int, SamplerRow] = {}
        self._masks = LogitMasks()
        #: Log-probabilities of the drawn tokens.
        self.logprob_rows = LogprobRows()
        self._rules: dict[tuple[int, ...], _Rules | None] = {}
        #: Errors of sequences that could not draw, until the runner clears them; their tokens are
        #: meaningless.
        self.faults: dict[int, Exception] = {}
        #: Whether the last draw used a key of each row.
        self._used_keys = False
        #: The rows of the last draw, masked by their constraints.
        self.drawn_from: mx.array | None = None

    def add(self, uid: int, row: SamplerRow) -> None:
        """Add a sequence that draws by ``row``."""
        self._rows[uid] = row
        if row.constraint is not None:
            self._masks.add(uid, row.constraint, is_renormalised=row.sampling.top_p < 1)
        if row.logprobs is not None:
            self.logprob_rows.add(uid, row.logprobs)

    def drop(self, uid: int) -> None:
        """Forget a sequence."""
        self._rows.pop(uid, None)
        self._masks.drop(uid)
        self.logprob_rows.drop(uid)

    def is_restricted(self, uid: int) -> bool:
        """Return whether a constraint still restricts what a sequence may draw."""
        return self._masks.restricts(uid)

    def take_back(self, uid: int, draws: int) -> None:
        """Forget the last draws of a sequence in the last call; they are drawn again."""
        if self._used_keys:
            self._rows[uid].index -= draws
        self.logprob_rows.take_back(uid, draws)

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Return one token id per row.

        Several rows may belong to one sequence: its next tokens, in order. Such a sequence has no
        constraint.

        Args:
            logprobs: Normalised log-probabilities, [rows, vocabulary].

        Returns:
            Token ids, [rows].
        """
        uids = tuple(self._rows_of(logprobs.shape[0]))
        if uids not in self._rules:
            if len(self._rules) >= RULES_MAX:
                self._rules.clear()
            rows = [self._rows[uid].sampling for uid in uids]
            self._rules[uids] = _Rules.of(rows, logprobs.shape[-1])
        self.drawn_from = self._masks.apply(uids, logprobs, self.faults)
        tokens = self._drawn(self._rules[uids], uids, self.drawn_from)
        self._masks.note(uids, tokens)
        self.logprob_rows.note(uids, logprobs, tokens)
        return tokens

    def _drawn(self, rules: _Rules | None, uids: Sequence[int], logprobs: mx.array) -> mx.array:
        self._used_keys = rules is not None
        if rules is None:
            return mx.argmax(logprobs, axis=-1)
        keys = mx.array([self._key(uid) for uid in uids], dtype=mx.uint32)
        return rules.draw(logprobs, keys)

    def _key(self, uid: int) -> tuple[int, int]:
        try:
            return self._rows[uid].next_key()
        except Exception as error:  # noqa: BLE001 - one row's fault must not end the whole batch
            self.faults[uid] = error
            return 0, 0


@dataclass(frozen=True, slots=True)
class _Rules:
    """The sampling rules of the rows as columns [rows, 1]; ``None`` where no row uses a rule."""

    greedy: mx.array | None
    sharpness: mx.array
    candidates: int
    top_p: mx.array | None
    top_k: mx.array | None
    log_min_p: mx.array | None

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int) -> _Rules | None:
        """Return the columns, or ``None`` if every row is greedy."""
        if all(row.is_greedy for row in rows):
            return None
        widest = min(vocabulary, CANDIDATES_MAX)
        top_k = [min(row.top_k, widest) if row.top_k > 0 else 0 for row in rows]
        any_top_p = any(row.top_p < 1 for row in rows)
        return cls(
            greedy=_column([row.is_greedy for row in rows], mx.bool_),
            sharpness=mx.array(
                [[1 / row.temperature if row.temperature > 0 else 1] for row in rows]
            ),
            candidates=widest if any_top_p else max(top_k),
            top_p=mx.array([[min(row.top_p, 1.0)] for row in rows]) if any_top_p else None,
            top_k=_column(top_k, mx.int32),
            log_min_p=(
                mx.array([[math.log(row.min_p) if row.min_p > 0 else -math.inf] for row in rows])
                if any(row.min_p > 0 for row in rows)
                else None
            ),
        )

    def draw(self, logprobs: mx.array, keys: mx.array) -> mx.array:
        logprobs = logprobs.astype(mx.float32)
        drawn = mx.vmap(_categorical)(self.sharpened(logprobs), keys)
        if self.greedy is None:
            return drawn
        return mx.where(self.greedy[:, 0], mx.argmax(logprobs, axis=-1), drawn)

    def sharpened(self, logprobs: mx.array) -> mx.array:
        floor = self._floor(logprobs)
        kept = logprobs if floor is None else mx.where(logprobs < floor, -mx.inf, logprobs)
        return kept * self.sharpness

    def _floor(self, logprobs: mx.array) -> mx.array | None:
        """Return the log-probability below which a row draws nothing, [rows, 1]."""
        floors = []
        if self.candidates:
            best = mx.sort(mx.topk(logprobs, self.candidates, axis=-1), axis=-1)[:, ::-1]
            if self.top_k is not None:
                last = mx.take_along_axis(best, mx.maximum(self.top_k - 1, 0), axis=-1)
                floors.append(mx.where(self.top_k > 0, last, -mx.inf))
            if self.top_p is not None:
                floors.append(self._nucleus_floor(best, self.top_p))
        if self.log_min_p is not None:
            floors.append(mx.max(logprobs, axis=-1, keepdims=True) + self.log_min_p)
        if not floors:
            return None
        floor = floors[0]
        for other in floors[1:]:
            floor = mx.maximum(floor, other)
        return floor

    @staticmethod
    def _nucleus_floor(best: mx.array, top_p: mx.array) -> mx.array:
        """Return the log-probability of the last token needed to hold ``top_p`` of the mass."""
        mass_before = mx.cumsum(mx.exp(best), axis=-1, inclusive=False)
        needed = (mass_before < top_p).sum(axis=-1, keepdims=True)
        last = mx.take_along_axis(best, mx.maximum(needed - 1, 0), axis=-1)
        return mx.where(top_p < 1, last, -mx.inf)


def draw_scores(logprobs: mx.array, sampling: Sampling, index: int) -> mx.array:
    """Return the score of each token in one draw; the highest score was drawn.

    A draw is the maximum of the scaled log-probabilities plus Gumbel noise
    (https://arxiv.org/abs/1611.01144), which ``mx.random.categorical`` derives from the same key.

    Args:
        logprobs: Normalised log-probabilities of one row, [vocabulary].
        sampling: Sampling parameters.
        index: Index of the token in the generation.

    Returns:
        [vocabulary], float32.
    """
    logprobs = logprobs.astype(mx.float32)
    rules = _Rules.of([sampling], logprobs.shape[-1])
    if rules is None:
        return logprobs
    key = mx.array(SamplerRow(sampling, index).next_key(), dtype=mx.uint32)
    return rules.sharpened(logprobs[None])[0] + mx.random.gumbel(logprobs.shape, key=key)


def _categorical(logits: mx.array, key: mx.array) -> mx.array:
    return mx.random.categorical(logits, key=key)


def _column(values: Sequence[int | bool], dtype: mx.Dtype) -> mx.array | None:
    return mx.array([[value] for value in values], dtype=dtype) if any(values) else None
