"""Dramatiq actors of jobs, and the consumers that feed them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import dramatiq
import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars

from domain.chat.items import Failed
from domain.errors import (
    JobAlreadyTerminal,
    JobNotFound,
    LogUnavailable,
    QueueUnavailable,
    SemanticError,
)
from domain.events.job import AttemptFailed
from domain.job.commit import commit, load_job
from domain.job.decisions import failed_attempt
from domain.job.run_attempt import JobRunner, RunResult
from domain.job.state import Job
from domain.values import JobId, Priority
from ops.broker.client import queue_name
from ops.broker.dramatiq_queue import ACTOR_NAME, BlockingRedisBroker

#: Interactive jobs in a worker's hands at once.
INTERACTIVE_THREADS: Final = 128
#: Batch jobs in a worker's hands at once.
BATCH_THREADS: Final = 64
#: Seconds after which an idle thread looks for messages without being woken; hundreds of threads
#: that look every second would cost an idle service some percent of a core.
IDLE_S: Final = 600.0
#: Seconds between two looks at how long a stop may still wait.
LOOK_S: Final = 0.2


def queues_of(priority: Priority, models: Iterable[str]) -> tuple[str, ...]:
    """Return the queues of a worker: the shared one, and the line of each of its models."""
    return (queue_name(priority), *(queue_name(priority, model) for model in models))


class Consumers:
    """Takes messages of every queue and runs the actor on them.

    A thread is not an engine slot: most threads hold a job that waits for its turn.

    Args:
        broker: Delivers the messages; its actors are declared.
        threads: Most jobs of each queue in hand at once; default: the constants.
    """

    def __init__(
        self,
        broker: BlockingRedisBroker,
        threads: Mapping[Priority, int] | None = None,
        *,
        models: Collection[str] = (),
    ) -> None:
        self._broker = broker
        wanted = {Priority.INTERACTIVE: INTERACTIVE_THREADS, Priority.BATCH: BATCH_THREADS}
        broker.unacked_max = {
            queue: count
            for priority, count in (threads or wanted).items()
            for queue in queues_of(priority, models)
        }
        # As many threads as messages, so that no message in hand waits for a thread.
        self._worker = dramatiq.Worker(
            broker,
            queues=set(broker.unacked_max),
            worker_threads=sum(broker.unacked_max.values()),
            worker_timeout=int(IDLE_S * 1000),
        )

    def start(self) -> None:
        """Start to take messages."""
        # Dramatiq's command line emits this signal; middleware waits for it.
        self._broker.emit_after("process_boot")
        self._worker.start()

    def stop(self, left_s: Callable[[], float]) -> None:
        """Take no more messages, and wait for running actors.

        Args:
            left_s: Returns how long to wait from now on for all queues together, in seconds.
        """
        for thread in self._worker.workers:
            thread.stop()
        self._broker.stop_fetching()
        # Consumers send heartbeats until the actors have ended.
        for thread in self._worker.workers:
            while thread.is_alive() and (wait_s := left_s()) > 0:
                thread.join(min(LOOK_S, wait_s))
        for consumer in self._worker.consumers.values():
            consumer.stop()
        self._broker.release_consumers()
        self._worker.stop(timeout=int(left_s() * 1000))


#: Pause before the next attempt of a job whose attempt failed, in seconds.
RETRY_PAUSE_S = 0.2
#: Longest pause while the log or the broker is unavailable; the pause doubles up to it.
AWAY_PAUSE_MAX_S = 1.0


def declare_actors(
    broker: dramatiq.Broker,
    runner: JobRunner,
    *,
    draining: threading.Event,
    models: Collection[str] = (),
) -> dramatiq.Actor[[str], None]:
    """Bind the actor to a broker and declare its queues.

    Dramatiq's retries are off, because the domain counts attempts in the log.

    Args:
        draining: Once set, a job that needs another attempt is left for the next worker.
    """
    for priority in Priority:
        for queue in queues_of(priority, models):
            broker.declare_queue(queue)
    declare = dramatiq.actor(
        broker=broker, actor_name=ACTOR_NAME, queue_name=Priority.INTERACTIVE.value
    )
    return declare(_run_deliveries(runner, draining))


def _run_deliveries(
    runner: JobRunner, draining: threading.Event, pause: Callable[[float], object] = time.sleep
) -> Callable[[str], None]:
    logger = structlog.get_logger("worker.actors")

    def run(job_id: str) -> None:
        # Log lines of this thread name the job; the runner adds the request and its trace.
        bind_contextvars(job_id=job_id)
        try:
            result = _run_to_the_end(JobId(job_id), runner, draining, pause)
            if result is RunResult.SUPERSEDED:
                logger.warning("attempt_superseded")
        except JobNotFound:
            logger.warning("message_without_job")
        except SemanticError as error:
            # The reconciler enqueues a job that is still open.
            logger.warning("attempt_interrupted", error=error.code, why=error.message)
        except Exception:
            logger.exception("attempt_crashed")
            # Parts that are closed while the worker ends raise anything: the next worker decides.
            if not draining.is_set():
                _fail_for_good(JobId(job_id), runner)
        finally:
            clear_contextvars()

    return run


def _run_to_the_end(
    job_id: JobId, runner: JobRunner, draining: threading.Event, pause: Callable[[float], object]
) -> RunResult:
    """Run attempts until the job needs no other, or until this worker drains.

    While the log or the broker is unavailable, the delivery stays in hand and is repeated. A
    returned delivery would wait until the next reconciliation.
    """
    pause_s = RETRY_PAUSE_S
    while True:
        try:
            result = runner.run(job_id)
            pause_s = RETRY_PAUSE_S
        except (LogUnavailable, QueueUnavailable) as error:
            if isinstance(error, QueueUnavailable) and _has_ended(job_id, runner):
                _repeat_end(job_id, runner, pause)
                return RunResult.NOTHING_TO_DO
            if draining.wait(pause_s):
                raise
            pause_s = min(2 * pause_s, AWAY_PAUSE_MAX_S)
        else:
            if result is not RunResult.REQUEUE or draining.wait(pause_s):
                return result


def _has_ended(job_id: JobId, runner: JobRunner) -> bool:
    return load_job(job_id, log=runner.log).job.status.is_terminal


def _repeat_end(job_id: JobId, runner: JobRunner, pause: Callable[[float], object]) -> None:
    """Publish the terminal item of an ended job once the broker is available.

    The reconciler enqueues no ended job. The message stays in hand until then, so that the next
    worker finds it if this one ends first.
    """
    pause_s = RETRY_PAUSE_S
    while _has_ended(job_id, runner):
        try:
            runner.run(job_id)
        except QueueUnavailable:
            pause(pause_s)
            pause_s = min(2 * pause_s, AWAY_PAUSE_MAX_S)
        else:
            return


def _fail_for_good(job_id: JobId, runner: JobRunner) -> None:
    """Fail a job after an internal error, without a retry: the same error would occur again."""

    def give_up(job: Job) -> AttemptFailed | None:
        if job.status.is_terminal:
            return None
        defect = Failed(
            error="internal_error", message="an internal error ended this job", retryable=False
        )
        return failed_attempt(attempt=job.attempt if job.active_attempt else 0, failure=defect)

    try:
        commit(job_id, give_up, log=runner.log, ids=runner.ids)
    except JobAlreadyTerminal:
        return
    # Running the ended job publishes its terminal item.
    runner.run(job_id)
