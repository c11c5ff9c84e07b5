"""Draw the tokens of a whole batch at once, each row with its own rules, masks and random key."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from domain.values import TEMPERATURE_MIN, Sampling
from worker.engine.grammar.ports import Constraint
from worker.engine.mlx.cpu import is_on_gpu
from worker.engine.mlx.sampling.logprobs import LogprobRows
from worker.engine.mlx.sampling.masks import LogitMasks
from worker.engine.mlx.sampling.penalties import PenalisedRows, ReadTokens, TokenCounts
from worker.engine.ports import unknown_token

#: Most likely tokens that are sorted first for ``top_p`` and ``top_k``. On the CPU, sorting a whole
#: vocabulary of 150,000 takes 14 ms a row, and finding these takes 1 ms.
CANDIDATES_MAX = 1024
#: Compositions of a batch whose rule columns are cached.
RULES_MAX = 64


@dataclass(slots=True)
class SamplerRow:
    """How one sequence draws.

    Attributes:
        index: Index in the generation of the next token drawn.
        constraint: Restricts what may be drawn; has accepted every token before.
        logprobs: How many of the most likely tokens to record at each position; ``None`` for none.
        tokens: Prompt and answer so far, on which penalties depend; the next pass reads the last.
    """

    sampling: Sampling
    index: int
    constraint: Constraint | None = None
    logprobs: int | None = None
    tokens: Sequence[int] = ()

    def next_key(self) -> tuple[int, int]:
        """Return the random key of the next token, two uint32: a function of seed and index alone.

        Raises:
            struct.error: The seed does not fit 64 bits.
        """
        low, high = struct.unpack("<II", self._digest(b""))
        self.index += 1
        return low, high

    def log_threshold(self) -> float:
        """Return the log-probability above which the next token loses its likeliest candidates.

        XTC happens at an index with ``xtc_probability``: a function of seed and index alone.
        Infinity where it does not.
        """
        if not self.sampling.xtc_probability:
            return math.inf
        (drawn,) = struct.unpack("<Q", self._digest(b"xtc"))
        if drawn >= self.sampling.xtc_probability * 2.0**64:
            return math.inf
        threshold = self.sampling.xtc_threshold
        return math.log(threshold) if threshold > 0 else -math.inf

    def _digest(self, purpose: bytes) -> bytes:
        drawn = struct.pack("<QQ", self.sampling.seed, self.index)
        return hashlib.blake2b(drawn, digest_size=8, person=purpose).digest()


class BatchSampler:
    """One sampler for every row of the batch, so that a step costs one draw and not one per row.

    Args:
        rows_of: Returns the uids of the rows of a batch of a given size, in order.
    """

    def __init__(self, rows_of: Callable[[int], Sequence[int]]) -> None:
        self._rows_of = rows_of
        self._rows: dict[int, SamplerRow] = {}
        #: The constraints of the sequences.
        self.masks = LogitMasks()
        self._counts: dict[int, TokenCounts] = {}
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
        if row.sampling.has_penalties:
            prompt_tokens = len(row.tokens) - row.index
            self._counts[uid] = TokenCounts(row.sampling, row.tokens, prompt_tokens)
        if row.constraint is not None:
            self.masks.add(uid, row.constraint)
        if row.logprobs is not None:
            self.logprob_rows.add(uid, row.logprobs)

    def drop(self, uid: int) -> None:
        """Forget a sequence."""
        self._rows.pop(uid, None)
        self._counts.pop(uid, None)
        self.masks.drop(uid)
        self.logprob_rows.drop(uid)

    def take_back(self, uid: int, draws: int) -> None:
        """Forget the last draws of a sequence in the last call; they are drawn again."""
        if self._used_keys:
            self._rows[uid].index -= draws
        if uid in self._counts:
            self._counts[uid].take_back(draws)
        self.masks.take_back(uid, draws)
        self.logprob_rows.take_back(uid, draws)

    def __call__(self, logits: mx.array, read: mx.array | Sequence[int] | None = None) -> mx.array:
        """Return one token id per row, [rows].

        Several rows may belong to one sequence: its next tokens, in order.

        Args:
            logits: [rows, vocabulary].
            read: The token that each row has read last; needed where rows have penalties.
        """
        uids = tuple(self._rows_of(logits.shape[0]))
        if uids not in self._rules:
            if len(self._rules) >= RULES_MAX:
                self._rules.clear()
            rows = [self._rows[uid].sampling for uid in uids]
            self._rules[uids] = _Rules.of(rows, logits.shape[-1])
        penalised = self._penalised(uids, logits, read)
        self.drawn_from = self.masks.apply(uids, penalised, self.faults)
        tokens = self._drawn(self._rules[uids], uids, self.drawn_from)
        tokens = self.masks.within_limits(uids, tokens, read)
        self.masks.note(uids, tokens)
        self.logprob_rows.note(uids, logits, tokens)
        return tokens

    def _penalised(
        self, uids: Sequence[int], logits: mx.array, read: mx.array | Sequence[int] | None
    ) -> mx.array:
        """Return the logits after biases and penalties."""
        if self._counts.keys().isdisjoint(uids):
            return logits
        assert read is not None, "penalties depend on the tokens so far"
        newest, rows = ReadTokens(read), PenalisedRows()
        for row, uid in enumerate(uids):
            counts = self._counts.get(uid)
            if counts is None:
                continue
            if counts.largest_id >= logits.shape[-1]:
                self.faults[uid] = unknown_token(counts.largest_id, logits.shape[-1])
                continue
            counts.settle()
            rows.add(row, counts)
            counts.read(newest, row)
        if not rows.rows:
            return logits
        changed = rows.changed(logits, newest)
        if len(rows.rows) == len(uids):
            return changed
        whole = logits.astype(mx.float32)
        whole[mx.array(rows.rows)] = changed
        return whole

    def _drawn(self, rules: _Rules | None, uids: Sequence[int], logits: mx.array) -> mx.array:
        self._used_keys = rules is not None
        if rules is None:
            return mx.argmax(logits, axis=-1)
        keys, thresholds = [], []
        # Row by row: a key increments the index of its sequence.
        for uid in uids:
            if rules.has_xtc:
                thresholds.append(self._rows[uid].log_threshold())
            keys.append(self._key(uid))
        return rules.draw(logits, mx.array(keys, dtype=mx.uint32), thresholds)

    def _key(self, uid: int) -> tuple[int, int]:
        try:
            return self._rows[uid].next_key()
        except Exception as error:  # noqa: BLE001 - one row's fault must not end the whole batch
            self.faults[uid] = error
            return 0, 0


@dataclass(frozen=True, slots=True)
class _Rules:
    """The sampling rules of the rows as columns [rows, 1]; ``None`` where no row uses a rule.

    Attributes:
        candidates: Most likely tokens of a row that are sorted first; 0 for none.
        cut: Rows that keep a share of the tokens, unless they only draw the likeliest.
        wide: Rows that keep a number above ``candidates``.
        filtered: Rows that keep a part of the tokens by any rule.
        has_xtc: Whether a row may lose its likeliest candidates.
    """

    greedy: mx.array | None
    sharpness: mx.array
    candidates: int
    top_p: mx.array | None
    top_k: mx.array | None
    log_min_p: mx.array | None
    cut: frozenset[int]
    wide: frozenset[int]
    filtered: frozenset[int]
    has_xtc: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int) -> _Rules | None:
        """Return the columns, or ``None`` if every row draws its likeliest token."""
        has_xtc = any(row.xtc_probability > 0 for row in rows)
        if not has_xtc and all(row.is_greedy for row in rows):
            return None
        top_k = [min(row.top_k, vocabulary) for row in rows]
        any_top_p = any(row.top_p < 1 for row in rows)
        # A GPU finds the largest values by sorting all of them: it may as well use them all.
        widest = vocabulary if is_on_gpu() else min(vocabulary, CANDIDATES_MAX)
        return cls(
            greedy=_column([row.is_greedy for row in rows], mx.bool_),
            sharpness=mx.array([[1 / max(row.temperature, TEMPERATURE_MIN)] for row in rows]),
            candidates=widest if any_top_p else min(widest, max(top_k)),
            top_p=mx.array([[min(row.top_p, 1.0)] for row in rows]) if any_top_p else None,
            top_k=_column(top_k, mx.int32),
            log_min_p=(
                mx.array([[math.log(row.min_p) if row.min_p > 0 else -math.inf] for row in rows])
                if any(row.min_p > 0 for row in rows)
                else None
            ),
            cut=frozenset(
                at
                for at, row in enumerate(rows)
                if row.top_p < 1 and (row.xtc_probability > 0 or not row.is_greedy)
            ),
            wide=frozenset(at for at, kept in enumerate(top_k) if kept > widest),
            filtered=frozenset(
                at for at, row in enumerate(rows) if row.top_p < 1 or row.top_k or row.min_p > 0
            ),
            has_xtc=has_xtc,
        )

    def draw(self, logits: mx.array, keys: mx.array, thresholds: Sequence[float]) -> mx.array:
        """Return the drawn tokens, [rows].

        Args:
            logits: [rows, vocabulary].
            keys: The random key of each row, [rows, 2].
            thresholds: The log-probability of each row's XTC; empty where no row has one.
        """
        kept = self.kept(logits, thresholds)
        drawn = mx.vmap(lambda row, key: mx.random.categorical(row, key=key))(
            kept * self.sharpness, keys
        )
        if self.greedy is None:
            return drawn
        return mx.where(self.greedy[:, 0], mx.argmax(kept, axis=-1), drawn)

    def kept(self, logits: mx.array, thresholds: Sequence[float]) -> mx.array:
        """Return the logits less a number a row, minus infinity where a rule excludes a token.

        They are log-probabilities where a rule of the row needs their mass, and at most 0 in any
        row. See ``draw``.
        """
        logits = logits.astype(mx.float32)
        excluding = {at for at, threshold in enumerate(thresholds) if threshold < math.inf}
        highest = mx.max(logits, axis=-1, keepdims=True)
        needed = self.cut | (excluding - self.filtered)
        whole = _with_log_mass(highest, logits, needed)
        logprobs = logits - whole
        floor = self._floor(logprobs, highest - whole)
        kept = logprobs if floor is None else mx.where(logprobs < floor, -mx.inf, logprobs)
        if not excluding:
            return kept
        # The other rows have the whole mass.
        mass = _with_log_mass(mx.zeros_like(highest), kept, self.filtered & excluding)
        return _without_top_choices(kept, mx.array(list(thresholds))[:, None] + mass)

    def _floor(self, logprobs: mx.array, highest: mx.array) -> mx.array | None:
        """Return the log-probability below which a row draws nothing, [rows, 1].

        Args:
            logprobs: [rows, vocabulary].
            highest: The largest of each row, [rows, 1].
        """
        floors = []
        if self.candidates:
            floors.append(self._ranked_floor(logprobs))
        if self.log_min_p is not None:
            floors.append(highest + self.log_min_p)
        if not floors:
            return None
        return floors[0] if len(floors) == 1 else mx.maximum(*floors)

    def _ranked_floor(self, logprobs: mx.array) -> mx.array:
        """Return the floor of ``top_k`` and ``top_p``.

        Rows that keep more than ``candidates`` tokens are sorted whole, each by itself, so that no
        row changes the draw of another.
        """
        best = mx.sort(mx.topk(logprobs, self.candidates, axis=-1), axis=-1)[:, ::-1]
        floor = self._floor_among(best, self.top_k, self.top_p)
        wide = self.wide
        if self.cut and self.candidates < logprobs.shape[-1]:
            assert self.top_p is not None, "some rows keep a share"
            held: list[bool] = (mx.exp(best).sum(axis=-1) >= self.top_p[:, 0]).tolist()  # type: ignore[assignment]  # one axis
            wide |= {at for at in self.cut if not held[at]}
        for at in sorted(wide):
            row, top_k, top_p = mx.array([at]), self.top_k, self.top_p
            ranked = mx.sort(logprobs[row], axis=-1)[:, ::-1]
            floor[row] = self._floor_among(
                ranked,
                None if top_k is None else top_k[row],
                None if top_p is None else top_p[row],
            )
        return floor

    @staticmethod
    def _floor_among(best: mx.array, top_k: mx.array | None, top_p: mx.array | None) -> mx.array:
        """Return the floor, [rows, 1].

        Args:
            best: The largest log-probabilities in descending order, [rows, candidates].
            top_k: Number of tokens kept, [rows, 1]; 0 for all of them.
            top_p: Mass of the tokens kept, [rows, 1]; 1 for all of them.
        """
        floor = mx.full((best.shape[0], 1), -mx.inf)
        if top_k is not None:
            last = mx.take_along_axis(best, mx.clip(top_k - 1, 0, best.shape[-1] - 1), axis=-1)
            floor = mx.where(top_k > 0, last, floor)
        if top_p is not None:
            mass_before = mx.cumsum(mx.exp(best), axis=-1, inclusive=False)
            needed = (mass_before < top_p).sum(axis=-1, keepdims=True)
            last = mx.take_along_axis(best, mx.maximum(needed - 1, 0), axis=-1)
            floor = mx.where(top_p < 1, mx.maximum(floor, last), floor)
        return floor


def draw_scores(logits: mx.array, sampling: Sampling, index: int) -> mx.array:
    """Return the score of each token in one draw, in float32; the highest score was drawn.

    A draw is the maximum of the scaled logits plus Gumbel noise
    (https://arxiv.org/abs/1611.01144), which ``mx.random.categorical`` derives from the same key.

    Args:
        logits: Those of one row, [vocabulary].
    """
    logits = logits.astype(mx.float32)
    rules = _Rules.of([sampling], logits.shape[-1])
    if rules is None:
        return logits
    row = SamplerRow(sampling, index)
    kept = rules.kept(logits[None], [row.log_threshold()])[0]
    if sampling.is_greedy:
        return kept
    key = mx.array(row.next_key(), dtype=mx.uint32)
    return kept * rules.sharpness[0] + mx.random.gumbel(logits.shape, key=key)


def _with_log_mass(column: mx.array, rows: mx.array, at: Collection[int]) -> mx.array:
    """Return a column [rows, 1] with the logarithm of the whole mass in the rows ``at``.

    On a CPU, an exponential of MLX takes 22 ns and one of NumPy 2: a vocabulary of 150,000 has one
    for each token.
    """
    if not at:
        return column
    places = mx.array(sorted(at))
    chosen = rows if len(at) == rows.shape[0] else rows[places]
    if is_on_gpu():
        mass = mx.logsumexp(chosen, axis=-1, keepdims=True)
    else:
        values = np.array(chosen, copy=False)
        highest = values.max(axis=-1, keepdims=True)
        # Of a row without any candidate, the mass is no number.
        with np.errstate(invalid="ignore"):
            shares = values - highest
            np.exp(shares, out=shares)
            mass = mx.array(highest + np.log(shares.sum(axis=-1, keepdims=True)))
    if len(at) == rows.shape[0]:
        return mass
    filled = mx.array(column)
    filled[places] = mass
    return filled


def _without_top_choices(kept: mx.array, limits: mx.array) -> mx.array:
    """Exclude the top choices of a row (XTC), as llama.cpp's ``llama_sampler_xtc_apply`` does.

    Of the candidates whose share of the kept mass reaches the threshold, only the least likely one
    stays, before the temperature.

    Args:
        kept: Log-probabilities, minus infinity for what is no candidate, [rows, vocabulary].
        limits: Logarithms of the thresholds as shares of the whole mass, [rows, 1]; infinity
            changes nothing.
    """
    limits = mx.maximum(limits, mx.finfo(mx.float32).min)
    least = mx.where(kept >= limits, kept, mx.inf).min(axis=-1, keepdims=True)
    return mx.where(kept > least, -mx.inf, kept)


def _column(values: Sequence[int | bool], dtype: mx.Dtype) -> mx.array | None:
    return mx.array([[value] for value in values], dtype=dtype) if any(values) else None
