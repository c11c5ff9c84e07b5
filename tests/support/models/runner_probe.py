"""A ``BatchRunner`` on a tiny random network, driven step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from domain.kv.pool import BlockPool
from domain.values import ModelCard, Sampling
from tests.support.models.tiny_architectures import VOCABULARY, Architecture
from tests.support.polling import wait_until
from worker.cachestore.reports import OnContext
from worker.cachestore.tier import DiskTier
from worker.engine.grammar.ports import Unlimited
from worker.engine.mlx.drafting.pass_times import PassTimes
from worker.engine.mlx.drafting.speculation import DrafterSource
from worker.engine.mlx.kv.context_caches import ContextStore
from worker.engine.mlx.memory.at_load import DeviceBudget
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.prefix_cache import PrefixCache
from worker.engine.mlx.rows.ragged_states import RowSupport, find_row_support
from worker.engine.mlx.runner import BatchRunner
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.ports import Admission, Finish, LoadedModel, RenderedPrompt, TokenLikelihood

BLOCK = 16
STEPS_MAX = 2000


def make_drafts_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts cost nothing: a busy machine must not decide what is verified."""
    monkeypatch.setattr(PassTimes, "plain_s", lambda *_: 1.0)
    free = property(lambda _: (0.0, 0.0), lambda *_: None)
    monkeypatch.setattr(PassTimes, "cost", free, raising=False)
    monkeypatch.setattr(PassTimes, "drafted_max", 1_000)
    instant = property(lambda _: 1e-9, lambda *_: None)
    monkeypatch.setattr(PassTimes, "drafting_s", instant, raising=False)
    monkeypatch.setattr(PassTimes, "record_drafts", lambda *_: None)
    monkeypatch.setattr(PassTimes, "_settle", lambda *_: None)


@dataclass
class Run:
    """The observed tokens and state of one sequence."""

    uid: int
    prompt: list[int]
    cached: int
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    likelihoods: list[TokenLikelihood] = field(default_factory=list)
    prompt_likelihoods: Sequence[TokenLikelihood] | None = None
    finish: Finish | None = None
    fault: Exception | None = None
    read: int = 0
    paused: int = 0
    arrival: int = 0
    max_tokens: int = 0
    #: Positions at which its prompt is likely to part from others.
    checkpoints: tuple[int, ...] = ()
    #: Where the last message of its prompt begins.
    last_message: int = 0
    agent: str | None = None
    #: Tokens of its context and tokens restored of them, for each time that it was started.
    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.fault is not None


class Bench:
    """A runner and its sequences.

    Args:
        architecture: Of the network.
        budget_bytes: For all contexts, or what measures it; ``None`` for no limit and no reuse.
        reuse: Whether blocks are kept.
        step_tokens: Prompt tokens computed in a step.
        ends: Tokens that end a turn.
        network: In place of the usual one.
        tier: Where blocks outlive the runner.
        on_context: Receives the runner's context reports.
        draft: Drafts tokens; ``None`` for their own text alone.
        kv_bits: Of keys and values; by default those of the architecture.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        budget_bytes: int | DeviceBudget | None = 1 << 26,
        step_tokens: int = BLOCK,
        ends: frozenset[int] = frozenset(),
        network: Any = None,
        tier: DiskTier | None = None,
        on_context: OnContext = lambda _: None,
        reuse: bool = True,
        draft: DrafterSource | None = None,
        kv_bits: int | None = None,
    ) -> None:
        support = None
        self.network = network
        if network is None:
            self.network, support = shared_network(architecture)
        bits = architecture.kv_bits if kv_bits is None else kv_bits
        self.runner = BatchRunner(
            load_weights=lambda: LoadedWeights(self.network, ends, _model(), support, kv_bits=bits),
            prefill_step_tokens=step_tokens,
            kv_budget_bytes=budget_bytes,
            reuse=reuse,
            block_tokens=BLOCK,
            tier=tier,
            on_context=on_context,
        )
        self.runner.load_draft = lambda _, refusal: None if refusal else draft
        self.model = self.runner.load()
        self.runs: dict[int, Run] = {}
        self.waiting: list[Run] = []
        self.arrivals = 0

    @property
    def reuse(self) -> PrefixCache:
        assert self.runner.prefix_cache is not None
        return self.runner.prefix_cache

    @property
    def computed(self) -> int:
        """Prompt tokens computed so far, without the last token of each prompt."""
        return self.runner.sequences.tokens_prefilled

    def admission(
        self, prompt: Sequence[int], max_tokens: int = 8, sampling: Sampling | None = None
    ) -> Admission:
        return Admission(
            tokens=prompt if isinstance(prompt, tuple) else tuple(prompt),
            first_index=0,
            max_new_tokens=max_tokens,
            sampling=sampling or Sampling(temperature=0),
        )

    def join(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        sampling: Sampling | None = None,
        *,
        first_index: int = 0,
    ) -> Run:
        return self.join_as(
            replace(self.admission(prompt, max_tokens, sampling), first_index=first_index)
        )

    def join_as(self, admission: Admission) -> Run:
        admitted = self.runner.insert(admission)
        assert admitted is not None, "there is no room"
        prompt = list(admission.tokens)
        run = Run(admitted.uid, prompt, admitted.cached_tokens, admission.sampling)
        self.runs[run.uid] = run
        return run

    def step(self) -> None:
        step = self.runner.step()
        for uid, restored in step.restored.items():
            run = self.runs[uid]
            run.cached = run.cached if run.tokens else restored
            run.starts.append((len(run.prompt) + len(run.tokens), restored))
        for uid, token, finish in step.tokens:
            self.runs[uid].tokens.append(token)
            self.runs[uid].finish = finish
        for uid, likelihoods in step.likelihoods.items():
            self.runs[uid].likelihoods += likelihoods
        for uid, scored in step.prompts.items():
            self.runs[uid].prompt_likelihoods = scored
        for uid, done, _ in step.prefilled:
            self.runs[uid].read = done
        for fault in step.faults:
            self.runs[fault.uid].fault = fault.error
        for uid in step.preempted:
            run = self.runs.pop(uid)
            run.paused += 1
            self.waiting.insert(0, run)

    def let_in(self) -> None:
        """Admit waiting sequences in order while there is room."""
        while self.waiting:
            run = self.waiting[0]
            admitted = self.runner.insert(
                replace(
                    self.admission(run.prompt + run.tokens, sampling=run.sampling),
                    first_index=len(run.tokens),
                    max_new_tokens=run.max_tokens - len(run.tokens),
                    arrival=run.arrival,
                    checkpoints=run.checkpoints,
                    last_message=run.last_message,
                    agent=run.agent,
                )
            )
            if admitted is None:
                return
            run.uid = admitted.uid
            run.cached = run.cached if run.tokens else admitted.cached_tokens
            self.runs[run.uid] = self.waiting.pop(0)

    def wait(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling | None = None,
        *,
        checkpoints: tuple[int, ...] = (),
        last_message: int = 0,
        agent: str | None = None,
    ) -> Run:
        """Queue a sequence that joins as soon as there is room."""
        self.arrivals += 1
        run = Run(-self.arrivals, list(prompt), 0, sampling or Sampling(temperature=0))
        run.arrival, run.max_tokens = self.arrivals, max_tokens
        run.checkpoints, run.last_message, run.agent = checkpoints, last_message, agent
        self.waiting.append(run)
        return run

    def check(self) -> None:
        """Assert that the memory accounts are right."""
        if self.runner.prefix_cache is not None:
            check_accounts(self.reuse.store)

    def drain(self) -> None:
        """Step until all sequences have ended, and check the accounts after each step."""
        for _ in range(STEPS_MAX):
            if not self.go_on():
                return
        pytest.fail("the batch does not end")

    def go_on(self) -> bool:
        """Admit sequences and do a step; return whether a sequence was left before it."""
        self.let_in()
        runs = any(not run.ended for run in self.runs.values())
        if not self.waiting and not runs:
            return False
        if not runs:
            # Memory is free once the disk has what holds it.
            wait_until(self._lets_in, what="memory for the next sequence")
        self.step()
        self.check()
        return True

    def _lets_in(self) -> bool:
        self.runner.background()
        self.let_in()
        return any(not run.ended for run in self.runs.values())

    def finish(self, *runs: Run) -> None:
        """Step until these runs, or all, have ended."""
        waited = runs or tuple(self.runs.values())
        for _ in range(STEPS_MAX):
            if all(run.ended for run in waited):
                return
            self.step()
        pytest.fail("the batch does not end")

    def leave(self, run: Run) -> None:
        self.runner.remove(run.uid)
        del self.runs[run.uid]

    def run_alone(
        self, prompt: Sequence[int], max_tokens: int = 8, sampling: Sampling | None = None
    ) -> Run:
        """Run one sequence to its end."""
        run = self.join(prompt, max_tokens, sampling)
        self.finish(run)
        return run

    def close(self) -> None:
        """Check the kept blocks and reset the runner."""
        if self.runner.prefix_cache is not None:
            for uid in list(self.runs):
                self.runner.remove(uid)
            self.check()
            assert not any(one.is_running or one.users for one in self.reuse.pool.contexts())
            assert not self.runner.prefix_cache._pending
        # Not the runner's own ``close``: it would end the streams of the thread of all tests.
        self.runner.reset()


def shed(pool: BlockPool, over_bytes: int) -> None:
    """Free about ``over_bytes`` of contexts that no sequence uses."""
    pool.withheld_bytes = pool.limit_bytes - pool.used_bytes + over_bytes
    pool.fit()
    pool.withheld_bytes = 0


@cache
def shared_network(architecture: Architecture) -> tuple[Any, RowSupport]:
    """Return a network that this process makes once, and how it computes several rows."""
    network = architecture.make(mx.float32)
    # This computes; what the network keeps of it can be used on any thread.
    return network, find_row_support(network)


def _model() -> LoadedModel:
    return LoadedModel(
        card=ModelCard(
            id="tiny",
            fingerprint="sha256:" + "1" * 64,
            context_length=4096,
            description="Tiny.",
            created_at="2026-01-01T00:00:00Z",
        ),
        think_tags=None,
        render=lambda *_: RenderedPrompt((1,)),
        opens_thinking=lambda _: False,
        detokenizer=lambda: ByteDetokenizer([]),
    )


MakeBench = Callable[..., Bench]


def check_accounts(store: ContextStore) -> None:
    """Assert that the arrays and the accounts of contexts agree."""
    store.pool.check_integrity(store._caches, store._ends)
    for one, caches in store._caches.items():
        assert caches.nbytes <= one.size_bytes, "a context exceeds its reservation"
    for checkpoint, arrays in store._ends.items():
        size_bytes = sum(array.nbytes for array in arrays.values())
        assert size_bytes <= checkpoint.size_bytes, "a checkpoint exceeds its reservation"


class OnlyEven(Unlimited):
    """A constraint that rules out every other token."""

    accepted_count = 0
    is_over = False
    is_free = False

    def accept(self, token: int) -> None:
        assert token % 2 == 0
        self.accepted_count += 1

    def mask(self) -> bytes | None:
        return bytes([0b01010101]) * (VOCABULARY // 8)
