"""``worker.engine.ports.ModelRunner`` on MLX: networks of mlx-lm over rows of this engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import structlog

from domain.chat.images import IMAGE_ID_MIN
from domain.kv.contexts import MemoryStats
from domain.kv.owned_tokens import cache_ids
from domain.kv.spec import BLOCK_TOKENS, ModelCacheSpec
from domain.values import DraftFigures, WaitingFor
from worker.cachestore.reports import OnContext
from worker.cachestore.tier import DiskTier
from worker.engine.mlx import admission as rows
from worker.engine.mlx.admission import AdmissionControl, RowMemory
from worker.engine.mlx.cpu import is_on_gpu
from worker.engine.mlx.drafting.pass_times import PassTimes
from worker.engine.mlx.drafting.speculation import DrafterSource, Speculation
from worker.engine.mlx.kv.start_plan import STEP_TOKENS_MAX
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.memory.at_load import DeviceBudget, LoadedMemory, memory_at_load
from worker.engine.mlx.model.abilities import abilities_of, report_abilities
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.prefix_cache import PrefixCache
from worker.engine.mlx.rows.output_head import OutputHead, find_output_head
from worker.engine.mlx.rows.ragged_cache import RaggedKind
from worker.engine.mlx.rows.ragged_states import RowSupport, find_row_support
from worker.engine.mlx.rows.running_sequences import (
    PrefillProgress,
    RunningSequences,
    piece_tokens,
)
from worker.engine.mlx.sampling.logprobs import PromptRows
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

#: Seconds at the end for contexts that are not on the disk yet; the process waits a bit longer.
LAST_SAVES_S = 8.0


class BatchRunner:
    """Runs a batch of sequences on one model. Only the thread that called ``load`` may use it.

    Args:
        prefill_step_tokens: Most prompt tokens in one piece; ``None``: the default of the device.
        gap_max_ms: Longest pause between two tokens of a stream while a prompt is prefilled, in
            milliseconds; pieces are shortened accordingly. 0 leaves them whole.
        kv_budget_bytes: Bytes for the caches of running sequences and cached blocks together, or
            what measures them at load. ``load`` lowers the model's context length to what fits.
            ``None`` means no limit, and no blocks are cached.
        reuse: Whether blocks are cached; otherwise every prompt is computed whole.

    Attributes:
        speculates: Whether rows draft tokens from their own text, as of the next ``reset``.
        support: How the network computes several rows, and why not drafts, as of ``load``.
        drafts: What speculation has done so far; read from any thread.
        last_saves_s: Returns how long ``close`` waits for the disk, in seconds.
        load_draft: From the network, and why its drafts cannot be verified, to what drafts for the
            rows, as of ``load``; ``None`` for none.
    """

    def __init__(
        self,
        *,
        load_weights: Callable[[], LoadedWeights],
        prefill_step_tokens: int | None = None,
        gap_max_ms: float = 0.0,
        kv_budget_bytes: int | DeviceBudget | None = None,
        reuse: bool = True,
        block_tokens: int = BLOCK_TOKENS,
        tier: DiskTier | None = None,
        on_context: OnContext = lambda _: None,
    ) -> None:
        self._load_weights = load_weights
        self._prefill_step_tokens = piece_tokens(prefill_step_tokens)
        self._gap_max_s = gap_max_ms / 1000
        self._budget = kv_budget_bytes
        self._loaded: LoadedMemory | None = None
        self._caches_prefixes = reuse
        self._block_tokens = block_tokens
        self._tier = tier
        self._on_context = on_context
        self.speculates = True
        self.load_draft: Callable[[Any, str], DrafterSource | None] | None = None
        self._draft: DrafterSource | None = None
        self.last_saves_s: Callable[[], float] = lambda: LAST_SAVES_S
        self.support = RowSupport()
        self.drafts = DraftFigures()
        self.prefix_cache: PrefixCache | None = None
        #: Tokens that each sequence may still decode, by uid.
        self._remaining: dict[int, int] = {}
        self._weights: LoadedWeights | None = None
        self._spec: ModelCacheSpec | None = None
        #: Log-probabilities of this step's tokens, by uid.
        self._likelihoods: dict[int, list[TokenLikelihood]] = {}
        self._scored = PromptRows()
        #: Sequences whose first token was returned before it was in the caches.
        self._emitted_early: set[int] = set()
        #: Arrival number of each sequence, by uid.
        self._arrivals: dict[int, int] = {}
        self._memory: RowMemory = AdmissionControl(None, None)
        self._sequences: RunningSequences | None = None
        #: Selects the logits of a pass; ``None``: prompts are read in passes of their own.
        self._head: OutputHead | None = None
        self._sampler = BatchSampler(self._rows_of)
        self._pace = self._new_pace()

    @property
    def sequences(self) -> RunningSequences:
        """Return the sequences in prefill and decode."""
        assert self._sequences is not None, "nothing is loaded"
        return self._sequences

    def load(self) -> LoadedModel:
        """Load weights and tokenizer, and run one forward pass as a warm-up.

        Raises:
            ModelLoadError: The model cannot be loaded, or the budget holds no block of it.
        """
        self._weights = self._load_weights()
        model, network = self._weights.model, self._weights.network
        # Once for each model: the check computes several forward passes.
        self.support = self._weights.support or find_row_support(network)
        self._head = find_output_head(network) if self.support.kind else None
        if self.load_draft is not None and self.speculates:
            self._draft = self.load_draft(network, self.support.draft_refusal)
        self._loaded = memory = memory_at_load(
            network,
            model.card,
            block_tokens=self._block_tokens,
            piece_tokens=self._prefill_step_tokens,
            ragged=self.support.kind >= RaggedKind.BY_ROW,
            budget=self._budget,
            beside_bytes=self._draft_bytes() + self._weights.tower_bytes,
            kv_bits=self._weights.kv_bits,
        )
        self._spec = memory.spec
        if self._caches_prefixes and memory.spec is not None and memory.kv_bytes is not None:
            self.prefix_cache = PrefixCache(
                network,
                model.card.fingerprint,
                memory.kv_bytes,
                memory.spec,
                tier=self._tier,
                on_context=self._on_context,
            )
        cache = self.prefix_cache
        self._memory = cache or AdmissionControl(memory.sizes, memory.kv_bytes)
        self.reset()
        abilities = abilities_of(
            network,
            self.support,
            memory.spec,
            memory.why_no_spec,
            constrains=model.constrains,
            drafter="" if self._draft is None else self._draft.ability,
        )
        report_abilities(abilities)
        fitting = replace(
            model.card, context_length=memory.costs.context_length, abilities=abilities
        )
        model = replace(model, card=rows.fit_context(fitting, self._memory, memory.sizes))
        memory.report(model.card.context_length)
        return model if cache is None else replace(model, cached_prefix=cache.cached_prefix)

    def _draft_bytes(self) -> int:
        """Return the bytes of what drafts and of its caches."""
        if self._draft is None:
            return 0
        rows = self._budget.batch if isinstance(self._budget, DeviceBudget) else 0
        return self._draft.memory.bytes_of(rows)

    def must_wait(self, admission: Admission) -> WaitingFor | None:
        """Return what will soon provide blocks of the prompt: another sequence."""
        return None if admission.is_cold else self._memory.must_wait(cache_ids(admission.tokens))

    def insert(self, admission: Admission) -> Admitted | None:
        """Add a sequence to the next step; return ``None`` if its memory is not available now."""
        admitted = self._memory.insert(admission, self.sequences)
        if admitted is None:
            return None
        self._arrivals[admitted.uid] = admission.arrival
        self._remaining[admitted.uid] = admission.max_new_tokens
        row = SamplerRow(
            admission.sampling,
            admission.first_index,
            admission.constraint,
            admission.logprobs,
            self._read_ids(admission),
        )
        self._sampler.add(admitted.uid, row)
        if admission.is_scored:
            self._scored.add(admitted.uid, admission.tokens, admission.logprobs or 0)
        return admitted

    def _read_ids(self, admission: Admission) -> Sequence[int]:
        """Return the tokens of a sequence with ids of the vocabulary, on which penalties depend."""
        inputs = self.sequences.images
        if inputs is None or not admission.images:
            return admission.tokens
        placeholder = inputs.placeholder
        return [one if one < IMAGE_ID_MIN else placeholder for one in admission.tokens]

    def step(self) -> StepResult:
        """Prefill a piece of a prompt if it is time, then decode one token of each sequence.

        On the CPU, where a forward pass blocks this thread, a sequence's first token is returned
        as soon as it is drawn. An exception concerns the whole batch; a prompt whose prefill or
        start fails becomes a ``Fault``.
        """
        preempted, self._likelihoods = self._preempt_for_memory(), {}
        restored = rows.open_rows(self.sequences, self._memory, self._gap_max_s)
        restored_at = time.monotonic() if restored else None
        prefilled, tokens = self._prefill(), self._decode()
        prefilled += self._record(self.sequences.read_beside)
        faults = self.sequences.take_failed()
        faults += [Fault(uid, error) for uid, error in self._sampler.faults.items()]
        self._sampler.faults.clear()
        faulty = {fault.uid for fault in faults}
        started = {uid for uid, done, total in prefilled if done == total} - faulty
        tokens += self._first_tokens(started)
        self._remove_all(list(faulty))
        cache = self.prefix_cache
        is_full = cache is not None and cache.pool.stats().fill >= rows.EAGER_FILL
        self._memory.pump(rows.after_s(rows.EAGER_MOVES_S_MAX if is_full else rows.MOVES_S_MAX))
        return StepResult(
            [entry for entry in tokens if entry[0] not in faulty],
            [entry for entry in prefilled if entry[0] not in faulty],
            faults,
            preempted,
            {uid: one for uid, one in self._likelihoods.items() if uid not in faulty},
            {uid: self._scored.take(uid) for uid in started if uid in self._scored},
            {uid: one for uid, one in restored.items() if uid not in faulty},
            restored_at,
        )

    def background(self) -> bool:
        """Save contexts for a moment while nothing runs; return whether some are left."""
        return self._memory.pump(rows.after_s(rows.MOVES_S_MAX))

    def set_gap(self, gap_max_s: float) -> None:
        """Set the longest pause of a stream, from the next piece of a prompt on."""
        self._gap_max_s = self._pace.gap_max_s = gap_max_s

    def remove(self, uid: int) -> None:
        """Remove a sequence; an unknown uid is ignored."""
        self._remove_all([uid])

    def reset(self) -> None:
        """Remove every sequence and start an empty batch."""
        assert self._weights is not None, "nothing is loaded"
        self._memory.end_all()
        self._remaining.clear()
        self._arrivals.clear()
        self._emitted_early.clear()
        self._sampler, self._scored = BatchSampler(self._rows_of), PromptRows()
        ends, take_back = self._weights.end_ids, self._sampler.take_back
        times = PassTimes(overlaps=is_on_gpu())
        drafter = None if self._draft is None else self._draft.new_drafter()
        masks, drafted = self._sampler.masks, self.drafts.record
        speculation = Speculation(self._draft_room, take_back, ends, drafted, times, drafter, masks)
        self._sequences = RunningSequences(
            self._weights.network,
            self._sampler,
            self._memory.row_bytes,
            support=self.support,
            new_caches=partial(
                make_row_caches, self._weights.network, self._block_tokens, self._spec
            ),
            speculation=speculation if self.speculates else None,
            head=self._head,
            scored=self._scored,
        )
        self._sequences.images = self._weights.images
        self._pace = self._new_pace()
        mx.clear_cache()

    def close(self) -> None:
        """Save the contexts that are not on the disk yet, and free the model's memory."""
        self.save_all(self.last_saves_s())
        if self.prefix_cache is not None:
            self.prefix_cache.close()
        self._sequences = self._weights = self._draft = self.prefix_cache = None
        mx.clear_cache()
        # A stream thread that is alive at exit aborts the process.
        mx.clear_streams()

    def save_all(self, timeout_s: float) -> None:
        """Save all contexts, waiting for the disk for up to ``timeout_s``."""
        if self.prefix_cache is not None and not self.prefix_cache.save_all(timeout_s):
            _log.warning("contexts_not_saved")

    def memory(self) -> MemoryStats | None:
        """Return the figures of the contexts in memory; from any thread."""
        cache, loaded = self.prefix_cache, self._loaded
        return None if cache is None or loaded is None else loaded.complete(cache.pool.stats())

    def _new_pace(self) -> PrefillPace:
        return PrefillPace(
            gap_max_s=self._gap_max_s,
            step_tokens=self._prefill_step_tokens,
            on_gpu=is_on_gpu(),
            is_joint=self._sequences is not None and self._sequences.reads_beside,
        )

    def _draft_room(self, uid: int, _: int) -> int:
        """Return how many tokens may be drafted for a row.

        Memory is reserved for ``STEP_TOKENS_MAX``, of which the passes in flight take two.
        """
        return min(self._remaining[uid] - 1, STEP_TOKENS_MAX - 2)

    def _preempt_for_memory(self) -> list[int]:
        """Reserve memory for the next step; preempt the youngest sequences if it is short."""
        preempted: list[int] = []
        by_age = sorted(self._remaining, key=lambda uid: self._arrivals[uid])
        assert self._loaded is not None, "nothing is loaded"
        used_bytes = self._memory.used_bytes()
        self._memory.withhold(self._loaded.withheld_bytes(used_bytes, self.sequences, by_age))
        while not self._memory.reserve(self.sequences):
            assert by_age, "an empty batch needs no memory"
            _log.info("preempted", running=len(by_age))
            preempted.append(by_age.pop())
            self._remove_all(preempted[-1:], yields=True)
        return preempted

    def _prefill(self) -> list[tuple[int, int, int]]:
        """Prefill a piece if it is time; the next decode starts the prompts that are complete."""
        sequences = self.sequences
        if not sequences.is_prefilling:
            return []
        progress = self._record(self._prefill_piece())
        return progress + [_reported(piece) for piece in sequences.start_decoding()]

    def _record(self, pieces: Sequence[PrefillProgress]) -> list[tuple[int, int, int]]:
        """Register pieces of prompts that are in the caches; return what is reported of them."""
        for piece in pieces:
            self._memory.advance(piece.uid, self.sequences)
        # A prompt of one piece is reported only when it is complete.
        return [_reported(one) for one in pieces if one.total > self._prefill_step_tokens]

    def _prefill_piece(self) -> list[PrefillProgress]:
        sequences = self.sequences
        streams = sequences.decoding
        tokens_max = self._pace.chunk_tokens(streams=streams, waiting=sequences.waiting_tokens)
        if not tokens_max:
            return []
        before, started = sequences.tokens_prefilled, time.perf_counter()
        piece = sequences.prefill(
            min(tokens_max, self._prefill_step_tokens), together_max=tokens_max
        )
        if (tokens := sequences.tokens_prefilled - before) > 0:
            seconds = time.perf_counter() - started
            self._pace.record_chunk(tokens, seconds, streams=streams)
        return piece

    def _first_tokens(self, started: AbstractSet[int]) -> list[tuple[int, int, Finish | None]]:
        """Register the prompts that this step completed; return their first tokens if it is time.

        ``_decode`` returns those that end a sequence.
        """
        for uid in started:
            self._memory.advance(uid, self.sequences)
        if not started or is_on_gpu():
            # On a GPU the next step is computed while this one's tokens are emitted.
            return []
        assert self._weights is not None, "nothing is loaded"
        tokens: list[tuple[int, int, Finish | None]] = []
        for uid, token in self.sequences.first_tokens(started):
            if token not in self._weights.end_ids and self._remaining[uid] > 1:
                self._emitted_early.add(uid)
                tokens.append((uid, token, None))
                self._record_likelihood(uid, self._sampler.logprob_rows.first(uid))
        return tokens

    def _decode(self) -> list[tuple[int, int, Finish | None]]:
        if not self.sequences.decoding:
            return []
        assert self._weights is not None, "nothing is loaded"
        started, before = time.perf_counter(), self.sequences.tokens_prefilled
        tokens: list[tuple[int, int, Finish | None]] = []
        for uid, token in self.sequences.decode():
            self._memory.advance(uid, self.sequences)
            self._remaining[uid] -= 1
            likelihood = self._sampler.logprob_rows.next(uid)
            if uid in self._emitted_early:
                self._emitted_early.discard(uid)
                continue
            self._record_likelihood(uid, likelihood)
            if token in self._weights.end_ids:
                tokens.append((uid, token, Finish.END))
            else:
                tokens.append((uid, token, None if self._remaining[uid] else Finish.LENGTH))
        for uid, _, finish in tokens:
            if finish is not None:
                self._remove_all([uid], finish)
        seconds, read = time.perf_counter() - started, self.sequences.tokens_prefilled - before
        if read:
            self._pace.record_joint(read, seconds)
        else:
            self._pace.record_decode(seconds)
        return tokens

    def _record_likelihood(self, uid: int, likelihood: TokenLikelihood | None) -> None:
        if likelihood is not None:
            self._likelihoods.setdefault(uid, []).append(likelihood)

    def _remove_all(
        self, uids: Sequence[int], finish: Finish | None = None, *, yields: bool = False
    ) -> None:
        """Remove sequences; their contexts are parked."""
        if not uids:
            return
        for uid in uids:
            self._memory.end(uid, self.sequences, finish, yields=yields)
            self._remaining.pop(uid, None)
            self._arrivals.pop(uid, None)
            self._emitted_early.discard(uid)
            self._sampler.drop(uid)
            self._scored.drop(uid)
        self.sequences.remove(uids)

    def _rows_of(self, size: int) -> list[int]:
        """Return the uids of the batch that is being sampled."""
        sampled = self.sequences.sampled
        assert len(sampled) == size, "the sampled batch is not the current one"
        return sampled


def _reported(piece: PrefillProgress) -> tuple[int, int, int]:
    return piece.uid, piece.restored + piece.done, piece.restored + piece.total
