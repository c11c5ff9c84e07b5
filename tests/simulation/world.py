"""The simulated service: callers, two api processes, a broker, two workers, and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, cast

from domain.chat.request import ChatRequest, Message
from domain.chat.stored_answer import StoredAnswer
from domain.engine.presence import LoadedModels
from domain.job.cancel import BulkChange, JobCancellation
from domain.job.listing import JobFilter
from domain.job.request_dedup import Readership, RequestRepeat, job_to_join
from domain.job.stranded import DueJobs, JobReconciler, StrandedJobs
from domain.job.submit import (
    JobSubmission,
    NewJob,
    RecordedBy,
    idempotency_digest,
    is_repeat,
    line_length,
    require_room,
)
from domain.values import JobId, JobStatus, Priority, SamplingWish, digest_of, rfc3339
from tests.simulation.absence import outlive_the_dead
from tests.simulation.broker import Broker
from tests.simulation.engine import MODELS
from tests.simulation.follow_ups import FollowUps
from tests.simulation.nights import MINUTE, Nights
from tests.simulation.readers import Reader
from tests.simulation.steps import Order, Process, Task
from tests.simulation.truth import BULK, DRY, Bulk, Truth
from tests.simulation.workers import Models, Worker
from tests.support.builders.new_jobs import new_job
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds

#: Jobs of a queue that may wait.
QUEUE_LIMIT = 2
#: How long a job may wait for its model, in seconds.
ABSENT_WAIT_MAX_S = 100.0
#: Use cases of the api that may be on their way at once.
CALLERS = 4
#: Rounds of healing after which whatever is open counts as stuck.
ROUNDS_MAX = 60
#: Port calls of one use case in one round of healing; more is a loop.
STEPS_MAX = 2000
#: Errors that each use case may raise, by the first word of its name.
_REFUSALS: Mapping[str, frozenset[str]] = {
    "submit": frozenset({"log_unavailable", "idempotency_key_reused", "overloaded"}),
    "repeat": frozenset({"log_unavailable", "overloaded"}),
    "cancel": frozenset({"log_unavailable"}),
    "retry": frozenset({"log_unavailable", "queue_unavailable", "not_retryable"}),
    "bulk": frozenset({"log_unavailable", "queue_unavailable"}),
    "fork": frozenset({"log_unavailable", "overloaded"}),
    "expire": frozenset({"log_unavailable"}),
    "plan": frozenset({"log_unavailable"}),
    "fire": frozenset({"log_unavailable"}),
    "release": frozenset({"log_unavailable"}),
    "reconcile": frozenset({"log_unavailable", "queue_unavailable"}),
    "run": frozenset(),
    "signal": frozenset({"log_unavailable"}),
    "strand": frozenset({"log_unavailable", "queue_unavailable"}),
    "drive": frozenset({"log_unavailable"}),
    "collect": frozenset({"log_unavailable"}),
    "deliver": frozenset({"log_unavailable"}),
}


class _NobodyKnows:
    """``Outlook`` of a service that has just begun."""

    def of(self, job_id: JobId) -> None:
        del job_id

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> None:
        del priority, waiting, limit

    def full_s(self) -> float:
        return 0.0


class World:
    """What a simulated run happens in. Each method is one thing that happens.

    Args:
        every: Time between two instants of a schedule.
        apis: Number of api processes.
    """

    def __init__(
        self, clock: FakeClock | None = None, *, every: timedelta = MINUTE, apis: int = 2
    ) -> None:
        self.clock = clock or FakeClock()
        self.ids = SequentialIds()
        self.log = InMemoryEventLog(self.clock)
        self.broker = Broker(self.clock)
        self.truth = Truth(self.log, self.broker.items, queue_limit=QUEUE_LIMIT, callers=CALLERS)
        self.apis = [Process(f"api-{number + 1}") for number in range(apis)]
        self._lives = 0
        #: The model that the next life of each worker has.
        self.wanted = list(MODELS)
        self.workers = [
            self._new_worker(f"engine-{number}", model) for number, model in enumerate(MODELS)
        ]
        self.models = Models(lambda: self.workers, self.wanted)
        self._absent_since: dict[str, float] = {}
        self.follow_ups = FollowUps(self)
        self.nights = Nights(self, every)
        self.swaps = 0
        self.crashes = 0
        self.port_calls = 0
        self.refusals: dict[str, int] = {}

    def api(self, number: int) -> Process:
        """Return one of the api processes."""
        return self.apis[number % len(self.apis)]

    # -- callers ---------------------------------------------------------------------------------

    def submit(self, api: Process, prompt: str, **wishes: Any) -> None:
        """Begin to accept a job; ``wishes`` as in ``_command``."""
        key: str | None = wishes.get("key")
        self._call(api, "submit", partial(self._accept, api, self._command(prompt, **wishes), key))

    def submit_scheduled(
        self, api: Process, prompt: str, *, key: str, recorded_by: RecordedBy
    ) -> None:
        """Accept the job of an instant, whose key is its correlation too."""
        command = self._command(
            prompt,
            key=key,
            correlation_id=key,
            priority=Priority.BATCH,
            recorded_by=recorded_by,
        )
        self._accept(api, command, key)

    def repeat(self, api: Process, prompt: str, state: Readership, **wishes: Any) -> None:
        """Begin to find the job of an equal request, or to accept another."""
        command = self._command(prompt, **wishes)

        def body() -> None:
            asking = RequestRepeat(
                is_retry=True,
                has_session=False,
                is_repeatable=False,
                since=rfc3339(self.clock.now() - timedelta(seconds=60)),
            )
            assert command.submitted.asked is not None
            alike = self._views(api).alike(command.submitted.asked, limit=16)
            found = job_to_join(alike, asking, lambda _: state)
            if found is None:
                self._accept(api, command, None)
                return
            submission = JobSubmission(ids=self.ids, **self.ports(api, "log", "queue"))
            submission.attach(found.job_id, reason=found.reason, request_id="r")

        self._call(api, "repeat", body)

    def cancel(self, api: Process, job_id: JobId) -> None:
        self._call(api, "cancel", partial(self.cancellation(api).cancel, job_id, reason="api"))

    def retry(self, api: Process, job_id: JobId) -> None:
        retries = self.cancellation(api)
        self._call(api, "retry", lambda: retries.retry(job_id, reason="api"))

    def change_all(self, api: Process, label: str, *, retries: bool, is_dry: bool) -> None:
        """Begin to cancel or retry the jobs of a label, or to look them up."""
        reason = DRY if is_dry else BULK + label

        def body() -> None:
            begun = self.truth.open_with(label)
            bulk = BulkChange(
                views=self._views(api),
                cancellation=self.cancellation(api),
                reason=reason,
                limit=500,
                is_dry=is_dry,
            )
            act = bulk.retry if retries else bulk.cancel
            _, has_more = act(JobFilter(labels=(label,)))
            if not (retries or is_dry or has_more):
                self.truth.bulks.append(Bulk(label, begun))

        self._call(api, "bulk", body)

    def fork(self, api: Process, parent: JobId, at: int) -> None:
        """Begin to accept a job that continues an answer with another seed."""
        view = self.log.views.get(parent)
        assert view is not None
        assert view.started is not None
        inherited: dict[str, Any] = {"parent": parent, "parent_tokens": at}
        if at:
            inherited["parent_output"] = view.output
            inherited["parent_fingerprint"] = view.started.fingerprint
        command = self._command(
            self.truth.jobs[parent].prompt,
            seed=2,
            bound_model=view.answered_by,
            waits_for_model=True,
            **inherited,
        )
        self._call(api, "fork", partial(self._accept, api, command, None))

    def expire(self, api: Process) -> None:
        self._call(api, "expire", self._due(api).expire_overdue)

    def release(self, api: Process) -> None:
        """Begin to release the held jobs that are due."""
        self._call(api, "release", self._due(api).release_due)

    def _due(self, api: Process) -> DueJobs:
        return DueJobs(
            views=self._views(api), clock=self.clock, cancellation=self.cancellation(api)
        )

    def strand(self, api: Process) -> None:
        """Begin to end the jobs whose model no worker has."""
        stranded = StrandedJobs(
            views=self._views(api),
            models=cast("LoadedModels", self.models),
            cancellation=self.cancellation(api),
            clock=self.clock,
            absent_wait_max_s=ABSENT_WAIT_MAX_S,
            _since=self._absent_since,
        )
        self._call(api, "strand", stranded.end_stranded)

    def swap(self, number: int, model: str) -> None:
        """Have a worker drain, and another model in its next life."""
        self.wanted[number] = model
        worker = self.workers[number]
        if worker.alive and not worker.frozen and worker.model != model:
            self.swaps += 1
            worker.drain()

    def read(self, job_id: JobId) -> None:
        """Begin to follow a job, as long as its end may still come."""
        job = self.truth.jobs[job_id]
        if job.end is None:
            self.truth.readers.append(Reader(job_id, job.life))

    # -- progress --------------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        """The tasks that can continue."""
        return [one for one in (*self.apis, *self.workers) if one.alive and not one.frozen]

    @property
    def ready(self) -> list[tuple[Process, Task]]:
        """What can go on now."""
        return [(one, task) for one in self.processes for task in one.tasks if task.is_ready]

    def step(self, process: Process, task: Task, order: Order = Order.GO) -> None:
        """Let a use case go to its next port call."""
        self.port_calls += 1
        process.step(task, order)
        if task.refusal is not None:
            kind = task.name.rpartition("/")[2].split()[0]
            code = task.refusal.code
            assert code in _REFUSALS[kind], f"{task.name} at {task.at}: {task.refusal!r}"
            self.refusals[code] = self.refusals.get(code, 0) + 1
        if order is Order.DIE:
            self._bury(process)

    def tick(self, seconds: float) -> None:
        """Let time pass; who can gives a sign of life."""
        self.clock.advance(seconds)
        if self.broker.outage.takes_writes:
            for worker in self.workers:
                if worker.alive and not worker.frozen:
                    self.broker.queue.beat(worker.consumer)

    # -- faults ----------------------------------------------------------------------------------

    def crash(self, process: Process) -> None:
        process.die()
        self._bury(process)

    def restart(self, number: int) -> bool:
        """Start a worker where a dead one was; it cannot without the broker."""
        dead = self.workers[number]
        if dead.alive or not self.broker.outage.takes_writes:
            return False
        self.broker.queue.requeue_unacked(dead.consumer)
        self.workers[number] = self._new_worker(dead.consumer, self.wanted[number])
        return True

    def end_drained(self) -> None:
        """Let workers end that were asked to and have nothing left."""
        for worker in self.workers:
            if worker.alive and worker.draining.is_set() and not worker.tasks:
                self.crash(worker)

    # -- the end ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """Mend everything and do all work, until nothing is left, or raise ``AssertionError``."""
        self.broker.come_back()
        self.log.unavailable = False
        for process in (*self.apis, *self.workers):
            process.frozen = False
        outlive_the_dead(self)
        for number, model in enumerate(MODELS):
            self.swap(number, model)
        for _ in range(ROUNDS_MAX):
            self.nights.wind_down(self.apis[0])
            self.round()
            is_idle = self.broker.is_empty and not any(one.tasks for one in self.processes)
            if is_idle and not self.log.views.unfinished() and self.is_over:
                break
        for reader in self.truth.readers:
            reader.look_into_log(self.log, self.broker.items)
        self.truth.check_end(self.broker.losses)
        self.follow_ups.check_end()
        self.nights.check_end()
        left = [task.name for one in self.processes for task in one.tasks]
        assert not left, f"stuck: {left}"

    @property
    def is_over(self) -> bool:
        """Whether no batch, message or schedule has anything left to do."""
        return self.follow_ups.is_done and self.nights.is_done

    def reconciled(self) -> None:
        """Reconcile in one step and assert that every open job can be found."""
        if not self.broker.outage.takes_writes:
            return
        JobReconciler(views=self.log.views, queue=self.broker.queue).reconcile()
        for view in self.log.views.unfinished(with_held=False):
            where = f"no process will find {view.id}"
            held = self.broker.queue.holds(
                view.id, Priority(view.submitted.priority), view.submitted.bound_model
            )
            assert held, where

    def check(self) -> None:
        """Look whether all is as it must be."""
        self.truth.check(self.broker.losses)
        self.follow_ups.check()
        self.nights.check()

    def close(self) -> None:
        """End every thread."""
        for process in (*self.apis, *self.workers):
            process.die()

    def round(self, *, restarts: bool = True) -> None:
        self.end_drained()
        for number in range(len(self.workers) if restarts else 0):
            self.restart(number)
        living = [one for one in self.workers if one.alive]
        self.tick(1)
        self.expire(self.apis[0])
        self.release(self.apis[0])
        self.strand(self.apis[0])
        self.follow_ups.advance()
        for worker in living:
            while worker.receive_signals():
                pass
            worker.check_hand()
            worker.reconcile()
            for priority in Priority:
                while worker.take(priority):
                    pass
        self._run_all()
        for worker in living:
            worker.engine.advance(20)
            worker.engine.publish()
        self._run_all()

    def _run_all(self) -> None:
        steps: dict[Task, int] = {}
        while ready := self.ready:
            for process, task in ready:
                if task.is_ready:
                    self.step(process, task)
                    steps[task] = steps.get(task, 0) + 1
                    assert steps[task] < STEPS_MAX, f"{task.name} loops at {task.at}"
            self.check()

    # -- inside ----------------------------------------------------------------------------------

    def _call(self, api: Process, name: str, body: Callable[[], object]) -> None:
        if sum(len(one.tasks) for one in self.apis) < CALLERS or name in {
            "expire",
            "release",
            "strand",
        }:
            api.begin(name, body)

    def _accept(self, api: Process, command: NewJob, key: str | None) -> JobId:
        """What the route does."""
        views = self._views(api)
        if not is_repeat(command.submitted, views, at=rfc3339(self.clock.now())):
            require_room(
                command.submitted.priority,
                jobs_max=QUEUE_LIMIT,
                views=views,
                eta=_NobodyKnows(),
                length_of=partial(
                    line_length,
                    model=command.submitted.bound_model,
                    has_own_line=self.models.is_absent,
                ),
            )
        submission = JobSubmission(ids=self.ids, **self.ports(api, "log", "queue"))
        accepted = submission.submit(command, job_id=self.ids.job_id())
        self.truth.answered(key, accepted.job_id)
        return accepted.job_id

    def _command(
        self,
        prompt: str,
        *,
        key: str | None = None,
        start_after_s: float | None = None,
        start_within_s: float | None = None,
        finish_within_s: float | None = None,
        unique_s: float | None = None,
        seed: int = 1,
        **facts: Any,
    ) -> NewJob:
        request = ChatRequest(
            model="m",
            messages=(Message(role="user", content=prompt),),
            max_tokens=100,
            sampling=SamplingWish(seed=seed),
        )
        terms: dict[str, Any] = {
            "correlation_id": "r",
            "idempotency": idempotency_digest(key) if key is not None else None,
            "asked": request.asked(protocol="jobs", agent=None, seeded=False),
            "start_after": self._in(start_after_s),
            "deadline": self._in(start_within_s),
            "finish_deadline": self._in(finish_within_s),
            "unique": None if unique_s is None else digest_of(prompt.encode()),
            "unique_until": self._in(unique_s),
        }
        return new_job(request, **terms | facts)

    def _in(self, seconds: float | None) -> str | None:
        if seconds is None:
            return None
        return rfc3339(self.clock.now() + timedelta(seconds=seconds))

    def _views(self, process: Process) -> Any:
        return process.stepped(self.log.views, "views")

    def cancellation(self, api: Process) -> JobCancellation:
        ports = self.ports(api, "log", "queue", "sink", "backlog", "signals")
        return JobCancellation(ids=self.ids, payloads=self.log, **ports)

    def ports(self, process: Process, *names: str) -> dict[str, Any]:
        broker = self.broker
        of_broker = {
            "queue": broker.queue,
            "sink": broker.items,
            "backlog": broker.items,
            "signals": broker.signals,
        }
        return {
            name: process.stepped(self.log, name)
            if name == "log"
            else process.stepped(of_broker[name], name, may_lose_reply=True)
            for name in names
        }

    def _new_worker(self, consumer: str, model: str) -> Worker:
        self._lives += 1
        return Worker(
            f"worker-{self._lives}",
            consumer,
            model,
            log=self.log,
            broker=self.broker,
            clock=self.clock,
            ids=self.ids,
        )

    def _bury(self, process: Process) -> None:
        self.crashes += 1
        if isinstance(process, Worker):
            self.broker.signals.mailboxes.pop(process.consumer, None)
        else:
            self.apis[self.apis.index(process)] = Process(process.name)

    def open_jobs(self) -> list[JobId]:
        """Return the jobs that have not ended."""
        return [view.id for view in self.log.views.unfinished()]

    def answers(self) -> list[tuple[JobId, int]]:
        """Return the ended jobs that have an answer, and the lengths of the answers."""
        return [
            (view.id, len(StoredAnswer.from_bytes(self.log.get(view.output)).token_ids or ()))
            for view in self.log.views.rows.values()
            if view.status.is_terminal and view.output is not None and view.started is not None
        ]

    def failed_jobs(self) -> list[JobId]:
        """Return the jobs that may be tried again."""
        rows = self.log.views.rows.values()
        return [
            view.id
            for view in rows
            if view.status.is_terminal and view.status is not JobStatus.COMPLETED
        ]
