"""The application of one api process: its adapters and settings, and what the handlers use."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from api.access.limits import AgentLimits, BatchLimits, JobLimits, WebhookPolicy
from api.access.ownership import OwnershipCheck
from api.calls import Background, BlockingCalls, BoundedCalls
from api.generation import RequestDefaults
from api.http_server.shield import RequestCounts
from api.loops.forecasts import LiveRates
from api.streaming.feed import Feed
from api.streaming.readers import ConnectionRegistry, JobReaders
from domain.agent.agents import AgentRecords
from domain.agent.contexts import AgentContexts
from domain.agent.views import AgentViews
from domain.audit.recorded_answers import JobRecords
from domain.batch.batches import BatchRecords, FileRecords
from domain.batch.ports import BatchViews
from domain.batch.schedules import ScheduleRecords
from domain.engine.control import EngineValues
from domain.engine.operate import EngineControls
from domain.engine.presence import LoadedModels
from domain.engine.workers import WorkerPulses
from domain.job.cancel import JobCancellation
from domain.job.eta import EtaSource
from domain.job.listing import JobViews, QueueViews
from domain.job.ports import ItemBacklog, ItemSource
from domain.job.prepare_prompt import TokenCounter
from domain.job.submit import JobSubmission
from domain.kv.places import BlockPlaces
from domain.log.ports import EventLog, Owners, PayloadStore
from domain.log.subscriptions import Subscriptions
from domain.model.registry import InspectFiles, ModelRegistry, ModelStock, ServingModels
from domain.model.swaps import ModelSwaps
from domain.ports import Clock, IdSource
from domain.usage.figures import UsageViews
from domain.webhook.delivery import WebhookState, WebhookStore
from domain.webhook.send import WebhookRetry
from ops.data_dir.free_space import DiskFloor
from ops.models.hub_cache import inspect_files
from ops.observe.counter_file import CounterFile, Figures

T = TypeVar("T")

#: Most seconds of silence on a stream.
PING_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPorts:
    """The sources of metrics.

    Attributes:
        writer: Returns what the log writer of this process has done.
        counters: Totals of the api processes before this one.
        agents_max: Agents with samples of their own; 0: agents have no samples of their own.
        aliases: Whether metrics are repeated under the names of vLLM.
    """

    queue: QueueViews
    usage: UsageViews
    writer: Callable[[], Figures] = dict
    counters: CounterFile = field(default_factory=lambda: CounterFile(None))
    agents_max: int = 0
    aliases: bool = False
    requests: RequestCounts = field(default_factory=RequestCounts)
    tries: Counter[WebhookState] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class App:
    """What every handler gets: ``async def handler(app, request)``.

    The fields are the adapters and settings of the process. The cached properties are made from
    them at their first use.

    Attributes:
        source: Live items; belongs to the event loop that runs the routes.
        engine_settings: Values of the engine where operators have changed none.
        executor: Bounded; runs all blocking calls except token counts.
        counts: Runs token counts, which wait for a worker.
        registry: Returns the registered models, as the configuration has them now.
        connections: The readers of each job; belongs to the same event loop as ``source``.
        opening_s: How long a stream waits for its first item before its head is sent. A job that
            fails before that is answered with a status instead of an event.
        draining: Set once the process ends.
    """

    log: EventLog
    payloads: PayloadStore
    owners: Owners
    views: JobViews
    metrics: MetricPorts
    agent_views: AgentViews
    eta: EtaSource
    job_submission: JobSubmission
    cancellation: JobCancellation
    backlog: ItemBacklog
    source: ItemSource
    pulses: WorkerPulses
    serving: ServingModels
    controls: EngineControls
    swaps: ModelSwaps
    engine_settings: EngineValues
    counter: TokenCounter
    places: BlockPlaces
    clock: Clock
    ids: IdSource
    executor: Executor
    counts: BoundedCalls
    background: Background = field(default_factory=Background)
    batch_views: BatchViews
    wake_batches: Callable[[], None]
    batch_limits: BatchLimits = BatchLimits()
    webhook_store: WebhookStore
    shares_blocks: bool = False
    webhook_policy: WebhookPolicy = WebhookPolicy()
    version: str
    model: str
    models: LoadedModels
    rates: LiveRates
    registry: Callable[[], ModelRegistry]
    inspect_model: InspectFiles = inspect_files
    job_limits: JobLimits = JobLimits()
    agents: AgentLimits = field(default_factory=AgentLimits)
    connections: ConnectionRegistry = field(default_factory=ConnectionRegistry)
    ping_s: float = PING_S
    opening_s: float = 0.0
    look_s: float = 2.0
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    draining: threading.Event = field(default_factory=threading.Event)
    disk: DiskFloor = DiskFloor(measure=lambda: 2**40)
    _made: dict[Callable[[App], Any], Any] = field(default_factory=dict, init=False)

    def once(self, make: Callable[[App], T]) -> T:
        """Return what a function makes of the app; each function is called once.

        For what handlers keep between requests: it belongs to their module, not to this one.
        """
        if make not in self._made:
            self._made.setdefault(make, make(self))
        made: T = self._made[make]
        return made

    @cached_property
    def call(self) -> BlockingCalls:
        """Runs what blocks."""
        return BlockingCalls(self.executor)

    @cached_property
    def defaults(self) -> RequestDefaults:
        """Values for the fields that a request leaves open."""
        return RequestDefaults(
            ids=self.ids,
            max_tokens=self.job_limits.max_tokens_default,
            model=self.model,
        )

    @cached_property
    def records(self) -> JobRecords:
        """The recorded jobs."""
        return JobRecords(log=self.log, payloads=self.payloads, views=self.views)

    @cached_property
    def feed(self) -> Feed:
        """Opens the items of a job."""
        return Feed(
            source=self.source,
            backlog=self.backlog,
            records=self.records,
            call=self.call,
            look_s=self.look_s,
        )

    @cached_property
    def ownership(self) -> OwnershipCheck:
        """Decides whether a caller may use a thing."""
        return OwnershipCheck(
            owners=self.owners, webhooks=self.webhook_store, shares_blocks=self.shares_blocks
        )

    @cached_property
    def readers(self) -> JobReaders:
        """The connections that wait for each job."""
        return JobReaders(
            connections=self.connections,
            cancellation=self.cancellation,
            background=self.background,
            call=self.call,
            grace_s=self.job_limits.disconnect_grace_s,
            pause=self.pause,
        )

    @cached_property
    def subscriptions(self) -> Subscriptions:
        """The named readers of the log."""
        return Subscriptions(self.log, self.ids)

    @cached_property
    def agent_records(self) -> AgentRecords:
        """The agents that keep their own history."""
        return AgentRecords(
            log=self.log,
            views=self.views,
            payloads=self.payloads,
            ids=self.ids,
        )

    @cached_property
    def agent_contexts(self) -> AgentContexts:
        """The cached contexts of agents."""
        return AgentContexts(log=self.log, places=self.places, ids=self.ids)

    @cached_property
    def batch_records(self) -> BatchRecords:
        """The batches and their jobs."""
        return BatchRecords(log=self.log, views=self.batch_views, ids=self.ids)

    @cached_property
    def schedules(self) -> ScheduleRecords:
        """The schedules of jobs."""
        return ScheduleRecords(log=self.log, views=self.batch_views, ids=self.ids)

    @cached_property
    def file_records(self) -> FileRecords:
        """The files of batches."""
        return FileRecords(log=self.log, views=self.batch_views, ids=self.ids, clock=self.clock)

    @cached_property
    def webhook_retries(self) -> WebhookRetry:
        """Delivers webhooks again."""
        return WebhookRetry(log=self.log, store=self.webhook_store, ids=self.ids, clock=self.clock)

    @cached_property
    def model_stock(self) -> ModelStock:
        """The registered models and their states."""
        return ModelStock(
            log=self.log, serving=self.serving, registry=self.registry, inspect=self.inspect_model
        )
