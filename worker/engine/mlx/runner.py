"""``worker.engine.ports.ModelRunner`` on the batches of mlx-lm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import structlog
from mlx_lm.utils import maybe_set_recommended_wired_limit

from domain.kv.hashing import BlockHash
from domain.kv.pool import PoolStats
from domain.kv.spec import BLOCK_TOKENS, ModelCacheSpec
from worker.cachestore.reports import OnContext, ignore
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.admission import AdmissionControl
from worker.engine.mlx.decode_batches import DecodeBatches, JoinRequest, PrefillProgress
from worker.engine.mlx.kv.leaves import UnsupportedCache
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.prefix_cache import PrefixCache
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow
from worker.engine.ports import (
    Admission,
    Admitted,
    Fault,
    Finish,
    LoadedModel,
    StepResult,
    TokenLikelihood,
)
from worker.engine.scheduling.prefill_pace import PrefillPace

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """What loading gives: the network for the runner, the rest for everybody.

    Attributes:
        network: An mlx-lm model.
        end_ids: Tokens that end a turn.
        model: What other threads may use.
    """

    network: Any
    end_ids: frozenset[int]
    model: LoadedModel


class BatchRunner:
    """A batch on one model. Every method runs on the thread that called ``load``.

    Args:
        load_weights: Loads the model.
        prefill_step_tokens: Most prompt tokens computed in one piece.
        gap_max_ms: How long the pause between two tokens of a stream may become while a prompt is
            read; pieces are made shorter accordingly. 0 leaves them whole.
        kv_budget_bytes: What caches of running sequences and blocks of earlier ones may take
            together. The model's context is lowered to what fits. ``None`` for no limit; then no
            blocks are kept.
        reuse: Whether blocks are kept; otherwise every prompt is computed whole.
        block_tokens: Tokens in a block.
        tier: Where blocks outlive the process, if they shall.
        on_context: Told what was restored and what was kept; must not wait.
    """

    def __init__(
        self,
        *,
        load_weights: Callable[[], LoadedWeights],
        prefill_step_tokens: int,
        gap_max_ms: float = 0.0,
        kv_budget_bytes: int | None = None,
        reuse: bool = True,
        block_tokens: int = BLOCK_TOKENS,
        tier: DiskTier | None = None,
        on_context: OnContext = ignore,
    ) -> None:
        self._load_weights = load_weights
        self._prefill_step_tokens = prefill_step_tokens
        self._gap_max_s = gap_max_ms / 1000
        self._kv_budget_bytes = kv_budget_bytes
        self._wants_reuse = reuse and kv_budget_bytes is not None
        self._block_tokens = block_tokens
        self._tier = tier
        self._on_context = on_context
        self._reuse: PrefixCache | None = None
        #: Tokens that each sequence may still decode.
        self._left: dict[int, int] = {}
        self._weights: LoadedWeights | None = None
        self._spec: ModelCacheSpec | None = None
        #: Of the tokens of this step.
        self._likelihoods: dict[int, TokenLikelihood] = {}
        #: Whose first token was told before it was in the caches.
        self._told_early: set[int] = set()
        #: Whether the step before this one read a piece and did not decode.
        self._owes_decoding = False
        #: When each sequence came.
        self._arrivals: dict[int, int] = {}
        self._room = AdmissionControl(None, None, None)
        self._groups: DecodeBatches | None = None
        self._sampler = BatchSampler(self._rows_of)
        self._pace = self._new_pace()
        self._wired_limit: int | None = None

    @property
    def groups(self) -> DecodeBatches:
        """Return what runs now."""
        assert self._groups is not None, "nothing is loaded"
        return self._groups

    def load(self) -> LoadedModel:
        """Load weights and tokenizer, and compute one token so that no caller pays for that."""
        self._weights = self._load_weights()
        self._wired_limit = maybe_set_recommended_wired_limit()
        self._spec = self._probed(self._weights.network)
        self._reuse = self._make_reuse(self._weights)
        self._room = AdmissionControl(self._spec, self._reuse, self._kv_budget_bytes)
        self.reset()
        mx.eval(self._weights.network(mx.array([[0]])))
        model = replace(self._weights.model, card=self._room.fitting(self._weights.model.card))
        return (
            model
            if self._reuse is None
            else replace(model, cached_prefix=self._reuse.cached_prefix)
        )

    def must_wait(self, admission: Admission) -> bool:
        """Tell whether what this one could start from is being computed or read."""
        return self._reuse is not None and self._reuse.must_wait(admission.tokens)

    def insert(self, admission: Admission) -> Admitted | None:
        """Let a sequence join at the next step, or return ``None`` if there is no room now."""
        tokens, live_bytes = admission.tokens, self.groups.live_bytes()
        known = 0 if self._reuse is None else self._reuse.memory.known_tokens(tokens[:-1])
        restored_max = self._room.restored_max(len(tokens), known, live_bytes, len(self._left))
        if restored_max is None:
            return None
        if self._reuse is None:
            join = JoinRequest(segments=[list(admission.tokens)], tokens=[])
            admitted = Admitted(self.groups.insert(join))
        else:
            admitted = self._insert_restored(admission, self._reuse, restored_max)
        reserved = self._room.ledger.reserve(self.groups.live_bytes())
        assert reserved, "room was found for it"
        self._arrivals[admitted.uid] = admission.arrival
        self._left[admitted.uid] = admission.max_new_tokens
        row = SamplerRow(
            admission.sampling, admission.first_index, admission.constraint, admission.logprobs
        )
        self._sampler.add(admitted.uid, row)
        return admitted

    def step(self) -> StepResult:
        """Decode one token of every running sequence, and perhaps read a piece of a prompt before.

        Where computing holds this thread, a sequence's first token is told as soon as it is there,
        and the step ends; the next step does what was left of it.
        Only what all sequences share may raise; a prompt that cannot be read is one fault.
        """
        faults: list[Fault] = []
        preempted, self._likelihoods = self._make_room(), {}
        owes = self._owes_decoding and self.groups.decoding > 0
        prefilled = [] if owes else self._read(faults)
        tokens = self._first_tokens(prefilled)
        self._owes_decoding = bool(tokens)
        if not tokens:
            tokens = self._decode()
        faults += [Fault(uid, error) for uid, error in self._sampler.faults.items()]
        self._sampler.faults.clear()
        faulty = {fault.uid for fault in faults}
        for uid in faulty:
            self.remove(uid)
        return StepResult(
            [entry for entry in tokens if entry[0] not in faulty],
            [entry for entry in prefilled if entry[0] not in faulty],
            faults,
            preempted,
            {uid: one for uid, one in self._likelihoods.items() if uid not in faulty},
        )

    def remove(self, uid: int) -> None:
        """Take a sequence out; one that has left already is ignored."""
        self._leave([uid])

    def reset(self) -> None:
        """Drop every sequence and start an empty batch."""
        assert self._weights is not None, "nothing is loaded"
        if self._reuse is not None:
            self._reuse.end_all()
        self._left.clear()
        self._arrivals.clear()
        self._told_early.clear()
        self._owes_decoding = False
        self._room.ledger.reserve(0)
        self._sampler = BatchSampler(self._rows_of)
        self._pace = self._new_pace()
        network = self._weights.network
        weights = sum(array.nbytes for array in _arrays(network.parameters()))
        # Decoding apart reads all weights once more: padding up to that much costs less time.
        self._groups = DecodeBatches(
            network,
            self._sampler,
            self._room.row_bytes,
            padding_bytes_max=weights,
            has_room=self._room.ledger.reserve,
        )
        mx.clear_cache()

    def close(self) -> None:
        """Free what the model holds."""
        if self._reuse is not None:
            self._reuse.close()
        self._groups = self._weights = self._reuse = None
        if self._wired_limit is not None:
            mx.synchronize()
            mx.set_wired_limit(self._wired_limit)
        mx.clear_cache()
        # A stream's own thread that is still there when the process exits aborts it.
        mx.clear_streams()

    def forget(self, names: Sequence[BlockHash]) -> Future[int] | None:
        """Delete blocks in memory and on disk; see ``PrefixCache.forget``."""
        return None if self._reuse is None else self._reuse.forget(names)

    def memory(self) -> PoolStats | None:
        """Return the accounts of the blocks in memory; from any thread."""
        reuse = self._reuse
        return None if reuse is None else reuse.memory.stats()

    def _new_pace(self) -> PrefillPace:
        return PrefillPace(gap_max_s=self._gap_max_s, step_tokens=self._prefill_step_tokens)

    def _probed(self, network: Any) -> ModelCacheSpec | None:  # noqa: ANN401 - mlx-lm ships no types
        try:
            return probe_spec(network, self._block_tokens)
        except UnsupportedCache as error:
            _log.warning("no_reuse", why=str(error))
            return None

    def _make_reuse(self, weights: LoadedWeights) -> PrefixCache | None:
        if not self._wants_reuse or self._spec is None or self._kv_budget_bytes is None:
            return None
        fingerprint = weights.model.card.fingerprint
        return PrefixCache(
            weights.network,
            fingerprint,
            self._kv_budget_bytes,
            self._block_tokens,
            tier=self._tier,
            on_context=self._on_context,
        )

    def _insert_restored(
        self, admission: Admission, reuse: PrefixCache, tokens_max: int
    ) -> Admitted:
        start = reuse.begin(admission.tokens, self.groups, tokens_max)
        try:
            uid = self.groups.insert(
                JoinRequest(segments=start.segments, caches=start.caches, tokens=start.tokens)
            )
        except Exception:
            reuse.give_back(start.held)
            raise
        reuse.follow(uid, admission.tokens, start, admission.label)
        return Admitted(uid, start.held.tokens, self._block_tokens)

    def _make_room(self) -> list[int]:
        """Reserve for the next step, block by block; the youngest leave if they must."""
        preempted: list[int] = []
        by_age = sorted(self._left, key=lambda uid: self._arrivals[uid])
        while not self._room.find(self.groups.live_bytes(), by_age):
            assert by_age, "an empty batch needs no room"
            _log.info("preempted", running=len(by_age))
            preempted.append(by_age.pop())
            self._leave(preempted[-1:])
        return preempted

    def _read(self, faults: list[Fault]) -> list[tuple[int, int, int]]:
        """Read a piece if it is time, and let those begin to decode whose prompt is read."""
        groups = self.groups
        if not groups.is_reading:
            return []
        told: list[tuple[int, int, int]] = []
        for read in self._read_piece():
            told += self._advanced(read)
        for read in groups.begin_decoding():
            told += self._advanced(read)
        for uid, error in groups.take_failed().items():
            _log.warning("prompt_failed", error=repr(error))
            faults.append(Fault(uid, error, retryable=True))
        return told

    def _read_piece(self) -> list[PrefillProgress]:
        groups = self.groups
        tokens_max = self._pace.chunk_tokens(streams=groups.decoding)
        if not tokens_max:
            return []
        before, started = groups.tokens_read, time.perf_counter()
        read = groups.read(tokens_max)
        if groups.tokens_read > before:
            seconds = time.perf_counter() - started
            self._pace.record_chunk(groups.tokens_read - before, seconds)
        return read

    def _advanced(self, read: PrefillProgress) -> list[tuple[int, int, int]]:
        """Keep the blocks that are complete, and return what is worth telling."""
        start = 0
        if self._reuse is not None:
            start = self._reuse.start_of(read.uid)
            self._reuse.advance(read.uid, self.groups, tokens=start + read.done)
        if read.done < read.total <= self._prefill_step_tokens:
            return []
        return [(read.uid, start + read.done, start + read.total)]

    def _first_tokens(
        self, prefilled: Sequence[tuple[int, int, int]]
    ) -> list[tuple[int, int, Finish | None]]:
        """Return the first tokens of those whose prompt has been read in this step.

        Those that end with it are left to ``_decode``, which keeps what they leave.
        """
        begun = {uid for uid, done, total in prefilled if done == total}
        begun -= self._sampler.faults.keys()
        if not begun or mx.default_device() != mx.Device(mx.cpu):
            # Elsewhere the next step is computed while this one's tokens are told.
            return []
        assert self._weights is not None, "nothing is loaded"
        tokens: list[tuple[int, int, Finish | None]] = []
        for uid, token in self.groups.first_tokens(begun):
            if token not in self._weights.end_ids and self._left[uid] > 1:
                self._told_early.add(uid)
                tokens.append((uid, token, None))
                self._tell(uid, self._sampler.likelihoods.first(uid))
        return tokens

    def _decode(self) -> list[tuple[int, int, Finish | None]]:
        if not self.groups.decoding:
            return []
        assert self._weights is not None, "nothing is loaded"
        started = time.perf_counter()
        tokens: list[tuple[int, int, Finish | None]] = []
        for uid, token in self.groups.decode():
            if self._reuse is not None:
                self._reuse.advance_one(uid, self.groups)
            self._left[uid] -= 1
            likely = self._sampler.likelihoods.next(uid)
            if uid in self._told_early:
                self._told_early.discard(uid)
                continue
            self._tell(uid, likely)
            if token in self._weights.end_ids:
                tokens.append((uid, token, Finish.END))
            else:
                tokens.append((uid, token, None if self._left[uid] else Finish.LENGTH))
        self._leave([uid for uid, _, finish in tokens if finish is not None])
        self._pace.record_decode(time.perf_counter() - started)
        return tokens

    def _tell(self, uid: int, likely: TokenLikelihood | None) -> None:
        if likely is not None:
            self._likelihoods[uid] = likely

    def _leave(self, uids: Sequence[int]) -> None:
        """Take sequences out, and keep what they held last."""
        if not uids:
            return
        for uid in uids:
            if self._reuse is not None:
                self._reuse.end(uid, self.groups)
            self._left.pop(uid, None)
            self._arrivals.pop(uid, None)
            self._told_early.discard(uid)
            self._sampler.drop(uid)
        self.groups.remove(uids)

    def _rows_of(self, size: int) -> list[int]:
        """Return the uids of the batch that is being sampled."""
        rows = self.groups.rows
        assert len(rows) == size, "another batch is sampled than we know"
        return rows


def _arrays(parameters: Any) -> Iterator[mx.array]:  # noqa: ANN401 - a tree of dicts and lists
    """Yield the leaves."""
    if isinstance(parameters, mx.array):
        yield parameters
    else:
        for child in parameters.values() if isinstance(parameters, dict) else parameters:
            yield from _arrays(child)
