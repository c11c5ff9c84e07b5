"""A real engine on a tiny random network that records the logits of every token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from domain.chat.generation import PreparedPrompt
from domain.chat.ports import GenerationHandle
from domain.values import ModelCard
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.conversations import Ask
from tests.support.models.engine_probe import PATIENCE_S, CollectingSink, finished, submit_prompt
from tests.support.models.runner_probe import shared_network
from tests.support.models.tiny_architectures import VOCABULARY, Architecture
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.engine.mlx import runner as runner_module
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.mlx.sampling.sampler import BatchSampler
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.ports import Admission, Admitted, LoadedModel, RenderedPrompt, StepResult

#: Small, so that a short conversation has many.
BLOCK_TOKENS = 16
FINGERPRINT = "sha256:" + "1" * 64
STORE_BYTES = 1 << 30
#: Ends a turn; the random networks sample it occasionally.
END = VOCABULARY - 1

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        tokens: The answer.
        cached_tokens: Tokens of its prompt that were not computed.
        rows: Log-probabilities that each token was drawn from, ``(tokens or one more,
            vocabulary)``.
    """

    tokens: tuple[int, ...]
    cached_tokens: int
    rows: Rows


class _RecordingSampler(BatchSampler):
    """The sampler; records the log-probabilities of each row."""

    def __init__(self, rows_of: Callable[[int], Sequence[int]]) -> None:
        super().__init__(self._noting)
        self._asked = rows_of
        self._latest: Sequence[int] = ()
        self._seen: defaultdict[int, list[Rows]] = defaultdict(list)
        self.left: list[tuple[int, Rows]] = []

    def __call__(self, logits: mx.array, read: mx.array | Sequence[int] | None = None) -> mx.array:
        drawn = super().__call__(logits, read)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        for uid, row in zip(self._latest, np.array(logprobs.astype(mx.float32)), strict=True):
            self._seen[uid].append(row)
        return drawn

    def take_back(self, uid: int, draws: int) -> None:
        super().take_back(uid, draws)
        if draws:
            del self._seen[uid][-draws:]

    def drop(self, uid: int) -> None:
        super().drop(uid)
        if uid in self._seen:
            self.left.append((uid, np.stack(self._seen.pop(uid))))

    def _noting(self, size: int) -> Sequence[int]:
        self._latest = list(self._asked(size))
        return self._latest


class _RecordingRunner(BatchRunner):
    """The runner; records the logits behind each token of each request."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._ask_of: dict[int, Ask] = {}
        self.recorded: defaultdict[Ask, list[Rows]] = defaultdict(list)

    def insert(self, admission: Admission) -> Admitted | None:
        admitted = super().insert(admission)
        if admitted is None:
            return None
        self._ask_of[admitted.uid] = Ask(
            tuple(admission.tokens), admission.max_new_tokens, admission.sampling
        )
        return admitted

    def step(self) -> StepResult:
        step = super().step()
        assert isinstance(self._sampler, _RecordingSampler)
        left, self._sampler.left = self._sampler.left, []
        for uid, rows in left:
            self.recorded[self._ask_of[uid]].append(rows)
        return step


class RecordedEngine:
    """A started engine. ``close`` it.

    Args:
        architecture: Of the network, random and always the same.
        budget_blocks: Blocks that may stay in memory; ``None`` switches reuse off.
        batch: Sequences that run at once.
        store: Directory of a block store; what is there is found again, and what is kept is there
            after ``close``.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        budget_blocks: int | None,
        batch: int = 8,
        store: Path | None = None,
    ) -> None:
        self._architecture = architecture
        self._budget_blocks = budget_blocks
        self._batch = batch
        self._tier = None if store is None else open_tier(store)
        self._names = count()
        self._runner: _RecordingRunner | None = None
        self._engine = BatchEngine(
            runner_factory=self._make_runner,
            sink=CollectingSink(),
            clock=SystemClock(),
            max_batch_size=batch,
        )
        with _recording():
            self._engine.start()

    def close(self) -> None:
        """Stop the threads."""
        self._engine.close(0)
        if self._tier is not None:
            assert self._tier.close(PATIENCE_S)

    def settle(self) -> None:
        """Wait until all kept blocks are on disk."""
        assert self._tier is not None
        assert self._tier.flush(PATIENCE_S)

    def answer(self, ask: Ask) -> Answer:
        """Answer one request by itself."""
        return self.wait(ask, self.submit(ask))

    def submit(self, ask: Ask) -> GenerationHandle:
        """Submit a request."""
        prompt = PreparedPrompt(
            tokens=ask.prompt,
            cached_tokens=0,
            cache_source="none",
            max_tokens=ask.max_tokens,
            sampling=ask.sampling,
        )
        return submit_prompt(self._engine, f"job-{next(self._names)}", prompt)

    def wait(self, ask: Ask, handle: GenerationHandle) -> Answer:
        """Return the answer to a submitted request."""
        outcome = finished(handle)
        assert outcome.failure is None, outcome.failure
        assert self._runner is not None
        # Two that ask the same must get the same, so which of the two recordings does not matter.
        rows = self._runner.recorded[ask].pop()
        return Answer(outcome.token_ids, outcome.usage.cached_tokens, rows)

    def _make_runner(self) -> BatchRunner:
        network, support = shared_network(self._architecture)
        block_bytes = probe_spec(network, BLOCK_TOKENS).stored_bytes(BLOCK_TOKENS)
        budget = None if self._budget_blocks is None else self._budget_blocks * block_bytes
        self._runner = _RecordingRunner(
            load_weights=lambda: LoadedWeights(network, frozenset([END]), _model(), support),
            prefill_step_tokens=BLOCK_TOKENS,
            kv_budget_bytes=budget,
            block_tokens=BLOCK_TOKENS,
            tier=self._tier,
        )
        return self._runner


def open_tier(directory: Path) -> DiskTier:
    clock = SystemClock()
    disk = Disk(sync=False)
    store = BlockStore(directory, budget_bytes=STORE_BYTES, clock=clock, disk=disk)
    tier = DiskTier(store, clock=clock)
    tier.start()
    assert tier.wait_scanned(PATIENCE_S)
    return tier


@contextmanager
def _recording() -> Iterator[None]:
    """Make runners loaded within the block use the recording sampler."""
    with mock.patch.object(runner_module, "BatchSampler", _RecordingSampler):
        yield


def _model() -> LoadedModel:
    return LoadedModel(
        card=ModelCard(
            id="tiny",
            fingerprint=FINGERPRINT,
            context_length=4096,
            description="Tiny.",
            created_at="2026-01-01T00:00:00Z",
        ),
        think_tags=None,
        render=lambda *_: RenderedPrompt((1,)),
        opens_thinking=lambda _: False,
        detokenizer=lambda: ByteDetokenizer([b"x"] * VOCABULARY),
    )
