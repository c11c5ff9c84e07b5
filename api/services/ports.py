"""The adapters and settings of one api process, from which the services are composed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from api.access.rate_limits import AgentLimits
from api.access.webhook_policy import WebhookPolicy
from api.background.batch_lines import BatchLines
from api.background.batches import BatchRules
from api.background.live_rates import LiveRates
from api.background.tasks import Background, BoundedCalls
from api.protocols.shared.efforts import Efforts
from api.protocols.shared.parsed_request import RequestDefaults
from api.services.metrics.ports import MetricPorts
from api.streaming.job_readers import ConnectionRegistry
from api.submission.job_rules import JobRules
from domain.agent.listing import AgentViews
from domain.batch.ports import BatchViews
from domain.engine.control import EngineValues
from domain.job.eta import EtaSource
from domain.job.listing import JobViews
from domain.job.ports import ItemBacklog, ItemSource, WorkerPulses
from domain.kv.places import BlockPlaces
from domain.log.ports import EventLog, Owners, PayloadStore
from domain.model.inventory import InspectFiles
from domain.model.presence import LoadedModels
from domain.model.registry import ModelRegistry
from domain.ports import Clock, IdSource
from domain.usecases.engine_control import EngineControls
from domain.usecases.jobs.cancel import JobCancellation
from domain.usecases.jobs.count_tokens import TokenCounter
from domain.usecases.jobs.retry import JobRetry
from domain.usecases.jobs.submit import JobSubmission
from domain.usecases.model_stock import ServingModels
from domain.usecases.model_swaps import ModelSwaps
from domain.webhook.ports import WebhookStore
from ops.adapters.data_dir.free_space import DiskFloor
from ops.models.files import inspect_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPorts:
    """The adapters and settings of one api process.

    Attributes:
        payloads: Texts of requests and answers.
        owners: The API keys that made jobs, agents, files and batches.
        views: The jobs projection.
        metrics: What a scrape reads.
        agent_views: The agents projection.
        eta: Forecasts for open jobs.
        submission: Records and enqueues jobs.
        cancellation: Cancels jobs.
        retries: Enqueues jobs again that ended without an answer.
        backlog: Stored items.
        source: Live items; belongs to the event loop that runs the routes.
        pulses: The living workers and their models.
        serving: The models that they have loaded; remembered while the broker is away.
        controls: What operators have changed while the service runs.
        swaps: The wanted model.
        engine_settings: Values of the engine where operators have changed none.
        counter: Counts the tokens of a prompt.
        places: Finds blocks in the memory and on the disks of the workers.
        clock: Now.
        ids: Fresh ids and seeds.
        executor: Bounded; runs all blocking calls except token counts.
        counts: Runs token counts, which wait for a worker.
        background: Runs cancellations whose request has ended.
        batch_views: Batches and their jobs.
        batch_lines: Parses and renders the lines of batches.
        wake_batches: Wakes the batch driver.
        batch_rules: Limits of batches and files.
        shares_blocks: Whether prompts of different keys share cached blocks.
        webhook_policy: Which URLs a request may name.
        version: Of this software.
        model: The name of the served model.
        models: The models of the live workers.
        rates: The rates of the last hour.
        registry: Returns the registered models, as the configuration has them now.
        inspect_model: Returns the files of a model, if they are here.
        max_tokens_default: Token limit of a request that sets none.
        efforts: Shares of the token limit that reasoning efforts get.
        rules: Rules of every job.
        agents: Limits of every agent.
        connections: The readers of each job; belongs to the same event loop as ``source``.
        ping_s: Most seconds of silence on a stream.
        opening_s: How long a stream waits for its first item before its head is sent. A job that
            fails before that is answered with a status instead of an event.
        look_s: How long a stream stays silent before it reads the log, in seconds.
        pause: Sleeps for a number of seconds.
        draining: Set once the process ends.
        disk: The free space of the log's disk, and the floor under new work.
    """

    log: EventLog
    payloads: PayloadStore
    owners: Owners
    views: JobViews
    metrics: MetricPorts
    agent_views: AgentViews
    eta: EtaSource
    submission: JobSubmission
    cancellation: JobCancellation
    retries: JobRetry
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
    batch_lines: BatchLines
    wake_batches: Callable[[], None]
    batch_rules: BatchRules = BatchRules()
    webhook_store: WebhookStore
    shares_blocks: bool = False
    webhook_policy: WebhookPolicy = WebhookPolicy()
    version: str
    model: str
    models: LoadedModels
    rates: LiveRates
    registry: Callable[[], ModelRegistry]
    inspect_model: InspectFiles = inspect_files
    max_tokens_default: int = 4096
    efforts: Efforts = Efforts()
    rules: JobRules = JobRules()
    agents: AgentLimits = field(default_factory=AgentLimits)
    connections: ConnectionRegistry = field(default_factory=ConnectionRegistry)
    ping_s: float = 10.0
    opening_s: float = 0.0
    look_s: float = 2.0
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    draining: threading.Event = field(default_factory=threading.Event)
    disk: DiskFloor = DiskFloor(measure=lambda: 2**40)

    @property
    def defaults(self) -> RequestDefaults:
        """Values for the fields that a request leaves open."""
        return RequestDefaults(
            ids=self.ids,
            max_tokens=self.max_tokens_default,
            model=self.model,
            efforts=self.efforts,
        )
