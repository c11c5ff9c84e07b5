"""What the routes need, in one frozen value that ``api.main`` composes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from api.access.agent_scope import AgentScope
from api.background.batches import BatchServices
from api.background.tasks import Background
from api.background.webhooks import WebhookServices
from api.connection_registry import ConnectionRegistry
from api.protocols.shared.efforts import Efforts
from api.protocols.shared.parsed_request import RequestDefaults
from domain.job.eta import EtaSource
from domain.job.listing import JobViews
from domain.job.ports import ItemBacklog, ItemSource, WorkerPulses
from domain.log.ports import EventLog, PayloadStore
from domain.ports import Clock, IdSource
from domain.usecases.jobs.cancel import JobCancellation
from domain.usecases.jobs.count_tokens import TokenCounter
from domain.usecases.jobs.retry import JobRetry
from domain.usecases.jobs.submit import JobSubmission
from domain.values import ATTEMPTS_MAX, WORKER_DEATHS_MAX, Priority

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRules:
    """What holds for every job that is accepted here.

    Attributes:
        attempts_max: Attempts that may die or fail before a job fails for good.
        worker_deaths_max: Workers in a row that may die on it before it says a word.
        queue_limit: Most interactive jobs that may wait.
        batch_queue_limit: Most batch jobs that may wait.
        start_within_s: When a job expires that has not begun, unless the caller says otherwise.
        finish_within_s: When a job expires that is not done, unless the caller says otherwise.
        linger_s: How long a job whose client left waits for the client's next try.
        settle_s: How long a repeat waits to see whether the first client has left just now.
        join_window_s: How long after its end a job can be joined.
    """

    attempts_max: int = ATTEMPTS_MAX
    worker_deaths_max: int = WORKER_DEATHS_MAX
    queue_limit: int = 1000
    batch_queue_limit: int = 100_000
    start_within_s: float | None = None
    finish_within_s: float | None = None
    linger_s: float = 1.0
    settle_s: float = 0.25
    join_window_s: float = 600.0

    def queue_limit_of(self, priority: Priority) -> int:
        """Return the most jobs of a queue that may wait."""
        return self.queue_limit if priority is Priority.INTERACTIVE else self.batch_queue_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Ports and the few settings that routes look at.

    Attributes:
        log: The truth.
        payloads: Texts of requests and answers.
        views: The jobs projection.
        outlook: What is to be expected of open jobs.
        submission: Accepts requests as jobs.
        cancellation: Cancels jobs.
        retries: Puts ended jobs back into their queue.
        backlog: Stored items.
        source: Items as they come; belongs to the event loop that runs the routes.
        pulses: Which workers are alive, and with which model.
        counter: Says how long a prompt is.
        clock: For ``created`` stamps.
        ids: Fresh ids and seeds.
        executor: Bounded; runs everything that blocks.
        background: Keeps cancellations alive whose request has ended.
        batches: What batches and files need beyond all this.
        webhooks: What webhooks need beyond all this.
        version: Of this software.
        model: What clients call the served model.
        aliases: Other names for it, listed beside it.
        max_tokens_default: Where a request sets no limit.
        efforts: What efforts of reasoning are worth.
        rules: What holds for every job.
        agents: What holds for every agent.
        readers: Who waits for which job; belongs to the same event loop as ``source``.
        ping_s: Most seconds of silence on a stream.
        opening_s: How long a stream waits for its first item before it begins: what fails until
            then is told by a status instead of an event.
        look_s: How long a reader hears nothing before it looks into the log.
        pause: Waits so many seconds, where it is time itself that is waited for.
    """

    log: EventLog
    payloads: PayloadStore
    views: JobViews
    outlook: EtaSource
    submission: JobSubmission
    cancellation: JobCancellation
    retries: JobRetry
    backlog: ItemBacklog
    source: ItemSource
    pulses: WorkerPulses
    counter: TokenCounter
    clock: Clock
    ids: IdSource
    executor: Executor
    background: Background
    batches: BatchServices
    webhooks: WebhookServices
    version: str
    model: str
    aliases: tuple[str, ...] = ()
    max_tokens_default: int = 4096
    efforts: Efforts = Efforts()
    rules: JobRules = JobRules()
    agents: AgentScope = field(default_factory=AgentScope)
    readers: ConnectionRegistry = field(default_factory=ConnectionRegistry)
    ping_s: float = 10.0
    opening_s: float = 0.0
    look_s: float = 2.0
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def request_defaults(self) -> RequestDefaults:
        """Values for the fields that a request leaves open."""
        return RequestDefaults(
            ids=self.ids,
            max_tokens=self.max_tokens_default,
            model=self.model,
            efforts=self.efforts,
        )

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function on the executor and return what it returns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, partial(function, *args, **kwargs))
