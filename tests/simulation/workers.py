"""A worker process: the real actor, turn scheduler and active jobs around a stepped engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from domain.job.fair_scheduler import TurnOrder, TurnRequest
from domain.job.run_attempt import JobRunner
from domain.job.stranded import JobReconciler
from domain.values import JobId, Priority, WorkerId
from tests.simulation.broker import Broker
from tests.simulation.engine import StepEngine
from tests.simulation.steps import Process
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from worker.actors import _run_deliveries
from worker.turn_scheduler import (
    ActiveJobs,
    TurnScheduler,
    WaitingTurn,
    cancel_if_recorded,
    cancel_where_recorded,
)

#: Jobs of each queue that may be in hand at once.
THREADS = 3
#: Jobs that the turns let through at once, one of them never for batch jobs.
SLOTS = 3


class _Draining(threading.Event):
    """The actor's pause between two attempts, as a stop."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self._process.pause("pause before the next attempt")
        return self.is_set()


class _Turns(TurnScheduler):
    """The real turns; their waiting is a stop."""

    def __init__(self, process: Process) -> None:
        super().__init__(TurnOrder(slots=SLOTS, interactive_reserved=1))
        self._process = process

    def request_turn(self, job: TurnRequest) -> WaitingTurn:
        turn = super().request_turn(job)
        wait = turn.wait

        def stop_and_wait() -> bool:
            self._process.pause("turn", turn.decided.is_set)
            return wait()

        turn.wait = stop_and_wait  # type: ignore[method-assign]  # the simulation decides who goes on
        return turn


class Worker(Process):
    """One life of a worker process.

    Args:
        name: Of this life.
        consumer: In whose hand its messages are; the same over restarts.
        model: Its model.
    """

    def __init__(
        self,
        name: str,
        consumer: str,
        model: str,
        *,
        log: InMemoryEventLog,
        broker: Broker,
        clock: FakeClock,
        ids: SequentialIds,
    ) -> None:
        super().__init__(name)
        self.consumer = consumer
        self.model = model
        self.log = self.stepped(log, "log")
        self.draining = _Draining(self)
        self.engine = StepEngine(broker.items, clock, self.pause, model=model)
        self.active = ActiveJobs()
        self._broker = broker
        self._turns = _Turns(self)
        self._views = self.stepped(log.views, "views")
        self._busy: dict[Priority, int] = dict.fromkeys(Priority, 0)
        self._held: dict[Priority, set[JobId]] = {priority: set() for priority in Priority}
        items = self.stepped(broker.items, "items", may_lose_reply=True)
        runner = JobRunner(
            worker=WorkerId(name),
            log=self.log,
            payloads=self.log,
            engine=self.engine,
            sink=items,
            backlog=items,
            clock=clock,
            ids=ids,
            running=_Running(self),
            turns=self._turns,
        )
        self._run = _run_deliveries(
            runner, self.draining, lambda _: self.pause("pause before the last word")
        )

    def take(self, priority: Priority) -> bool:
        """Take a job out of a queue; whether there was one, and a thread for it."""
        if self._busy[priority] >= THREADS or self.draining.is_set():
            return False
        queue = self._broker.queue
        job_id = queue.take(priority, self.consumer) or queue.take(
            priority, self.consumer, self.model
        )
        if job_id is not None:
            self._busy[priority] += 1
            self._held[priority].add(job_id)
            self.begin(f"run {job_id}", partial(self._deliver, job_id, priority))
        return job_id is not None

    def lose_fetched(self, priority: Priority) -> None:
        """Ask for a job and never get the reply."""
        if not self.draining.is_set():
            self._broker.queue.take(priority, self.consumer)

    def check_hand(self) -> None:
        """Requeue the jobs that the broker records for this worker."""
        if not self.draining.is_set():
            for priority in Priority:
                for model in (None, self.model):
                    held = self._held[priority]
                    self._broker.queue.requeue_lost(priority, self.consumer, held, model)

    def receive_signals(self) -> bool:
        """Take the oldest nudge out of the mailbox, or open one; whether there was something."""
        mailboxes = self._broker.signals.mailboxes
        if self.consumer not in mailboxes:
            mailboxes[self.consumer] = []
            self.begin("signal", lambda: cancel_where_recorded(self.active, self.log))
            return True
        if not mailboxes[self.consumer]:
            return False
        job_id = mailboxes[self.consumer].pop(0)
        self.begin("signal", lambda: cancel_if_recorded(job_id, self.active, self.log))
        return True

    def reconcile(self) -> None:
        """Begin to look for lost jobs."""
        queue = self.stepped(self._broker.queue, "queue", may_lose_reply=True)

        reconciler = JobReconciler(views=self._views, queue=queue)

        def look() -> None:
            cancel_where_recorded(self.active, self.log)
            reconciler.reconcile()

        self.begin("reconcile", look)

    def drain(self) -> None:
        """Begin to stop in an orderly way."""
        self.draining.set()
        self._turns.close()
        self.engine.close()

    def _deliver(self, job_id: JobId, priority: Priority) -> None:
        self._run(job_id)
        # Dramatiq repeats this until it succeeds.
        self.pause("ack", lambda: self._broker.outage.takes_writes)
        self._broker.queue.ack(job_id, self.consumer)
        self._busy[priority] -= 1
        self._held[priority].discard(job_id)


class Models:
    """``LoadedModels`` without pulses.

    Args:
        workers: Returns the present lives.
        wanted: The model that the next life of each has.
    """

    def __init__(self, workers: Callable[[], Sequence[Worker]], wanted: Sequence[str]) -> None:
        self._workers = workers
        self._wanted = wanted

    def is_absent(self, model: str) -> bool:
        """Whether a worker lives and none has a model or is about to."""
        return any(worker.alive for worker in self._workers()) and model not in self._wanted


class _Running:
    """The real list of running jobs, with a stop between a claim and what is to be cancelled."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def claim(self, job_id: JobId) -> Any:
        return self._worker.active.claim(job_id)

    def attach(self, job_id: JobId, handle: Any, *, attempt: int) -> None:
        self._worker.pause("running.attach")
        self._worker.active.attach(job_id, handle, attempt=attempt)
