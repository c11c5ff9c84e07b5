"""``InferenceEngine`` without threads: it computes only in ``advance``."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from domain.chat.generation import NO_CLAIM, Claim, GenerationTask, Outcome, PreparedPrompt
from domain.chat.items import Body, Failed, Started, StreamItem, Text
from domain.chat.request import ChatRequest
from domain.errors import (
    Draining,
    EngineFailure,
    InvalidRequest,
    PromptTooLong,
    QueueUnavailable,
)
from domain.job.ports import ItemSink
from domain.ports import Clock
from domain.values import (
    JobId,
    ModelCard,
    Owner,
    Priority,
    PromptEncoding,
    Sampling,
    StopReason,
    Timings,
    Usage,
)
from worker.engine.scheduling.waiting_queue import BatchRoom, Turn, WaitingQueue

#: Tokens in one item; a crash can come between the two.
ITEM_TOKENS = 2
#: As ``worker.engine.emitter.OUTAGE_S_MAX``.
OUTAGE_S_MAX = 30.0
#: The models that workers may have.
MODELS = ("a", "b")
#: The only message that is refused.
REFUSED = "<refused>"
CONTEXT = 1000
#: Characters of all prompts that run at once; of the longest, only one fits.
MEMORY = 20
#: The bounds of the real queue, but small, so that a short life meets them.
PASSES_MAX, WAIT_S_MAX = 1, 0.5


def answer_to(prompt: str, model: str, seed: int = 1) -> str:
    """Return the answer of a model, a function of prompt and seed.

    No two models agree on a token, and no two seeds.
    """
    first = ord("A") if model == MODELS[1] else ord("a")
    begin = 7 * len(prompt) + 11 * (seed - 1)
    return "".join(chr(first + (begin + n) % 26) for n in range(len(prompt) % 8))


def fingerprint_of(model: str) -> str:
    """Return the fingerprint of a model."""
    return f"sha256:{model * 64}"


def bodies_of(prompt: str, answer: str) -> list[Body]:
    """Return the items of an undisturbed run, without the terminal one."""
    pieces = [answer[n : n + ITEM_TOKENS] for n in range(0, len(answer), ITEM_TOKENS)]
    begun = Started(prompt_tokens=len(prompt), cached_tokens=0)
    return [begun, *(Text(text=piece, ids=tuple(map(ord, piece))) for piece in pieces)]


@dataclass(eq=False)
class _Generation:
    task: GenerationTask
    answer: str
    tokens: list[int]
    next_item: int
    held: list[StreamItem] | None = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    ending: tuple[StopReason, Failed | None] | None = None
    is_cancelled: bool = False
    since: float = 0.0
    passed: int = 0
    outcome: Outcome | None = None


class StepEngine:
    """Computes in ``advance`` and publishes in ``publish``; admits with the real queue.

    Args:
        sink: Where items go.
        clock: Measures how long the sink is unreachable.
        pause: Blocks until a condition holds.
        places: Generations that run side by side.
        model: The model that computes.
    """

    def __init__(
        self,
        sink: ItemSink,
        clock: Clock,
        pause: Callable[[str, Callable[[], bool]], object],
        *,
        places: int = 3,
        model: str = MODELS[0],
    ) -> None:
        self._model = model
        self._sink, self._clock, self._pause = sink, clock, pause
        self._places = places
        self._live: list[_Generation] = []
        self._waiting: WaitingQueue[_Generation] = WaitingQueue(
            0.0, passes_max=PASSES_MAX, wait_s_max=WAIT_S_MAX
        )
        self._running: list[_Generation] = []
        self._outbox: list[tuple[_Generation, StreamItem]] = []
        self._away_since: float | None = None
        self._is_closed = False

    @property
    def live(self) -> tuple[JobId, ...]:
        """The jobs that have no outcome yet."""
        return tuple(one.task.job_id for one in self._live)

    # -- domain.chat.ports.InferenceEngine ---------------------------------------------------

    def card(self) -> ModelCard:
        return ModelCard(
            id=self._model,
            fingerprint=fingerprint_of(self._model),
            context_length=CONTEXT,
            description="Computes in steps.",
            created_at="2026-01-01T00:00:00Z",
        )

    def prepare(
        self,
        request: ChatRequest,
        encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
        cache_owner: Owner | None = None,
        claim: Claim = NO_CLAIM,
    ) -> PreparedPrompt:
        del encoding, cache_owner, claim  # characters are tokens
        text = request.messages[-1].content
        if text == REFUSED:
            raise InvalidRequest("refused", field="messages")
        if len(text) >= CONTEXT:
            raise PromptTooLong(len(text), CONTEXT - 1)
        return PreparedPrompt(
            tokens=tuple(map(ord, text)),
            cached_tokens=0,
            cache_source="none",
            max_tokens=request.max_tokens,
            sampling=request.sampling.resolve(Sampling()),
        )

    def submit(self, task: GenerationTask) -> _Handle:
        if self._is_closed:
            error = EngineFailure("the engine has stopped")
            error.retryable = True
            raise error
        prompt = "".join(map(chr, task.prompt.tokens))
        generation = _Generation(
            task=task,
            answer=answer_to(prompt, self._model, task.prompt.sampling.seed),
            tokens=[],
            next_item=task.first_item,
            since=-math.inf if task.attempt > 1 else self._clock.monotonic(),
        )
        self._take_over(generation)
        self._live.append(generation)
        rank = int(task.priority is Priority.BATCH)
        self._waiting.add(
            generation,
            cost=len(prompt),
            now=self._clock.monotonic(),
            rank=rank,
            is_due=task.attempt > 1,
        )
        return _Handle(self, generation, self._pause)

    # -- what a test does with it ----------------------------------------------------------------

    def advance(self, steps: int) -> None:
        """Compute ``steps`` steps of the batch without publishing."""
        for _ in range(steps):
            room: BatchRoom[_Generation] = BatchRoom(
                has_place=lambda _: len(self._running) < self._places,
                must_wait=lambda _: None,
                join=self._join,
            )
            self._waiting.admit(self._clock.monotonic(), self._places - len(self._running), room)
            for generation in [*self._running]:
                self._step(generation)

    def publish(self, *, loses_reply: bool = False) -> None:
        """Publish items and set outcomes, if the sink is reachable."""
        now = self._clock.monotonic()
        try:
            if self._outbox:
                self._sink.publish([(one.task.job_id, item) for one, item in self._outbox])
                if loses_reply:
                    msg = "the reply was lost"
                    raise QueueUnavailable(msg)  # noqa: TRY301 - as the network would
        except QueueUnavailable:
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= OUTAGE_S_MAX:
                self._give_up()
            return
        self._away_since = None
        self._outbox.clear()
        for generation in [one for one in self._live if one.ending is not None]:
            stop, failure = generation.ending or (StopReason.END_TURN, None)
            withheld = generation.held is not None
            if withheld and failure is None and stop is not StopReason.CANCELLED:
                continue
            self._resolve(generation, stop, failure)

    def fail_batch(self) -> None:
        """Break a step: only its cause, the newest running generation, fails retryably."""
        failure = Failed(error=EngineFailure.code, message="a step failed", retryable=True)
        self._fail([one for one in self._live if one.ending is None][-1:], failure)

    def close(self) -> None:
        """Refuse new generations; running ones fail, and the next worker continues them."""
        self._is_closed = True
        stopped = Failed(error=Draining.code, message="the worker stopped", retryable=True)
        self._fail(self._live, stopped)

    # -- for handles -----------------------------------------------------------------------------

    def release(self, generation: _Generation) -> None:
        """Release the withheld items."""
        held, generation.held = generation.held or [], None
        self._outbox += [(generation, item) for item in held]

    def cancel(self, generation: _Generation) -> None:
        """Cancel the generation before its next step."""
        if generation.ending is None:
            if generation.held is None:
                self._emit(generation)
            else:
                self._take_back(generation)
            self._end(generation, StopReason.CANCELLED, None)

    def _join(self, turn: Turn[_Generation]) -> bool:
        generation = turn.item
        prompts = [one.task.prompt.tokens for one in (*self._running, generation)]
        if self._running and sum(map(len, prompts)) > MEMORY:
            return False
        self._check_turn(generation)
        self._running.append(generation)
        return True

    def _check_turn(self, joining: _Generation) -> None:
        """Assert that a generation that joins passes no one that has waited too long."""
        now, is_batch = self._clock.monotonic(), joining.task.priority is Priority.BATCH
        left = [one for one in self._live if one.ending is None and one not in self._running]
        for one in left[: left.index(joining)]:
            one.passed += 1
            assert one.passed <= PASSES_MAX, f"{one.task.job_id} was passed too often"
            is_equal = is_batch or one.task.priority is Priority.INTERACTIVE
            is_due = now - one.since >= WAIT_S_MAX and is_equal
            assert not is_due, f"{joining.task.job_id} passed {one.task.job_id}, which was due"
        if is_batch and joining.passed < PASSES_MAX:
            interactive = [one for one in left if one.task.priority is Priority.INTERACTIVE]
            assert not interactive, f"{joining.task.job_id} took the memory of interactive work"

    def _end(self, generation: _Generation, reason: StopReason, failure: Failed | None) -> None:
        generation.ending = (reason, failure)
        self._leave(generation)

    def _leave(self, generation: _Generation) -> None:
        self._waiting.remove(generation)
        self._running = [one for one in self._running if one is not generation]

    def _step(self, generation: _Generation) -> None:
        if len(generation.tokens) >= len(generation.answer):
            self._emit(generation)
            self._end(generation, StopReason.END_TURN, None)
            return
        token = ord(generation.answer[len(generation.tokens)])
        generation.tokens.append(token)
        generation.pending.append(token)
        if len(generation.tokens) % ITEM_TOKENS == 0:
            self._emit(generation)

    def _take_over(self, generation: _Generation) -> None:
        """Begin behind the tokens of earlier attempts; those of a parent are in no item yet."""
        task = generation.task
        published = len(task.emitted) if task.published is None else task.published
        generation.tokens = list(task.emitted[:published])
        for token in task.emitted[published:]:
            generation.tokens.append(token)
            generation.pending.append(token)
            if len(generation.tokens) % ITEM_TOKENS == 0:
                self._emit(generation)

    def _emit(self, generation: _Generation) -> None:
        if not generation.pending:
            return
        text = "".join(map(chr, generation.pending))
        body = Text(text=text, ids=tuple(generation.pending))
        task = generation.task
        item = StreamItem(n=generation.next_item, attempt=task.attempt, body=body, epoch=task.epoch)
        generation.pending.clear()
        generation.next_item += 1
        if generation.held is None:
            self._outbox.append((generation, item))
        else:
            generation.held.append(item)

    def _fail(self, generations: Sequence[_Generation], failure: Failed) -> None:
        for generation in generations:
            if generation.ending is None:
                if generation.held is not None:
                    self._take_back(generation)
                self._end(generation, StopReason.END_TURN, failure)

    @staticmethod
    def _take_back(generation: _Generation) -> None:
        """Drop tokens computed before the release: they were never emitted."""
        task = generation.task
        generation.tokens, generation.next_item = list(task.emitted), task.first_item
        generation.held, generation.pending = [], []

    def _give_up(self) -> None:
        """Fail the generations whose items wait for a sink that stays unreachable."""
        self._away_since = self._clock.monotonic()
        failure = Failed(error=QueueUnavailable.code, message="no stream", retryable=True)
        waiting = [one for one, _ in self._outbox]
        self._outbox.clear()
        for generation in list(self._live):
            if generation in waiting:
                self._resolve(generation, StopReason.END_TURN, failure)

    def _resolve(self, generation: _Generation, stop: StopReason, failure: Failed | None) -> None:
        self._live.remove(generation)
        self._leave(generation)
        tokens = tuple(generation.tokens)
        generation.outcome = Outcome(
            next_item=generation.next_item,
            token_ids=tokens,
            text="".join(map(chr, tokens)),
            thinking="",
            stop_reason=stop,
            stop_sequence=None,
            usage=Usage(
                prompt_tokens=len(generation.task.prompt.tokens), completion_tokens=len(tokens)
            ),
            token_hash=hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest(),
            timings=Timings(),
            failure=failure,
        )


class _Handle:
    """``GenerationHandle``."""

    def __init__(
        self,
        engine: StepEngine,
        generation: _Generation,
        pause: Callable[[str, Callable[[], bool]], object],
    ) -> None:
        self._engine, self._generation, self._pause = engine, generation, pause

    def release(self) -> None:
        self._engine.release(self._generation)

    def cancel(self) -> None:
        self._engine.cancel(self._generation)

    def wait_for_tokens(self) -> None:
        one = self._generation
        self._pause(
            "engine.wait for tokens",
            lambda: one.outcome is not None or len(one.tokens) > len(one.task.emitted),
        )

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        del timeout_s
        self._pause("engine.wait", lambda: self._generation.outcome is not None)
        return self._generation.outcome
