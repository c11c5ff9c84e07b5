"""The state of one generation, from submission to outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

from domain.chat.generation import GenerationTask, Outcome
from domain.chat.items import Body, Failed, StreamItem
from domain.engine.figures import RowFigures, RowPhase
from domain.kv.hashing import hash_ids
from domain.kv.owned_tokens import extended
from domain.values import StopReason, Timings, Usage, WaitingFor
from worker.engine.ports import Admission, TokenLikelihood
from worker.engine.scheduling.quarantine import STEPS_TO_CLEAR
from worker.engine.text_assembler import TextAssembler


@dataclass(slots=True)
class SequenceTimes:
    """Instants of one generation on the monotonic clock, in seconds; ``None`` until reached."""

    submitted: float
    admitted: float | None = None
    restored: float | None = None
    prefilled: float | None = None
    first_token: float | None = None

    def timings(self, ended: float) -> Timings:
        """Return the durations of the phases, in milliseconds, up to the instant ``ended``."""
        return Timings(
            admission_ms=_between_ms(self.submitted, self.admitted),
            restore_ms=_between_ms(self.admitted, self.restored),
            prefill_ms=_between_ms(self.admitted, self.prefilled),
            first_token_ms=_between_ms(self.submitted, self.first_token),
            decode_ms=_between_ms(self.first_token, ended),
        )


class Handle:
    """``domain.chat.ports.GenerationHandle``: safe to use from any thread.

    Args:
        on_cancel: Sends the cancellation to the engine; does not block.
        on_release: Sends the release to the emitter; does not block.
    """

    def __init__(self, on_cancel: Callable[[], None], on_release: Callable[[], None]) -> None:
        self._on_cancel = on_cancel
        self._on_release = on_release
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._has_tokens = threading.Event()
        self._cancelled = False
        self._outcome: Outcome | None = None

    def release(self) -> None:
        """Publish the items held back so far; later calls do nothing."""
        self._on_release()

    def cancel(self) -> None:
        """Request the end of the generation at the next step; later calls do nothing."""
        with self._lock:
            if self._cancelled or self._outcome is not None:
                return
            self._cancelled = True
        self._on_cancel()

    def wait_for_tokens(self) -> None:
        """Block until this attempt has computed its first tokens, or has ended."""
        self._has_tokens.wait()

    def announce_tokens(self) -> None:
        """Wake those who wait for the first tokens."""
        if not self._has_tokens.is_set():
            self._has_tokens.set()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Block until the generation ends and return its outcome; ``None`` after the timeout."""
        self._done.wait(timeout_s)
        return self._outcome

    def resolve(self, outcome: Outcome) -> None:
        """Set the outcome and wake the waiters; later outcomes are ignored."""
        with self._lock:
            if self._outcome is None:
                self._outcome = outcome
        self._has_tokens.set()
        self._done.set()


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation.

    The engine thread owns ``uid``, ``decoded``, ``preemptions``, ``reported``, ``admission``,
    ``cached_tokens``, ``kept_tokens``, ``reached`` and the times before the first token. The
    emitter thread owns the rest from the first message about the sequence on.
    ``BatchEngine.submit`` fills it before either thread sees it.

    Attributes:
        task: The prompt, and what earlier attempts emitted.
        assembler: Turns token ids into items; has replayed the tokens of earlier attempts.
        context_length: The model's context length in tokens, which decides the stop reason.
        uid: Identifies the sequence in the runner while it is in the batch.
        decoded: Tokens generated since ``admission`` was made.
        preemptions: How often it made room for interactive work, up to ``PREEMPTIONS_MAX``.
        reported: Why it waits and its position, as reported last; ``None`` while it runs.
        cached_tokens: Prompt tokens that came from the cache.
        is_restored: Whether ``cached_tokens`` is final.
        kept_tokens: Prompt tokens in whole blocks, which the cache keeps.
        prompt_likelihoods: Log probabilities of the prompt's tokens but the first, once they are
            computed; the engine thread sets them before it sends the first token.
        reached: Most tokens of prompt and answer that a successful step left computed.
        token_ids: Tokens generated over all attempts.
        emitted_at_end: Items that an earlier attempt emitted while ending; they are skipped.
        unpublished: Pieces of earlier tokens that no attempt has emitted.
        ended: Whether the outcome is decided; later tokens are ignored.
        unreleased: Deferred actions, until the log contains ``AttemptStarted``; ``None`` after the
            release.
    """

    task: GenerationTask
    assembler: TextAssembler
    handle: Handle
    times: SequenceTimes
    admission: Admission
    context_length: int
    uid: int | None = None
    decoded: list[int] = field(default_factory=list)
    preemptions: int = 0
    reported: tuple[WaitingFor, int] | None = None
    cached_tokens: int = 0
    is_restored: bool = False
    kept_tokens: int = 0
    prompt_likelihoods: Many[TokenLikelihood] | None = None
    reached: int = 0
    token_ids: list[int] = field(default_factory=list)
    next_item: int = 0
    emitted_at_end: int = 0
    unpublished: list[Body] = field(default_factory=list)
    ended: bool = False
    unreleased: list[Callable[[], None]] | None = field(default_factory=list)

    @property
    def log_ids(self) -> dict[str, str]:
        """The ids that its log lines carry."""
        task = self.task
        ids = {"job_id": task.job_id, "request_id": task.request_id, "trace_id": task.trace_id}
        return {name: value for name, value in ids.items() if value}

    def advance(self, tokens: int) -> bool:
        """Record that ``tokens`` are computed; return whether that is further than ever before."""
        is_further = tokens > self.reached
        self.reached = max(tokens, self.reached)
        return is_further

    def append(self, token: int) -> bool:
        """Append a generated token; return what ``advance`` returns for it."""
        self.decoded.append(token)
        new_tokens = self.admission.first_index + len(self.decoded) - len(self.task.emitted)
        if new_tokens >= STEPS_TO_CLEAR:
            self.handle.announce_tokens()
        return self.advance(len(self.admission.tokens) + len(self.decoded))

    @property
    def has_answered(self) -> bool:
        """Whether the engine has generated a token of the answer, in any attempt."""
        return bool(self.decoded) or self.admission.first_index > 0

    def figures(self, now: float) -> RowFigures:
        """Return what the row does at the instant ``now``; any thread may call it."""
        prompt = self.task.prompt
        prompt_tokens, first_s = len(prompt.tokens), self.times.first_token
        generated = self.admission.first_index + len(self.decoded)
        seconds = 0.0 if first_s is None else max(0.0, now - first_s)
        fresh = generated - len(self.task.emitted) - 1
        if self.has_answered or self.times.prefilled is not None:
            phase, read = RowPhase.DECODE, prompt_tokens
        else:
            phase = RowPhase.PREFILL if self.is_restored else RowPhase.RESTORE
            known = self.cached_tokens if self.is_restored else 0
            read = min(max(self.reached, known), prompt_tokens)
        return RowFigures(
            job=self.task.job_id,
            phase=phase,
            prompt_tokens=prompt_tokens,
            read_tokens=read,
            cached_tokens=self.cached_tokens,
            generated_tokens=generated,
            max_tokens=prompt.max_tokens,
            tokens_per_s=fresh / seconds if seconds and fresh > 0 else None,
        )

    @property
    def answered(self) -> tuple[int, ...]:
        """The tokens of the answer over all attempts, as the engine thread knows them."""
        return (*self.admission.tokens[len(self.task.prompt.tokens) :], *self.decoded)

    def prepare_resume(self, *, is_alone: bool = False, is_cold: bool = False) -> None:
        """Make an admission that continues after the decoded tokens."""
        decoded, admission = self.decoded, self.admission
        is_scored = admission.is_scored and not decoded
        constraint = admission.constraint
        if constraint is not None and not constraint.is_free:
            # The sampler accepts a token when it samples the next one, so the last may be missing.
            for token in decoded[constraint.accepted_count - admission.first_index :]:
                constraint.accept(token)
        self.admission = replace(
            admission,
            tokens=extended(admission.tokens, decoded),
            first_index=admission.first_index + len(decoded),
            max_new_tokens=admission.max_new_tokens - len(decoded),
            is_alone=is_alone or is_scored,
            is_cold=is_cold or is_scored,
            is_scored=is_scored,
        )
        self.uid, self.decoded = None, []

    def record_restored(self, tokens: int, at: float) -> None:
        """Set how many prompt tokens came from the cache; later admissions do not change it."""
        if not self.is_restored:
            self.is_restored = True
            self.times.restored = at
            self.cached_tokens = min(tokens, len(self.task.prompt.tokens))

    def record_first_token(self, at: float) -> None:
        """Note when the first token came, and what its prompt's log probabilities are."""
        if self.times.first_token is not None:
            return
        self.times.first_token = at
        if self.prompt_likelihoods is not None:
            self.assembler.score_echo(self.task.prompt.tokens, self.prompt_likelihoods)

    def replay_earlier_tokens(self) -> None:
        """Feed the tokens of earlier attempts to the assembler, without emitting their items again.

        Those that a fork takes over from its parent are in no item of it yet.
        """
        task = self.task
        emitted = 1  # ``Started`` is item 0.
        for index, token in enumerate(task.emitted):
            if self.assembler.is_over:
                break
            if (piece := self.assembler.feed(token)) is not None:
                emitted += 1
                if task.published is not None and index >= task.published:
                    self.unpublished.append(piece)
            self.token_ids.append(token)
        self.next_item = task.first_item
        self.emitted_at_end = max(0, task.first_item - emitted)

    def natural_stop_reason(self) -> StopReason:
        """Return the stop reason of an answer that ended by itself."""
        is_stop = self.assembler.stop_sequence is not None
        return StopReason.STOP_SEQUENCE if is_stop else StopReason.END_TURN

    @property
    def only_reads(self) -> bool:
        """Whether the request is for the prompt in the cache and for no token."""
        return self.task.prompt.max_tokens == 0

    def limit_reached(self) -> StopReason | None:
        """Return the limit that allows no further token, ``None`` if none is reached.

        Before its prompt is computed, a sequence that only reads has not reached its limit.
        """
        if self.only_reads or len(self.token_ids) < self.task.prompt.max_tokens:
            return None
        if len(self.task.prompt.tokens) + len(self.token_ids) >= self.context_length:
            return StopReason.CONTEXT_WINDOW
        return StopReason.MAX_TOKENS

    def number(self, body: Body) -> StreamItem:
        """Return ``body`` as the next numbered item."""
        task = self.task
        item = StreamItem(n=self.next_item, attempt=task.attempt, body=body, epoch=task.epoch)
        self.next_item += 1
        return item

    def last_items(self, reason: StopReason) -> list[StreamItem]:
        """Return the items that the assembler held back, without those emitted before."""
        if self.only_reads and not self.task.prompt.echoed:
            return []  # those that begin in the prompt
        cut = reason not in (StopReason.END_TURN, StopReason.STOP_SEQUENCE)
        pieces = self.assembler.flush(cut=cut)
        return [self.number(piece) for piece in pieces[self.emitted_at_end :]]

    def outcome(self, ended: float, reason: StopReason, failure: Failed | None = None) -> Outcome:
        """Return the outcome, as of the instant ``ended``."""
        prompt = self.task.prompt
        stop_text = self.assembler.stop_sequence
        return Outcome(
            next_item=self.next_item,
            token_ids=tuple(self.token_ids),
            text=self.assembler.text,
            thinking=self.assembler.thinking,
            calls=self.assembler.calls,
            logprobs=self.assembler.logprobs,
            order=self.assembler.order,
            stop_reason=reason,
            stop_sequence=stop_text if reason is StopReason.STOP_SEQUENCE else None,
            usage=Usage(
                prompt_tokens=len(prompt.tokens),
                cached_tokens=self.cached_tokens,
                completion_tokens=len(self.token_ids),
                reasoning_tokens=self.assembler.reasoning_tokens,
                kept_tokens=self.kept_tokens,
            ),
            token_hash=hash_ids(self.token_ids),
            timings=self.times.timings(ended),
            failure=failure,
        )


def _between_ms(start: float | None, end: float | None) -> float:
    return 0.0 if start is None or end is None else round(max(0.0, (end - start) * 1000), 3)
