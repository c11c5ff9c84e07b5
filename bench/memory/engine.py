"""The engine on a network of this bench, with a disk tier, and what its moves take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mlx.core as mx

from bench.report.section import log_to_stderr
from domain.chat.generation import Outcome
from domain.chat.items import StreamItem, ids_of
from domain.chat.request import ChatRequest
from domain.values import JobId, ModelCard
from ops.blockstore.blocks import StoreStats
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.models.engine_probe import submit_prompt
from worker.cachestore.reports import ContextReport, ContextSaved, ContextStarted
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.ports import LoadedModel, RenderedPrompt, StepResult

WAIT_S = 900.0
STORE_BYTES = 1 << 40
#: Tokens that the engine accepts where no budget limits them.
CONTEXT_TOKENS_MAX = 1 << 16
_TABLE = [bytes([ord("a") + token % 26]) for token in range(512)]


@dataclass(slots=True)
class MemoryWatch:
    """Bytes of MLX beyond the weights, as the engine thread sees them.

    Attributes:
        weights: Bytes of the loaded network.
        peak: Most bytes at once, weights excluded, since the model was loaded.
        step: Most bytes that a step took beside the contexts that it found or left, whichever are
            more.
    """

    weights: int = 0
    peak: int = 0
    step: int = 0


class WatchedRunner(BatchRunner):
    """A runner that measures its memory.

    Args:
        watch: Receives the figures.
        options: See ``BatchRunner``.
    """

    def __init__(self, watch: MemoryWatch, **options: Any) -> None:
        super().__init__(**options)
        self._watch = watch

    def load(self) -> LoadedModel:
        """Load the model and count its weights."""
        model = super().load()
        # MLX takes again a freed buffer that is up to two pages larger than what is asked for. That
        # is nothing beside the arrays of a published model, and a third of one here.
        mx.set_cache_limit(0)
        self._watch.weights = mx.get_active_memory()
        mx.reset_peak_memory()
        return model

    def step(self) -> StepResult:
        """Run a step; record the peak."""
        self._record_peak()
        before = self._held()
        result = super().step()
        held = max(before, self._held())
        self._watch.step = max(self._watch.step, self._record_peak() - held)
        return result

    def _held(self) -> int:
        """Return the bytes of contexts, without the pass that is being computed."""
        return min(mx.get_active_memory() - self._watch.weights, self._memory.used_bytes())

    def _record_peak(self) -> int:
        peak = mx.get_peak_memory() - self._watch.weights
        self._watch.peak = max(self._watch.peak, peak)
        mx.reset_peak_memory()
        return peak


class TokenTimes:
    """``ItemSink`` that records when the tokens of each job are published."""

    def __init__(self) -> None:
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def publish(self, items: Sequence[tuple[JobId, StreamItem]]) -> None:
        """Record the instant of each item that carries tokens."""
        now = time.perf_counter()
        for job, item in items:
            if ids_of(item.body):
                self.times[job].append(now)


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished request.

    Attributes:
        first_token_s: Seconds from the request to its first token.
        total_s: Seconds to its end.
        starts: Each time that it joined the batch; several if it was preempted.
    """

    outcome: Outcome
    first_token_s: float
    total_s: float
    starts: tuple[ContextStarted, ...]


class MemoryEngine:
    """A started engine; leaving the context stops it.

    Args:
        network: Makes the network; called on the engine thread, which alone may use it.
        store: Directory of the block store.
        budget_bytes: KV budget.
        block_tokens: Stored together; fewer than in the product.
        prefill_step_tokens: Most prompt tokens in one piece.
    """

    def __init__(
        self,
        network: Any,
        *,
        store: Path,
        budget_bytes: int,
        block_tokens: int,
        prefill_step_tokens: int,
    ) -> None:
        log_to_stderr()
        self.memory, self.tokens = MemoryWatch(), TokenTimes()
        self._reports: list[ContextReport] = []
        self._names = count()
        self._submitted: set[str] = set()
        clock = SystemClock()
        blocks = BlockStore(store, budget_bytes=STORE_BYTES, clock=clock)
        self._tier = DiskTier(blocks, clock=clock)
        self._tier.start()
        assert self._tier.wait_scanned(WAIT_S), "the store is scanned"
        self._engine = BatchEngine(
            runner_factory=lambda: WatchedRunner(
                self.memory,
                load_weights=lambda: LoadedWeights(network(), frozenset(), _model()),
                prefill_step_tokens=prefill_step_tokens,
                kv_budget_bytes=budget_bytes,
                block_tokens=block_tokens,
                tier=self._tier,
                on_context=self._reports.append,
            ),
            sink=self.tokens,
            clock=clock,
            max_batch_size=8,
        )
        self._engine.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads; queued blocks are on disk afterwards."""
        self._engine.close(0)
        assert self._tier.close(WAIT_S), "the tier ends"

    @property
    def context_length(self) -> int:
        """Longest context that the engine accepts within its budget, in tokens."""
        return self._engine.card().context_length

    def answer(self, request: ChatRequest, agent: str | None = None) -> Answered:
        """Submit a request and wait for its end; from any thread."""
        started_s = time.perf_counter()
        name = f"job-{next(self._names)}"
        self._submitted.add(name)
        prompt = self._engine.prepare(request)
        outcome = submit_prompt(self._engine, name, prompt, agent=agent).wait(WAIT_S)
        ended_s = time.perf_counter()
        assert outcome is not None, f"{name} does not end"
        assert outcome.failure is None, f"{name} failed: {outcome.failure}"
        first_s = self.tokens.times[name][0]
        return Answered(outcome, first_s - started_s, ended_s - started_s, self._starts(name))

    def flushed(self) -> StoreStats:
        """Wait until all contexts are saved, and return the counters of the disk tier."""
        until_s = time.monotonic() + WAIT_S
        while self._submitted - self._saved():
            assert time.monotonic() < until_s, "the contexts are saved"
            time.sleep(0.01)
        assert self._tier.flush(WAIT_S), "the tier writes"
        self._tier.forget([]).result(WAIT_S)  # after all deletions
        return self._tier.stats()

    def _saved(self) -> set[str]:
        return {one.label for one in list(self._reports) if isinstance(one, ContextSaved)}

    def _starts(self, name: str) -> tuple[ContextStarted, ...]:
        reports = list(self._reports)
        return tuple(
            report
            for report in reports
            if isinstance(report, ContextStarted) and report.label == name
        )


def _model() -> LoadedModel:
    card = ModelCard(
        id="bench",
        fingerprint="sha256:" + "0" * 64,
        context_length=CONTEXT_TOKENS_MAX,
        description="",
        created_at="2026-01-01T00:00:00Z",
    )
    return LoadedModel(
        card=card,
        think_tags=None,
        render=_render,
        opens_thinking=lambda _: False,
        detokenizer=lambda: ByteDetokenizer(_TABLE),
    )


def _render(request: ChatRequest, *_: object) -> RenderedPrompt:
    """Return the token ids that the messages spell."""
    messages = [tuple(map(int, message.content.split())) for message in request.messages]
    return RenderedPrompt(
        tuple(token for message in messages for token in message),
        message_starts=tuple(accumulate(map(len, messages[:-1]))),
        last_message=sum(map(len, messages[:-1])),
    )
