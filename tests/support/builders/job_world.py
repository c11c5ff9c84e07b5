"""Log, broker and worker in memory, with an engine that follows a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from domain.chat.items import StreamItem, Text
from domain.chat.request import ChatRequest, Message
from domain.job.cancel import JobCancellation
from domain.job.commit import load_job
from domain.job.fair_scheduler import TurnOrder
from domain.job.run_attempt import JobRunner, RunResult
from domain.job.state import Job
from domain.job.stranded import DueJobs
from domain.job.submit import Accepted, JobSubmission
from domain.values import JobId, SamplingWish, StreamName, WorkerId
from tests.support.builders.new_jobs import new_job
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from worker.turn_scheduler import ActiveJobs, TurnScheduler, cancel_if_recorded


class JobWorld:
    """Log, broker and one worker; close the engine by using it in a ``with``."""

    def __init__(
        self, answers: Mapping[str, str] | None = None, *, slots: int = 8, **engine: Any
    ) -> None:
        self.slots = slots
        self.clock = FakeClock()
        self.ids = SequentialIds()
        self.log = InMemoryEventLog(self.clock)
        self.broker = FakeBroker()
        self.engine = FakeEngine(self.broker.items, answers, **engine)
        broker, log, ids = self.broker, self.log, self.ids
        self.submission = JobSubmission(log=log, queue=broker.queue, ids=ids)
        self.cancellation = JobCancellation(
            log=log,
            payloads=log,
            queue=broker.queue,
            sink=broker.items,
            backlog=broker.items,
            signals=broker.signals,
            ids=ids,
        )
        self.due = DueJobs(views=log.views, clock=self.clock, cancellation=self.cancellation)
        self.active = ActiveJobs()
        self.runner = self.new_worker("worker-1")

    def new_worker(self, name: str) -> JobRunner:
        """Return the runner of another process, which runs no job."""
        self.active = ActiveJobs()
        self.turns = TurnScheduler(TurnOrder(slots=self.slots, interactive_reserved=1))
        return JobRunner(
            worker=WorkerId(name),
            log=self.log,
            payloads=self.log,
            engine=self.engine,
            sink=self.broker.items,
            backlog=self.broker.items,
            clock=self.clock,
            ids=self.ids,
            running=self.active,
            turns=self.turns,
        )

    def submit(self, prompt: str = "hi", **request: Any) -> JobId:
        return self.accept(prompt, **request).job_id

    def accept(
        self, prompt: str = "hi", *, command: Mapping[str, Any] | None = None, **request: Any
    ) -> Accepted:
        """Submit; ``command`` has further facts of ``new_job``."""
        job_id = self.ids.job_id()
        options: dict[str, Any] = {"max_tokens": 100, "sampling": SamplingWish(seed=1)} | request
        chat = ChatRequest(model="m", messages=(Message(role="user", content=prompt),), **options)
        asked = chat.asked(protocol="jobs", agent=None, seeded=False)
        new = new_job(chat, **{"asked": asked} | dict(command or {}))
        return self.submission.submit(new, job_id=job_id)

    def run(self, job_id: JobId) -> RunResult:
        return self.runner.run(job_id)

    def cancel(self, job_id: JobId) -> Job:
        return self.cancellation.cancel(job_id, reason="api")

    def nudge(self, job_id: JobId) -> None:
        """Deliver the cancel signal of a job to the worker."""
        cancel_if_recorded(job_id, self.active, self.log)

    def retry(self, job_id: JobId) -> Job:
        return self.cancellation.retry(job_id, reason="api")

    def expire(self) -> tuple[JobId, ...]:
        return self.due.expire_overdue()

    def job(self, job_id: JobId) -> Job:
        return load_job(job_id, log=self.log).job

    def types(self, job_id: JobId) -> list[str]:
        return [event.type for event in self.log.load(StreamName(job_id))]

    def items(self, job_id: JobId) -> tuple[StreamItem, ...]:
        return self.broker.items.read(job_id)

    def text(self, job_id: JobId) -> str:
        bodies = [item.body for item in self.items(job_id)]
        return "".join(body.text for body in bodies if isinstance(body, Text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.engine.__exit__(None, None, None)
