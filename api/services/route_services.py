"""The services that routes get, one for each kind of request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from api.access.ownership import OwnershipCheck
from api.background.batches import BatchServices
from api.background.tasks import BlockingCalls, BoundedCalls
from api.background.webhooks import SHOWN_MAX, WebhookServices
from api.http.caller import Caller
from api.http.messages import Request
from api.presenters.jobs import full_job_object, job_object
from api.presenters.openapi import OpenApiDocument
from api.protocols.shared.parsed_request import RequestDefaults
from api.schemas.replies import JobObject
from api.services.agent_reader import AgentReader
from api.services.health import HealthChecks
from api.services.metrics.service import MetricsService
from api.services.overview import OverviewService
from api.services.response_reader import ResponseReader
from api.streaming.job_items import JobItems
from api.streaming.log_backfill import JobRecords
from api.submission.agent_turns import AgentTurns
from api.submission.submit import Parse, Submission
from domain.engine.control import EngineValues
from domain.errors import QueueUnavailable
from domain.job.eta import EtaSource, Forecast, awaiting_model
from domain.job.listing import JobViews
from domain.job.ports import ControlTopic, WorkerPulses
from domain.job.view import JobView
from domain.log.ports import EventLog, PayloadStore
from domain.model.registry import ModelKind, ModelRegistry, require_kind
from domain.model.wanted_model import Swap
from domain.not_found import JobNotFound, ModelNotFound, WorkerNotFound
from domain.ports import Clock, IdSource
from domain.usage.ports import UsageViews
from domain.usecases.agent_contexts import AgentContexts
from domain.usecases.agents import AgentRecords
from domain.usecases.engine_control import EngineControls
from domain.usecases.jobs.cancel import JobCancellation
from domain.usecases.jobs.count_tokens import TokenCounter
from domain.usecases.jobs.retry import JobRetry
from domain.usecases.jobs.submit import Accepted
from domain.usecases.model_stock import ModelStock
from domain.usecases.model_swaps import ModelSwaps
from domain.values import JobId, JobStatus, Priority
from domain.webhook.ports import WebhookStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Answers a generation on the connection that asked for it.

    Attributes:
        submission: Accepts the job and opens its items.
        counter: Counts the tokens of a prompt.
        counts: Runs these counts.
        records: The cache diagnosis of a job.
        call: Runs what blocks.
        defaults: Values for the fields that a request leaves open.
        clock: For ``created`` stamps.
        ping_s: Most seconds of silence on a stream.
        opening_s: How long a stream waits for its first item before its head is sent.
    """

    submission: Submission
    counter: TokenCounter
    counts: BoundedCalls
    records: JobRecords
    call: BlockingCalls
    defaults: RequestDefaults
    clock: Clock
    ping_s: float
    opening_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobService:
    """Accepts, shows, cancels and retries jobs that outlive their connection.

    Attributes:
        submission: Accepts jobs.
        items: Opens the items of a job.
        eta: Forecasts for open jobs.
        webhooks: The webhooks of a job.
        cancellation: Cancels jobs.
        retries: Enqueues jobs again that ended without an answer.
        call: Runs what blocks.
        defaults: Values for the fields that a request leaves open.
        ping_s: Most seconds of silence on a stream.
    """

    submission: Submission
    records: JobRecords
    items: JobItems
    eta: EtaSource
    webhooks: WebhookStore
    cancellation: JobCancellation
    retries: JobRetry
    call: BlockingCalls
    defaults: RequestDefaults
    ping_s: float

    def create(self, parse: Parse, request: Request) -> tuple[Accepted, JobObject]:
        """Accept a job and return it as clients see it; blocks. See ``Submission.accept``."""
        accepted = self.submission.accept(parse, request, protocol="jobs")
        return accepted, self.load(accepted.job_id, request.caller)

    def load(self, job_id: JobId, caller: Caller) -> JobObject:
        """Return a job with its answer, what it found in the cache, and its webhooks; blocks.

        Raises:
            JobNotFound: There is no such job.
        """
        records = self.records
        view = records.views.get(job_id)
        if view is None:
            raise JobNotFound(job_id)
        return full_job_object(
            view,
            self.wait_of(view),
            answer=records.read_stored(view),
            # Before its first attempt a job has looked nothing up in the cache.
            diagnosis=records.diagnose(job_id) if view.attempt else None,
            # The URLs of the settings belong to the operator.
            webhooks=[
                one
                for one in self.webhooks.of_subject(job_id, limit=SHOWN_MAX)
                if caller.sees in {None, one.owner}
            ],
        )

    def summarise(self, view: JobView) -> JobObject:
        """Return a job without its answer; blocks."""
        return job_object(view, self.wait_of(view))

    def wait_of(self, view: JobView) -> Forecast | None:
        """Return the forecast of an open job; blocks."""
        if view.status.is_terminal:
            return None
        if view.status is JobStatus.QUEUED and self.submission.models.loaded.awaits_model(view):
            return awaiting_model(Priority(view.priority))
        return self.eta.of(view.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseService:
    """Keeps responses, so that later requests can refer to them.

    Attributes:
        generation: Answers on the connection.
        reader: The recorded responses.
        items: Opens the items of a response.
        cancellation: Cancels the job of a response.
        call: Runs what blocks.
    """

    generation: Generation
    reader: ResponseReader
    items: JobItems
    cancellation: JobCancellation
    call: BlockingCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentService:
    """Agents that keep their own history.

    Attributes:
        turns: Adds turns.
        jobs: Shows the job of a turn.
        reader: The recorded agents.
        contexts: Their cached contexts.
        call: Runs what blocks.
        ids: Fresh ids.
        ownership: Whose agent a name is.
    """

    turns: AgentTurns
    jobs: JobService
    reader: AgentReader
    contexts: AgentContexts
    records: AgentRecords
    call: BlockingCalls
    ids: IdSource
    ownership: OwnershipCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class EventService:
    """Shows the event log.

    Attributes:
        payloads: The texts that name clients.
        clock: Now.
        call: Runs what blocks.
        ping_s: Most seconds of silence on a stream.
    """

    log: EventLog
    payloads: PayloadStore
    clock: Clock
    call: BlockingCalls
    ping_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelService:
    """Shows the registered models.

    Attributes:
        stock: The registered models and their states.
        call: Runs what blocks.
    """

    stock: ModelStock
    call: BlockingCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapService:
    """Starts and shows swaps of the loaded model.

    Attributes:
        swaps: The swaps in the log.
        pulses: The living workers.
        registry: Returns the registered models.
        nudge: Notifies the workers of a topic.
        call: Runs what blocks.
        ping_s: Most seconds of silence on a stream.
    """

    swaps: ModelSwaps
    pulses: WorkerPulses
    registry: Callable[[], ModelRegistry]
    nudge: Callable[[ControlTopic], None]
    call: BlockingCalls
    ping_s: float

    def request(self, name: str, *, drain_s: float, worker: str, correlation_id: str) -> Swap:
        """Record that another model is wanted, and notify the workers; blocks.

        Args:
            name: A registered name or an alias.
            drain_s: Seconds that running jobs have to finish.
            worker: Id or place of the only worker that is meant; empty for all workers.
            correlation_id: The request.

        Raises:
            InvalidRequest: The model computes vectors; it serves beside the others.
            ModelNotFound: No model is registered by that name.
            WorkerNotFound: No living worker has that id or place.
            LogUnavailable: Nothing was written.
        """
        registry = self.registry()
        entry = registry.get(name)
        if entry is None:
            raise ModelNotFound(name, known=tuple(one.name for one in registry.entries()))
        require_kind(entry, ModelKind.CHAT)
        swap = self.swaps.request(
            entry.name,
            drain_s=drain_s,
            place=self._place(worker) if worker else "",
            correlation_id=correlation_id,
        )
        with suppress(QueueUnavailable):  # the workers look at the log by themselves too
            self.nudge(ControlTopic.MODELS)
        return swap

    def _place(self, worker: str) -> str:
        alive = self.pulses.alive()
        for pulse in alive:
            if pulse.place and worker in {pulse.worker, pulse.place}:
                return pulse.place
        raise WorkerNotFound(worker, known=[one.place or one.worker for one in alive])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineService:
    """Shows and changes values of the engine and the admission of jobs.

    Attributes:
        controls: What operators have changed.
        settings: Values where operators have changed none.
        pulses: The living workers.
        views: The jobs projection.
        call: Runs what blocks.
    """

    controls: EngineControls
    settings: EngineValues
    pulses: WorkerPulses
    views: JobViews
    call: BlockingCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusService:
    """Shows the state of the process and its workers.

    Attributes:
        pulses: The living workers.
        views: The jobs projection.
        call: Runs what blocks.
        version: Of this software.
        model: The name of the served model.
    """

    log: EventLog
    pulses: WorkerPulses
    views: JobViews
    call: BlockingCalls
    version: str
    model: str
    health: HealthChecks
    document: OpenApiDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageService:
    """Sums of ended jobs.

    Attributes:
        usage: The usage projection.
        call: Runs what blocks.
    """

    usage: UsageViews
    call: BlockingCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipService:
    """Decides whether a caller may use a thing.

    Attributes:
        check: The decisions.
        call: Runs what blocks.
    """

    check: OwnershipCheck
    call: BlockingCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of all routes."""

    generation: Generation
    jobs: JobService
    responses: ResponseService
    agents: AgentService
    batches: BatchServices
    webhooks: WebhookServices
    events: EventService
    engine: EngineService
    metrics: MetricsService
    models: ModelService
    swaps: SwapService
    overview: OverviewService
    usage: UsageService
    status: StatusService
    ownership: OwnershipService
