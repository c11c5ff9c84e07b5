"""Runs one attempt of a job from its lease to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from domain.chat.generation import GenerationTask, Outcome, PreparedPrompt
from domain.chat.items import Body, Failed, Started, StreamItem
from domain.chat.ports import GenerationHandle, InferenceEngine
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    EngineFailure,
    GenerationCancelled,
    InvalidRequest,
    JobAlreadyTerminal,
    ModelUnusable,
    PayloadDamaged,
    PayloadMissing,
    SemanticError,
    StaleAttempt,
)
from domain.events.job import AttemptStarted, JobCancelled, JobCancelRequested, JobCompleted
from domain.job.commit import (
    AttemptObserver,
    AttemptReport,
    AttemptRun,
    LoadedJob,
    Unobserved,
    commit,
    end_own_attempt,
    load_job,
)
from domain.job.decisions import failed_attempt
from domain.job.fair_scheduler import FairScheduler, QueueTurn, Suspicion, TurnRequest, line_of
from domain.job.ports import ItemBacklog, ItemSink, RunningJobs
from domain.job.prepare_prompt import (
    HoldRequest,
    Preparation,
    hold_at_once,
    prepare_prompt,
)
from domain.job.state import (
    DEADLINE,
    Job,
    counted_failures_now,
    deaths_without_progress,
    device_failures,
    epoch_after,
)
from domain.job.terminal_item import (
    EmittedPrefix,
    ending_of,
    read_emitted,
    republish_end,
    terminal_item,
    with_inherited,
)
from domain.kv.hashing import hash_ids
from domain.log.ports import EventLog, PayloadStore
from domain.log.trace import trace_id_of
from domain.ports import Clock, IdSource
from domain.values import (
    JobId,
    JobStatus,
    ModelCard,
    StopReason,
    Usage,
    WorkerId,
    digest_of,
)

#: Errors of the GPU in a row, without a new token between them, after which a job fails: each one
#: restarts the worker, and the job probably causes them.
DEVICE_FAILURES_MAX = 5


def suspicion_of(job: Job, emitted_tokens: int) -> Suspicion:
    """Return how a job with ``emitted_tokens`` may run beside others after its worker died."""
    if job.deaths + job.active_attempt > 1:
        return Suspicion.APART
    has_no_progress = deaths_without_progress(job, emitted_tokens) or device_failures(
        job, emitted_tokens
    )
    return Suspicion.TRIED if has_no_progress else Suspicion.NONE


def worn_out(job: Job, emitted_tokens: int) -> str | None:
    """Return why the job must not get another attempt, ``None`` if it may."""
    assert job.submitted is not None, "only an accepted job runs"
    deaths = deaths_without_progress(job, emitted_tokens)
    if deaths >= job.submitted.worker_deaths_max:
        return f"{deaths} workers in a row died on this job before it emitted a token"
    failures = device_failures(job, emitted_tokens)
    if failures >= DEVICE_FAILURES_MAX:
        return f"the device failed {failures} times in a row before it emitted a token"
    if counted_failures_now(job) >= job.submitted.attempts_max:
        return f"{job.attempt} attempts took their worker down or failed"
    return None


class RunResult(StrEnum):
    """The result of one delivery of a job."""

    ENDED = "ended"
    REQUEUE = "requeue"
    NOTHING_TO_DO = "nothing_to_do"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunner:
    """Runs delivered jobs; one per worker process.

    Attributes:
        hold_request: Reads a payload as soon as there is room for what is made of it.
        lanes: What runs the jobs that are bound to these models, in place of this runner.
    """

    worker: WorkerId
    log: EventLog
    payloads: PayloadStore
    engine: InferenceEngine
    sink: ItemSink
    backlog: ItemBacklog
    clock: Clock
    ids: IdSource
    running: RunningJobs
    turns: FairScheduler
    observer: AttemptObserver = Unobserved()
    hold_request: HoldRequest = hold_at_once
    lanes: Mapping[str, JobRunner] = field(default_factory=dict)

    def run(self, job_id: JobId) -> RunResult:
        """Run a delivered job.

        Deliveries may repeat: a job that has ended, or that this process already runs, is not run.

        Returns:
            ``REQUEUE`` when the attempt failed and the job waits for another, ``SUPERSEDED`` when
            another attempt started or ended the job first.

        Raises:
            LogUnavailable: The log could not be written; the delivery must be repeated.
            QueueUnavailable: The broker went away; the delivery must be repeated.
        """
        with self.running.claim(job_id) as claimed:
            if not claimed:
                return RunResult.NOTHING_TO_DO
            loaded = load_job(job_id, log=self.log)
            self.observer.loaded(loaded)
            job = loaded.job
            if job.status.is_terminal:
                _republish_end(job, self)
                return RunResult.NOTHING_TO_DO
            if job.status is JobStatus.HELD:
                return RunResult.NOTHING_TO_DO  # of a queue from before its hold
            if not job.cancel_requested and _is_late(job, self):
                job = _end_late(job, self)
            try:
                return (_cancelled if job.cancel_requested else _attempt)(loaded, self)
            except (StaleAttempt, JobAlreadyTerminal):
                # Another attempt runs, or the job has ended; this attempt records nothing.
                now = load_job(job_id, log=self.log).job
                if now.status.is_terminal:
                    _republish_end(now, self)
                return RunResult.SUPERSEDED


def _is_late(job: Job, runner: JobRunner) -> bool:
    limits = (job.submitted.finish_deadline, None if job.attempt else job.submitted.deadline)
    now = runner.clock.now()
    return any(limit is not None and datetime.fromisoformat(limit) <= now for limit in limits)


def _end_late(job: Job, runner: JobRunner) -> Job:
    return commit(job.id, JobCancelRequested(reason=DEADLINE), log=runner.log, ids=runner.ids)


def _attempt(loaded: LoadedJob, runner: JobRunner) -> RunResult:
    loaded = end_own_attempt(loaded, runner.worker, log=runner.log, ids=runner.ids)
    job = loaded.job
    runner = runner.lanes.get(job.submitted.bound_model or "", runner)
    suspicion = Suspicion.NONE
    if job.attempt:
        suspicion = suspicion_of(job, len(read_emitted(job, runner.backlog).token_ids))
    turn = runner.turns.request_turn(
        TurnRequest(
            id=job.id,
            line=line_of(job.submitted.agent, job.submitted.owner),
            priority=job.submitted.priority,
            urgency=job.submitted.urgency,
            suspicion=suspicion,
            has_begun=job.has_begun,
        )
    )
    # A cancel signal ends the wait for the turn.
    runner.running.attach(job.id, turn, attempt=job.attempt + 1)
    otherwise = RunResult.NOTHING_TO_DO
    try:
        if turn.wait():
            return _run_in_turn(loaded, turn, runner)
    except GenerationCancelled:
        otherwise = RunResult.REQUEUE
    finally:
        turn.release()
    now = load_job(job.id, log=runner.log)
    return _cancelled(now, runner) if now.job.cancel_requested else otherwise


def _emitted(job: Job, runner: JobRunner) -> EmittedPrefix:
    emitted = read_emitted(job, runner.backlog)
    if not emitted.ended:
        return emitted
    # A broker that lost its latest writes has restored items that a retry had deleted.
    runner.backlog.forget(job.id, through=job.attempt)
    return EmittedPrefix()


def _run_in_turn(loaded: LoadedJob, turn: QueueTurn, runner: JobRunner) -> RunResult:
    job = loaded.job
    if _is_late(job, runner):
        _end_late(job, runner)
        raise GenerationCancelled("its time was over before its turn")
    # A broker that refuses items must cost neither an event nor a computation.
    runner.backlog.require_writable()
    emitted = _emitted(job, runner)
    if (why := worn_out(job, len(emitted.token_ids))) is not None:
        given_up = Failed(error=EngineFailure.code, message=f"given up: {why}", retryable=False)
        return _failed(loaded, given_up, emitted.next_item, runner)
    card = runner.engine.card()
    epoch = epoch_after(job, card.fingerprint)
    preparing = Preparation()
    runner.running.attach(job.id, preparing, attempt=job.attempt + 1)
    try:
        # Not the tokens of another model.
        before = with_inherited(
            job, emitted if epoch == job.epoch else EmittedPrefix(), runner.payloads
        )
        _require_parents_model(job, card)
        request, prompt = prepare_prompt(
            job.submitted.request,
            job.started if epoch == job.epoch else None,
            cache_owner=job.submitted.cache_owner,
            claim=preparing.claim(job.submitted.owner),
            payloads=runner.payloads,
            engine=runner.engine,
            hold=runner.hold_request,
        )
    except (InvalidRequest, ModelUnusable, PayloadDamaged, PayloadMissing) as error:
        return _failed(loaded, _failure_of(error), emitted.next_item, runner)
    queued_ms = _since_ms(job.waiting_since, runner)
    task = replace(_task(job, before, prompt), stop=request.stop, epoch=epoch, queued_ms=queued_ms)
    begun = runner.clock.now()
    try:
        handle = runner.engine.submit(task)
    except EngineFailure as error:
        return _failed(loaded, _failure_of(error), emitted.next_item, runner)
    _release(task, before, handle, runner)
    if job.attempt:
        handle.wait_for_tokens()
        turn.clear()
    outcome = handle.wait()
    # The next job computes while the end of this one is recorded.
    turn.release()
    assert outcome is not None, "a wait without a limit returned without an outcome"
    outcome = replace(outcome, timings=replace(outcome.timings, queued_ms=queued_ms))
    result = _finish(task, outcome, runner)
    run = AttemptRun(task=task, request=request, model=card, submitted_at=begun, outcome=outcome)
    _report(loaded, runner, run=run, failure=outcome.failure)
    return result


def _require_parents_model(job: Job, card: ModelCard) -> None:
    """Refuse to continue the tokens of other weights.

    Raises:
        ModelUnusable: The answer of the parent is of another model.
    """
    if job.submitted.parent_fingerprint not in {None, card.fingerprint}:
        raise ModelUnusable(f"{job.submitted.parent} was answered by other weights than {card.id}")


def _task(job: Job, before: EmittedPrefix, prompt: PreparedPrompt) -> GenerationTask:
    return GenerationTask(
        job_id=job.id,
        attempt=job.attempt + 1,
        prompt=prompt,
        emitted=before.token_ids,
        first_item=max(1, before.next_item),
        stop=(),
        known=before.logprobs,
        published=before.published,
        priority=job.submitted.priority,
        request_id=job.correlation_id,
        trace_id=trace_id_of(job.submitted.trace),
        agent=job.submitted.agent,
    )


def _release(
    task: GenerationTask, emitted: EmittedPrefix, handle: GenerationHandle, runner: JobRunner
) -> None:
    """Record the attempt, publish its first item, and release the items of the generation."""
    try:
        started = commit(
            task.job_id,
            _started(task, emitted, runner),
            log=runner.log,
            ids=runner.ids,
        )
        _require_in_time(started)
        if task.epoch == task.attempt > 1:
            runner.backlog.forget(task.job_id, through=task.attempt - 1)
        if emitted.next_item == 0:
            tokens, cached = len(task.prompt.tokens), task.prompt.cached_tokens
            _publish(task, 0, Started(prompt_tokens=tokens, cached_tokens=cached), runner)
    except BaseException:
        handle.cancel()
        raise
    # Before any cancellation: a fork is stopped behind the tokens that it takes over.
    handle.release()
    runner.running.attach(task.job_id, handle, attempt=task.attempt)
    # A later cancellation reaches the handle by its signal; an earlier one came before it.
    if started.cancel_requested:
        handle.cancel()


def _require_in_time(started: Job) -> None:
    if started.is_rejected:
        raise GenerationCancelled("its time to start is over")


def _started(task: GenerationTask, emitted: EmittedPrefix, runner: JobRunner) -> AttemptStarted:
    card = runner.engine.card()
    return AttemptStarted(
        attempt=task.attempt,
        worker=runner.worker,
        model=card.id,
        fingerprint=card.fingerprint,
        prompt_tokens=len(task.prompt.tokens),
        cached_tokens=task.prompt.cached_tokens,
        cache_source=task.prompt.cache_source,
        first_item=emitted.next_item,
        resumed_tokens=len(emitted.token_ids),
        sampling=task.prompt.sampling,
        prompt_hash=hash_ids(task.prompt.tokens),
        thinking_limit=task.prompt.thinking_limit,
        known_tokens=task.prompt.known_tokens,
        encoding=task.prompt.encoding,
    )


def _finish(task: GenerationTask, outcome: Outcome, runner: JobRunner) -> RunResult:
    job_id, attempt = task.job_id, task.attempt
    if outcome.failure is not None:
        return _attempt_failed(task, outcome.failure, runner)
    payload = StoredAnswer.from_outcome(outcome).to_bytes()
    output = digest_of(payload)
    if outcome.stop_reason is StopReason.CANCELLED:
        if not load_job(job_id, log=runner.log).job.cancel_requested:
            # Cancellations are recorded before they are signalled, so this is a defect.
            stray = Failed(error=GenerationCancelled.code, message="not asked for", retryable=True)
            return _attempt_failed(task, stray, runner)
        # The log holds whether a request or a deadline caused it.
        proposal: JobCancelled | JobCompleted = JobCancelled(
            attempt=attempt, usage=outcome.usage, output=output, timings=outcome.timings
        )
    else:
        proposal = JobCompleted(
            attempt=attempt,
            stop_reason=outcome.stop_reason,
            stop_sequence=outcome.stop_sequence,
            usage=outcome.usage,
            output=output,
            token_hash=outcome.token_hash,
            timings=outcome.timings,
        )
    ended = commit(job_id, proposal, log=runner.log, ids=runner.ids, payloads={output: payload})
    _publish(task, outcome.next_item, ending_of(ended), runner)
    return RunResult.ENDED


def _attempt_failed(task: GenerationTask, failure: Failed, runner: JobRunner) -> RunResult:
    proposal = failed_attempt(attempt=task.attempt, failure=failure)
    after = commit(task.job_id, proposal, log=runner.log, ids=runner.ids)
    if not after.status.is_terminal:
        return RunResult.REQUEUE
    # The engine may have dropped items that it could not store.
    _publish(task, read_emitted(after, runner.backlog).next_item, failure, runner)
    return RunResult.ENDED


def _failed(loaded: LoadedJob, failure: Failed, next_item: int, runner: JobRunner) -> RunResult:
    """Fail a job before its next attempt has started."""
    proposal = failed_attempt(attempt=0, failure=failure)
    after = commit(loaded.job.id, proposal, log=runner.log, ids=runner.ids)
    _report(loaded, runner, failure=failure)
    if not after.status.is_terminal:
        return RunResult.REQUEUE
    runner.sink.publish([(after.id, terminal_item(after, next_item))])
    return RunResult.ENDED


def _cancelled(loaded: LoadedJob, runner: JobRunner) -> RunResult:
    proposal = JobCancelled(attempt=0, usage=Usage())
    # A concurrent cancellation may have recorded and published the end already.
    after = commit(loaded.job.id, proposal, log=runner.log, ids=runner.ids)
    if not after.status.is_terminal:  # it ended and was retried after it was read
        is_waiting = after.status is JobStatus.QUEUED
        return RunResult.REQUEUE if is_waiting else RunResult.SUPERSEDED
    _report(loaded, runner)
    _republish_end(after, runner)
    return RunResult.ENDED


def _report(
    loaded: LoadedJob,
    runner: JobRunner,
    *,
    run: AttemptRun | None = None,
    failure: Failed | None = None,
) -> None:
    error = None if failure is None else failure.error
    now = runner.clock.now()
    runner.observer.ended(AttemptReport(loaded=loaded, ended_at=now, run=run, error=error))


def _republish_end(job: Job, runner: JobRunner) -> None:
    republish_end(job, backlog=runner.backlog, sink=runner.sink, payloads=runner.payloads)


def _publish(task: GenerationTask, n: int, body: Body, runner: JobRunner) -> None:
    item = StreamItem(n=n, attempt=task.attempt, body=body, epoch=task.epoch)
    runner.sink.publish([(task.job_id, item)])


def _since_ms(accepted_at: str, runner: JobRunner) -> float:
    waited = runner.clock.now() - datetime.fromisoformat(accepted_at)
    return round(max(0.0, waited.total_seconds() * 1000), 3)


def _failure_of(error: SemanticError) -> Failed:
    return Failed(error=error.code, message=error.message, retryable=error.retryable)
