"""Run one job to its end, as one attempt.

    load → (ended already? cancelled meanwhile?) → prepare → hand over → AttemptStarted → release
                                                    → … generation … → last event → last item

The engine reads the prompt while the attempt is being recorded, and says nothing before. The last
event is appended before the last item is published, so a client that saw the end of a stream finds
the same end in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from domain.chat.generation import GenerationTask, Outcome, PreparedPrompt
from domain.chat.items import Body, Failed, Finished, Started, StreamItem
from domain.chat.ports import GenerationHandle, InferenceEngine
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    EngineFailure,
    GenerationCancelled,
    InvalidRequest,
    JobAlreadyTerminal,
    PayloadMissing,
    SemanticError,
    StaleAttempt,
)
from domain.job.commands import (
    CompleteAttempt,
    ConfirmCancel,
    FailAttempt,
    RequestCancel,
    StartAttempt,
)
from domain.job.fair_scheduler import FairScheduler, QueueTurn
from domain.job.ports import ItemBacklog, ItemSink, RunningJobs
from domain.job.state import DEADLINE, Job, silent_deaths
from domain.kv.hashing import hash_ids
from domain.log.ports import EventLog, PayloadStore
from domain.ports import Clock, IdSource
from domain.usecases.jobs.commit import LoadedJob, commit, load_job
from domain.usecases.jobs.terminal_item import EmittedPrefix, ending_of, read_said, repeat_last_word
from domain.values import (
    Digest,
    JobId,
    JobStatus,
    StopReason,
    Usage,
    WorkerId,
    digest_of,
)


class RunResult(StrEnum):
    """What became of a delivery."""

    ENDED = "ended"
    REQUEUE = "requeue"
    NOTHING_TO_DO = "nothing_to_do"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """What ``run_job`` needs; one per worker process."""

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


def run_job(job_id: JobId, runner: Runner) -> RunResult:
    """Run a delivered job.

    Deliveries may repeat: a job that has ended, or that this process runs already, is left alone.

    Returns:
        ``REQUEUE`` when the attempt failed and the job waits for another, ``SUPERSEDED`` when
        another attempt spoke for it before this one could.

    Raises:
        LogUnavailable: The log could not be written; the delivery must be repeated.
        QueueUnavailable: The broker went away; the delivery must be repeated.
    """
    with runner.running.claim(job_id) as claimed:
        if not claimed:
            return RunResult.NOTHING_TO_DO
        loaded = load_job(job_id, log=runner.log)
        job = loaded.job
        if job.status.is_terminal:
            _repeat_last_word(job, runner)
            return RunResult.NOTHING_TO_DO
        if not job.cancel_requested and _is_late(job, runner):
            job = commit(job_id, RequestCancel(reason=DEADLINE), log=runner.log, ids=runner.ids)
        if job.cancel_requested:
            return _cancelled(job, runner)
        try:
            return _attempt(loaded, runner)
        except (StaleAttempt, JobAlreadyTerminal):
            # Another attempt speaks for the job now, or it ended meanwhile; nothing of ours counts.
            now = load_job(job_id, log=runner.log).job
            if now.status.is_terminal:
                _repeat_last_word(now, runner)
            return RunResult.SUPERSEDED


def _is_late(job: Job, runner: Runner) -> bool:
    assert job.submitted is not None
    limits = (job.submitted.finish_deadline, None if job.attempt else job.submitted.deadline)
    now = runner.clock.now()
    return any(limit is not None and datetime.fromisoformat(limit) <= now for limit in limits)


def _attempt(loaded: LoadedJob, runner: Runner) -> RunResult:
    job = loaded.job
    assert job.submitted is not None
    turn = runner.turns.ask(job.id, agent=job.submitted.agent, priority=job.submitted.priority)
    # A nudge that comes while it waits ends the wait.
    runner.running.attach(job.id, turn, attempt=job.attempt + 1)
    with turn:
        if not turn.wait():
            now = load_job(job.id, log=runner.log).job
            return _cancelled(now, runner) if now.cancel_requested else RunResult.NOTHING_TO_DO
        return _run_in_turn(loaded, turn, runner)


def _run_in_turn(loaded: LoadedJob, turn: QueueTurn, runner: Runner) -> RunResult:
    job = loaded.job
    assert job.submitted is not None
    said = read_said(job.id, runner.backlog)
    if said.ended:
        # A broker that lost its latest data has brought back what a retry had forgotten.
        runner.backlog.forget(job.id, through=job.attempt)
        said = EmittedPrefix()
    if (why := _worn_out(job, said)) is not None:
        worn_out = Failed(error=EngineFailure.code, message=f"given up: {why}", retryable=False)
        return _failed(job, 0, worn_out, said.next_item, runner)
    try:
        request = ChatRequest.from_bytes(runner.payloads.get(job.submitted.request))
        prompt = runner.engine.prepare(request)
        if job.started is not None:
            # How much room there is hangs on memory; what was begun goes on as it began.
            prompt = replace(prompt, thinking_limit=job.started.thinking_limit)
    except (InvalidRequest, PayloadMissing) as error:
        return _failed(job, 0, _failure_of(error), said.next_item, runner)
    queued_ms = _since_ms(loaded.accepted_at, runner)
    task = GenerationTask(
        job_id=job.id,
        attempt=job.attempt + 1,
        prompt=prompt,
        emitted=said.token_ids,
        first_item=max(1, said.next_item),
        stop=request.stop,
        known=said.logprobs,
    )
    try:
        handle = runner.engine.submit(task)
    except EngineFailure as error:
        return _failed(job, 0, _failure_of(error), said.next_item, runner)
    _release(task, said, handle, runner)
    outcome = handle.wait()
    # The next one is computed while this one's end is recorded.
    turn.release()
    assert outcome is not None, "a wait without a limit returned without an outcome"
    outcome = replace(outcome, timings=replace(outcome.timings, queued_ms=queued_ms))
    return _finish(job, task.attempt, outcome, runner)


def _worn_out(job: Job, said: EmittedPrefix) -> str | None:
    """Return why the job must not be tried again, if so."""
    assert job.submitted is not None
    deaths = silent_deaths(job, len(said.token_ids))
    if deaths >= job.submitted.worker_deaths_max:
        return f"{deaths} workers in a row died on this job before it said a word"
    if job.strikes + job.speaking >= job.submitted.attempts_max:
        return f"{job.attempt} attempts took their worker down or failed"
    return None


def _release(
    task: GenerationTask, said: EmittedPrefix, handle: GenerationHandle, runner: Runner
) -> None:
    """Record the attempt, say that it has begun, and let the generation speak."""
    try:
        started = commit(
            task.job_id,
            lambda job: _start(job, task, said, runner),
            log=runner.log,
            ids=runner.ids,
        )
        if said.next_item == 0:
            _publish(task.job_id, 0, task.attempt, _started(task.prompt), runner)
    except BaseException:
        handle.cancel()
        raise
    runner.running.attach(task.job_id, handle, attempt=task.attempt)
    # A later wish finds the handle through its nudge; an earlier one had nobody to nudge.
    if started.cancel_requested:
        handle.cancel()
    handle.release()


def _start(job: Job, task: GenerationTask, said: EmittedPrefix, runner: Runner) -> StartAttempt:
    if job.attempt + 1 != task.attempt:
        raise StaleAttempt(job.id, attempt=task.attempt, current=job.attempt)
    card = runner.engine.card()
    return StartAttempt(
        worker=runner.worker,
        model=card.id,
        fingerprint=card.fingerprint,
        prompt_tokens=len(task.prompt.tokens),
        cached_tokens=task.prompt.cached_tokens,
        cache_source=task.prompt.cache_source,
        first_item=said.next_item,
        resumed_tokens=len(said.token_ids),
        sampling=task.prompt.sampling,
        prompt_hash=hash_ids(task.prompt.tokens),
        thinking_limit=task.prompt.thinking_limit,
    )


def _finish(job: Job, attempt: int, outcome: Outcome, runner: Runner) -> RunResult:
    if outcome.failure is not None:
        return _failed(job, attempt, outcome.failure, outcome.next_item, runner)
    output, payload = _output(outcome)
    last_word: Finished | Failed = Finished(
        stop_reason=outcome.stop_reason,
        usage=outcome.usage,
        stop_sequence=outcome.stop_sequence,
    )
    if outcome.stop_reason is StopReason.CANCELLED:
        if not load_job(job.id, log=runner.log).job.cancel_requested:
            # Whoever cut it short must read the log before, so this is a defect of ours.
            stray = Failed(error=GenerationCancelled.code, message="not asked for", retryable=True)
            return _failed(job, attempt, stray, outcome.next_item, runner)
        # Asked for by somebody, or by a deadline: the log knows which.
        command: ConfirmCancel | CompleteAttempt = ConfirmCancel(
            attempt=attempt, usage=outcome.usage, output=output
        )
    else:
        command = CompleteAttempt(
            attempt=attempt,
            stop_reason=outcome.stop_reason,
            stop_sequence=outcome.stop_sequence,
            usage=outcome.usage,
            output=output,
            token_hash=outcome.token_hash,
            timings=outcome.timings,
        )
    ended = commit(job.id, command, log=runner.log, ids=runner.ids, payloads={output: payload})
    last_word = last_word if ended.status is not JobStatus.EXPIRED else ending_of(ended)
    _publish(job.id, outcome.next_item, attempt, last_word, runner)
    return RunResult.ENDED


def _failed(job: Job, attempt: int, failure: Failed, next_item: int, runner: Runner) -> RunResult:
    after = commit(
        job.id, FailAttempt(attempt=attempt, failure=failure), log=runner.log, ids=runner.ids
    )
    if not after.status.is_terminal:
        return RunResult.REQUEUE
    # An attempt that never started has no number; the next one is free and newer than all others.
    _publish(job.id, next_item, attempt or job.attempt + 1, failure, runner)
    return RunResult.ENDED


def _cancelled(job: Job, runner: Runner) -> RunResult:
    command = ConfirmCancel(attempt=0, usage=Usage())
    # Whoever asked for the end may have recorded and said it just now.
    _repeat_last_word(commit(job.id, command, log=runner.log, ids=runner.ids), runner)
    return RunResult.ENDED


def _repeat_last_word(job: Job, runner: Runner) -> None:
    repeat_last_word(job, backlog=runner.backlog, sink=runner.sink, payloads=runner.payloads)


def _started(prompt: PreparedPrompt) -> Started:
    return Started(prompt_tokens=len(prompt.tokens), cached_tokens=prompt.cached_tokens)


def _publish(job_id: JobId, n: int, attempt: int, body: Body, runner: Runner) -> None:
    runner.sink.publish([(job_id, StreamItem(n=n, attempt=attempt, body=body))])


def _output(outcome: Outcome) -> tuple[Digest, bytes]:
    payload = StoredAnswer.from_outcome(outcome).to_bytes()
    return digest_of(payload), payload


def _since_ms(accepted_at: str, runner: Runner) -> float:
    waited = runner.clock.now() - datetime.fromisoformat(accepted_at)
    return round(max(0.0, waited.total_seconds() * 1000), 3)


def _failure_of(error: SemanticError) -> Failed:
    return Failed(error=error.code, message=error.message, retryable=error.retryable)
