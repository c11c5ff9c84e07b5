"""Run steps of the batch and commit their results.

A step that fails harms no sequence but its cause: the others return to the queue with their tokens,
and ``Quarantine`` finds the one that fails alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from domain.chat.items import Failed, Progress
from domain.engine.figures import WorkCounts
from domain.errors import DeviceFailed, EngineFailure, EngineLost, InvalidRequest
from domain.ports import Clock
from domain.values import StopReason
from worker.engine.emitter import Emitter
from worker.engine.ports import (
    Fault,
    Finish,
    LoadedModel,
    ModelRunner,
    StepResult,
    is_device_error,
)
from worker.engine.preparation import constraint_of
from worker.engine.sequence import Sequence
from worker.engine.sequence_scheduler import SequenceScheduler

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BatchSteps:
    """The steps of one runner. Only the engine thread uses it."""

    _model: LoadedModel
    _runner: ModelRunner
    _scheduler: SequenceScheduler
    _emitter: Emitter
    _clock: Clock

    def run(self) -> None:
        """Compute a step of the sequences in the batch, and commit its results.

        Raises:
            EngineLost: The engine fails with every sequence.
            Exception: An error of the device.
        """
        try:
            step = self._runner.step()
        except Exception as error:
            if is_device_error(error):
                raise
            _log.exception("step_failed", running=len(self._scheduler.running))
            self._recover(error)
        else:
            self._commit(step)

    def _commit(self, step: StepResult) -> None:
        """Send the step's tokens to the emitter; drop finished, failed and preempted sequences."""
        running, now = self._scheduler.running, self._clock.monotonic()
        likelihoods = {uid: iter(values) for uid, values in step.likelihoods.items()}
        tokens = [
            (running[uid], token, finish, next(likelihoods.get(uid, iter(())), None))
            for uid, token, finish in step.tokens
        ]
        prefilled = [(running.get(uid), done, total) for uid, done, total in step.prefilled]
        for uid, restored in step.restored.items():
            running[uid].record_restored(restored, step.restored_at or now)
        for uid, scored in step.prompts.items():
            running[uid].prompt_likelihoods = scored
        self._count(((one, done) for one, done, _ in prefilled), (one for one, *_ in tokens), now)
        advanced = {one for one, done, _ in prefilled if one is not None and one.advance(done)}
        advanced |= {one for one, token, _, _ in tokens if one.append(token)}
        self._remove_finished(step.tokens)
        if tokens:
            self._emitter.emit(now, tokens)
        for sequence, done, total in prefilled:
            if sequence is not None and sequence.uid in running:
                self._report_prefill(sequence, done, total, now)
        for fault in step.faults:
            self._handle_fault(fault)
        for uid in step.preempted:
            self._put_back(running[uid])
        self._end_trial(advanced)

    def _count(
        self,
        prefilled: Iterable[tuple[Sequence | None, int]],
        tokens: Iterable[Sequence],
        now: float,
    ) -> None:
        """Add what the step has done, before its sequences advance."""
        generated = list(tokens)
        rows = set(generated)
        if rows:
            self._scheduler.batch_sizes.record(len(rows))
        first = [one for one in rows if not one.has_answered]
        computed = (
            done - max(one.reached, one.cached_tokens) for one, done in prefilled if one is not None
        )
        self._scheduler.counts += WorkCounts(
            generated_tokens=len(generated),
            computed_tokens=sum(tokens for tokens in computed if tokens > 0),
            prompt_tokens=sum(len(one.task.prompt.tokens) for one in first),
            cached_tokens=sum(one.cached_tokens for one in first),
            first_tokens=len(first),
            first_token_ms=sum(
                one.task.queued_ms + (now - one.times.submitted) * 1000 for one in first
            ),
        )

    def _remove_finished(self, tokens: Iterable[tuple[int, int, Finish | None]]) -> None:
        for uid, _, finish in tokens:
            if finish is not None:
                self._scheduler.quarantine.forget(self._scheduler.running.pop(uid))

    def _report_prefill(self, sequence: Sequence, done: int, total: int, now: float) -> None:
        if sequence.times.prefilled is not None:
            return
        if done >= total:
            sequence.times.prefilled = now
        else:
            progress = Progress(phase="prefill", done=done, total=total)
            self._emitter.advance(sequence, progress)

    def _handle_fault(self, fault: Fault) -> None:
        if is_device_error(fault.error):
            raise fault.error
        sequence = self._scheduler.running[fault.uid]
        # The failure of the job has the message of the error only.
        _log.warning("generation_failed", exc_info=fault.error, **sequence.log_ids)
        is_restore = fault.is_restore and not sequence.admission.is_cold
        if fault.is_shared or is_restore:
            self._put_back(sequence, is_alone=fault.is_shared, is_cold=is_restore)
            return
        del self._scheduler.running[fault.uid]
        if self._scheduler.quarantine.is_active:
            # The only sequence that runs has failed: it is the culprit.
            self._scheduler.quarantine.record_failure([sequence])
        self._fail(sequence, fault.error, retryable=fault.retryable)

    def _end_trial(self, advanced: set[Sequence]) -> None:
        cleared = self._scheduler.quarantine.record_success(advanced)
        if cleared is not None and cleared.uid is not None:
            self._runner.remove(cleared.uid)
            self._put_back(cleared)

    def _recover(self, error: Exception) -> None:
        """Return the sequences of a failed step to the queue; fail one that failed alone."""
        sequences = sorted(self._scheduler.running.values(), key=lambda one: one.admission.arrival)
        culprit = self._scheduler.quarantine.record_failure(sequences)
        if self._scheduler.quarantine.is_hopeless():
            raise EngineLost(f"every step fails: {type(error).__name__}: {error}") from error
        self._scheduler.running.clear()
        self._runner.reset()
        for sequence in reversed(sequences):
            if sequence is culprit:
                self._fail(sequence, error, retryable=True)
            else:
                self._put_back(sequence)

    def _put_back(
        self, sequence: Sequence, *, is_alone: bool = False, is_cold: bool = False
    ) -> None:
        constraint, answered = sequence.admission.constraint, sequence.answered
        if constraint is not None and constraint.accepted_count > len(answered):
            # A failed step drew a token that is not committed, and the constraint accepted it.
            fresh = constraint_of(self._model, sequence.task.prompt, answered)
            sequence.admission = replace(sequence.admission, constraint=fresh)
        self._scheduler.put_back(sequence, is_alone=is_alone, is_cold=is_cold)

    def _fail(self, sequence: Sequence, error: Exception, *, retryable: bool) -> None:
        failure = failed_by(error, retryable=retryable)
        self._emitter.end(sequence, self._clock.monotonic(), StopReason.END_TURN, failure)


def failed_by(error: Exception, *, retryable: bool) -> Failed:
    """Return the failure of a sequence that an error of its own caused."""
    if isinstance(error, InvalidRequest):
        return Failed(error=error.code, message=error.message, retryable=False)
    message = f"the generation failed: {type(error).__name__}: {error}"
    return Failed(error=EngineFailure.code, message=message, retryable=retryable)


def stopped_by(cause: BaseException) -> Failed:
    """Return the failure of all sequences of an engine that an error has stopped."""
    message = f"the engine has stopped: {type(cause).__name__}: {cause}"
    kind = DeviceFailed if is_device_error(cause) else EngineLost
    return Failed(error=kind.code, message=message, retryable=True)
