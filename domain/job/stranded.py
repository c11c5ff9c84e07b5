"""Finds jobs that are due, overdue, lost or without a model, and ends or enqueues them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeGuard

from domain.chat.earlier_answers import with_answers
from domain.chat.items import Failed
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.engine.presence import LoadedModels
from domain.errors import (
    TEXT_LOST,
    EngineLost,
    JobAlreadyTerminal,
    ModelChanged,
    ModelNotFound,
    ModelNotLoaded,
    PredecessorFailed,
    QueueUnavailable,
    SemanticError,
)
from domain.events.job import AttemptFailed, JobReleased
from domain.job.cancel import JobCancellation
from domain.job.commit import commit, load_job
from domain.job.decisions import failed_attempt
from domain.job.fair_scheduler import enqueue
from domain.job.listing import JobViews
from domain.job.ports import JobQueue
from domain.job.state import DEADLINE, MODEL_ABSENT, Job
from domain.job.terminal_item import read_emitted
from domain.ports import Clock
from domain.values import AfterCondition, Digest, JobId, JobStatus, digest_of, rfc3339

#: Seconds for which a model must be absent before jobs that do not wait are ended: its worker may
#: have crashed, and starts again.
ABSENT_S: Final = 10.0
#: Seconds in its queue after which a job that waits for its model expires.
ABSENT_WAIT_MAX_S: Final = 24 * 3600.0
#: Seconds of absence after which all jobs of a model that is not registered any more are ended. A
#: model that only another machine has registered is known while a worker there has it.
REMOVED_S: Final = 60.0
#: Jobs of one model that are ended in one call.
JOBS_MAX: Final = 1000


def awaits_model(job: Job, models: LoadedModels) -> bool:
    """Whether a job waits for a model that no worker has."""
    bound = job.submitted.bound_model
    return not job.status.is_terminal and bound is not None and models.is_absent(bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedJobs:
    """Ends jobs whose model left; one per process.

    Attributes:
        absent_wait_max_s: Seconds in its queue after which a waiting job expires.
        absent_s: Seconds of absence before jobs that do not wait for a model fail.
        is_registered: Whether a model is registered; jobs of others need not wait.
    """

    views: JobViews
    models: LoadedModels
    cancellation: JobCancellation
    clock: Clock
    absent_wait_max_s: float = ABSENT_WAIT_MAX_S
    absent_s: float = ABSENT_S
    is_registered: Callable[[str], bool] = lambda _: True
    _since: dict[str, float] = field(default_factory=dict)

    def end_stranded(self) -> tuple[JobId, ...]:
        """End jobs whose model does not come.

        A job that does not wait for it ends with ``model_changed`` if it had emitted output, else
        with ``model_not_loaded``. A waiting job expires after ``absent_wait_max_s``; its own
        deadlines are those of ``DueJobs``. Once its model is not registered any more, it ends
        with ``model_not_found``. The attempt of a waiting job whose worker is gone ends as
        ``engine_lost``, so that the job counts as queued.

        Returns:
            The jobs that were ended.

        Raises:
            LogUnavailable: An end was not recorded; the rest waits for the next call.
            QueueUnavailable: The broker cannot be reached.
        """
        ended: list[JobId] = []
        for model, absent_s in self._absent():
            is_due = absent_s >= self.absent_s
            is_gone = absent_s >= REMOVED_S and is_due and not self.is_registered(model)
            absent_wait_max_s = 0.0 if is_gone else self.absent_wait_max_s
            before = rfc3339(self.clock.now() - timedelta(seconds=absent_wait_max_s))
            for job in self.views.bound(model, accepted_before=before, limit=JOBS_MAX):
                if is_gone:
                    has_ended = self._fail(job, ModelNotFound(model, known=()))
                elif job.submitted.waits_for_model:
                    has_ended = self._expire(job, before, is_due=is_due)
                else:
                    has_ended = is_due and self._fail(job, ModelNotLoaded(model, loaded=None))
                ended += [job.id] if has_ended else []
        return tuple(ended)

    def _expire(self, job: Job, before: str, *, is_due: bool) -> bool:
        """End a job that waits since before an instant, or put it back; return if it has ended."""
        if job.waiting_since < before:
            self.cancellation.cancel(job.id, reason=MODEL_ABSENT)
            return True
        if is_due:
            self._put_back(job)
        return False

    def _absent(self) -> Iterator[tuple[str, float]]:
        """Yield each absent model that open jobs are bound to, and for how many seconds it is."""
        now = self.clock.monotonic()
        absent = [model for model in self.views.bound_models() if self.models.is_absent(model)]
        for model in set(self._since) - set(absent):
            del self._since[model]
        for model in absent:
            yield model, now - self._since.setdefault(model, now)

    def _put_back(self, view: Job) -> None:
        ports = self.cancellation
        job = load_job(view.id, log=ports.log).job
        if not job.active_attempt or not ports.take_waiting(job):
            return
        lost = EngineLost("the worker is gone, and no other has the model")
        failure = Failed(error=lost.code, message=lost.message, retryable=True)

        def end_attempt(now: Job) -> AttemptFailed | None:
            return (
                failed_attempt(attempt=now.attempt, failure=failure) if now.active_attempt else None
            )

        after = commit(job.id, end_attempt, log=ports.log, ids=ports.ids)
        if after.status.is_terminal:
            ports.publish_end(after)
        else:
            ports.put_back(after)

    def _fail(self, view: Job, absence: SemanticError) -> bool:
        ports = self.cancellation
        job = load_job(view.id, log=ports.log).job
        if job.status.is_terminal or not ports.take_waiting(job):
            return False  # a worker has it, or the reconciler is about to enqueue it
        emitted = read_emitted(job, ports.backlog)
        error = (
            ModelChanged(
                f"model {view.submitted.bound_model} left while it answered; send the request again"
            )
            if emitted.token_ids
            else absence
        )
        # A failure that could be retried would put the job back.
        failure = Failed(error=error.code, message=error.message, retryable=False)

        def fail(now: Job) -> AttemptFailed | None:
            return None if now.status.is_terminal else failed_attempt(attempt=0, failure=failure)

        try:
            after = commit(job.id, fail, log=ports.log, ids=ports.ids)
        except JobAlreadyTerminal:
            return False
        ports.publish_end(after)
        return True


#: Held jobs that are released in one call.
RELEASED_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJobs:
    """Expires overdue jobs, and puts held ones into their queues once they are due.

    One per process. The wall clock decides, so a job whose instant passed during a sleep of the
    machine is released at once. Two processes may look at the same time: the log takes one release
    of a job.
    """

    views: JobViews
    clock: Clock
    cancellation: JobCancellation

    def expire_overdue(self) -> tuple[JobId, ...]:
        """Cancel every open job whose deadline has passed.

        A waiting job expires here. A running job is stopped like a cancelled one and expires with
        the items that it has emitted. Safe at any time and in several processes at once.

        Returns:
            The jobs whose end is recorded as requested.

        Raises:
            LogUnavailable: A request was not recorded; the remaining jobs wait for the next call.
        """
        late = tuple(view.id for view in self.views.overdue(rfc3339(self.clock.now())))
        for job_id in late:
            self.cancellation.cancel(job_id, reason=DEADLINE)
        return late

    def release_due(self) -> tuple[JobId, ...]:
        """Release the held jobs that wait for nothing more, and end those that may not run.

        Returns:
            The jobs that are held no longer.

        Raises:
            LogUnavailable: A release was not recorded; the remaining jobs wait for the next call.
        """
        now, position = rfc3339(self.clock.now()), 0
        settled: list[JobId] = []
        while found := self.views.held(now, limit=RELEASED_MAX, after=position):
            settled += [view.id for view in found if self._settle(view)]
            position = found[-1].accepted_position
        return tuple(settled)

    def _settle(self, view: Job) -> bool:
        """Release or end a job; return whether it is held no longer."""
        if view.cancel_requested:
            with suppress(QueueUnavailable):
                self.cancellation.end_waiting(view)
            return True
        earlier = {one.name: self.views.get(JobId(one.job)) for one in view.submitted.after}
        ended = {name: job for name, job in earlier.items() if _has_ended(job)}
        if len(ended) < len(earlier):
            return False
        for one in view.submitted.after:
            job = ended[one.name]
            if one.condition is AfterCondition.COMPLETED and job.status is not JobStatus.COMPLETED:
                self._give_up(view, PredecessorFailed(one.job, job.status))
                return True
        try:
            released, payloads = self._released(view, ended)
        except TEXT_LOST as error:
            self._give_up(view, error)
            return True
        ports = self.cancellation
        job = commit(view.id, released, log=ports.log, ids=ports.ids, payloads=payloads)
        # The reconciler enqueues it if the broker is away.
        with suppress(QueueUnavailable):
            if job.status is JobStatus.QUEUED:
                ports.put_back(job)
        return True

    def _released(
        self, view: Job, ended: Mapping[str, Job]
    ) -> tuple[JobReleased, dict[Digest, bytes]]:
        if not ended:
            return JobReleased(), {}
        payloads = self.cancellation.payloads
        answers = {
            name: ""
            if job.output is None
            else StoredAnswer.from_bytes(payloads.get(job.output)).text
            for name, job in ended.items()
        }
        request = ChatRequest.from_bytes(payloads.get(view.submitted.request))
        content = with_answers(request, answers).to_bytes()
        digest = digest_of(content)
        return JobReleased(request=digest), {digest: content}

    def _give_up(self, view: Job, error: SemanticError) -> None:
        """End a job that may not run: as skipped, or as failed."""
        ports = self.cancellation
        if view.submitted.is_skippable:
            ports.cancel(view.id, reason=error.code)
            return
        # A failure that could be retried would put the job into its queue.
        failure = Failed(error=error.code, message=error.message, retryable=False)

        def fail(now: Job) -> AttemptFailed | None:
            is_held = now.status is JobStatus.HELD and not now.cancel_requested
            return failed_attempt(attempt=0, failure=failure) if is_held else None

        job = commit(view.id, fail, log=ports.log, ids=ports.ids)
        with suppress(QueueUnavailable):
            if job.status.is_terminal:
                ports.publish_end(job)


def _has_ended(job: Job | None) -> TypeGuard[Job]:
    return job is not None and job.status.is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReconciler:
    """Compares the unfinished jobs of the log with the queue; one per process.

    Attributes:
        queue: Receives those that no queue and no worker holds.
    """

    views: JobViews
    queue: JobQueue

    def reconcile(self) -> tuple[JobId, ...]:
        """Enqueue every unfinished job that no queue and no worker holds.

        ``JobQueue.enqueue`` ignores a job that is queued or in hand, so this is safe at any time
        and in several processes at once.

        Returns:
            The jobs that were lost and are enqueued again.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        return tuple(
            view.id
            for view in self.views.unfinished(with_held=False)
            if enqueue(self.queue, view.id, view.submitted)
        )
