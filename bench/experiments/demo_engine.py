"""The engine on the demo model with the service's own settings, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.experiments.report import log_to_stderr
from domain.chat.generation import Outcome, PreparedPrompt
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest, Message
from domain.values import SamplingWish
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from ops.setting_groups.models import DEMO_MODEL
from ops.setting_groups.service import EngineSettings
from tests.support.models.engine_probe import CollectingSink, submit_prompt
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner

ANSWER_WITHIN_S = 600.0
STORE_BYTES = 1 << 34
KV_BUDGET_BYTES = 1 << 31


class DemoEngine:
    """A started engine; leaving the context stops it.

    Args:
        batch: Sequences that run at once.
        store: Directory of a block store, or ``None`` for memory only.
        batch_window_ms: How long requests that come together wait for more.
    """

    def __init__(
        self, *, batch: int, store: Path | None = None, batch_window_ms: float = 0.0
    ) -> None:
        log_to_stderr()
        settings, clock = EngineSettings(), SystemClock()
        self._tier: DiskTier | None = None
        if store is not None:
            blocks = BlockStore(store, budget_bytes=STORE_BYTES, clock=clock, disk=Disk())
            self._tier = DiskTier(blocks, clock=clock)
            self._tier.start()
            assert self._tier.wait_scanned(ANSWER_WITHIN_S)
        self._names = count()
        self._engine = BatchEngine(
            runner_factory=lambda: BatchRunner(
                load_weights=lambda: load_weights(ModelSource(id=DEMO_MODEL)),
                prefill_step_tokens=settings.prefill_step_tokens,
                kv_budget_bytes=KV_BUDGET_BYTES,
                tier=self._tier,
            ),
            sink=CollectingSink(),
            clock=clock,
            max_batch_size=batch,
            stream_interval_s=settings.stream_interval_ms / 1000,
            batch_window_s=batch_window_ms / 1000,
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
        if self._tier is not None:
            assert self._tier.close(ANSWER_WITHIN_S)

    def prepare(self, messages: Sequence[Message], max_tokens: int) -> PreparedPrompt:
        """Render a greedy request."""
        request = ChatRequest(
            model=DEMO_MODEL,
            messages=tuple(messages),
            max_tokens=max_tokens,
            sampling=SamplingWish(temperature=0),
        )
        return self._engine.prepare(request)

    def submit(self, prompt: PreparedPrompt) -> GenerationHandle:
        """Submit a prompt."""
        return submit_prompt(self._engine, f"job-{next(self._names)}", prompt)


def outcome_of(handle: GenerationHandle) -> Outcome:
    """Wait for an answer and return it."""
    outcome = handle.wait(ANSWER_WITHIN_S)
    assert outcome is not None, "no answer came"
    assert outcome.failure is None, outcome.failure
    return outcome
