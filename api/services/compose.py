"""Composes the services of the routes from the ports."""

from __future__ import annotations

from api.access.ownership import OwnershipCheck
from api.background.batches import BatchServices
from api.background.tasks import BlockingCalls
from api.background.webhooks import WebhookServices
from api.presenters.openapi import OpenApiDocument
from api.services.agent_reader import AgentReader
from api.services.health import HealthChecks
from api.services.metrics.agent_totals import AgentTotals
from api.services.metrics.fleet_metrics import FleetMetrics
from api.services.metrics.log_metrics import LogMetrics
from api.services.metrics.service import ApiMetrics, MetricsService
from api.services.overview import OverviewService
from api.services.ports import ApiPorts
from api.services.response_reader import ResponseReader
from api.services.route_services import (
    AgentService,
    EngineService,
    EventService,
    Generation,
    JobService,
    ModelService,
    OwnershipService,
    ResponseService,
    Services,
    StatusService,
    SwapService,
    UsageService,
)
from api.streaming.job_items import JobItems
from api.streaming.job_readers import JobReaders
from api.streaming.log_backfill import JobRecords, LogBackfill
from api.submission.agent_turns import AgentTurns
from api.submission.job_commands import JobCommands
from api.submission.model_binding import ModelBinding
from api.submission.submit import Submission
from domain.usecases.agent_contexts import AgentContexts
from domain.usecases.agents import AgentRecords
from domain.usecases.batches.batches import BatchRecords
from domain.usecases.batches.files import FileRecords
from domain.usecases.model_stock import ModelStock
from domain.usecases.recent_ends import RecentEnds
from domain.usecases.webhooks import WebhookRetry
from ops.metrics.process_metrics import ProcessMetrics


def compose(ports: ApiPorts) -> Services:
    """Return the services over the ports."""
    call = BlockingCalls(ports.executor)
    records = JobRecords(log=ports.log, payloads=ports.payloads, views=ports.views)
    items = JobItems(
        source=ports.source,
        backfill=LogBackfill(records=records, backlog=ports.backlog),
        call=call,
        look_s=ports.look_s,
    )
    submission = _submission(ports, call, items)
    generation = Generation(
        submission=submission,
        counter=ports.counter,
        counts=ports.counts,
        records=records,
        call=call,
        defaults=ports.defaults,
        clock=ports.clock,
        ping_s=ports.ping_s,
        opening_s=ports.opening_s,
    )
    jobs = JobService(
        submission=submission,
        records=records,
        items=items,
        eta=ports.eta,
        webhooks=ports.webhook_store,
        cancellation=ports.cancellation,
        retries=ports.retries,
        call=call,
        defaults=ports.defaults,
        ping_s=ports.ping_s,
    )
    return Services(
        generation=generation,
        jobs=jobs,
        responses=ResponseService(
            generation=generation,
            reader=ResponseReader(records=records, ownership=submission.commands.ownership),
            items=items,
            cancellation=ports.cancellation,
            call=call,
        ),
        agents=_agents(ports, jobs),
        batches=_batches(ports, call, submission.commands.ownership),
        webhooks=_webhooks(ports, call),
        engine=_engine(ports, call),
        events=_events(ports, call),
        metrics=_metrics(ports, call),
        models=_models(ports, call),
        swaps=_swaps(ports, call),
        overview=_overview(ports, call, records),
        usage=UsageService(usage=ports.metrics.usage, call=call),
        status=_status(ports, call),
        ownership=OwnershipService(check=submission.commands.ownership, call=call),
    )


def _swaps(ports: ApiPorts, call: BlockingCalls) -> SwapService:
    return SwapService(
        swaps=ports.swaps,
        pulses=ports.pulses,
        registry=ports.registry,
        nudge=ports.cancellation.signals.nudge,
        call=call,
        ping_s=ports.ping_s,
    )


def _engine(ports: ApiPorts, call: BlockingCalls) -> EngineService:
    return EngineService(
        controls=ports.controls,
        settings=ports.engine_settings,
        pulses=ports.pulses,
        views=ports.views,
        call=call,
    )


def _submission(ports: ApiPorts, call: BlockingCalls, items: JobItems) -> Submission:
    models = ModelBinding(registry=ports.registry, loaded=ports.models)
    return Submission(
        log=ports.log,
        payloads=ports.payloads,
        views=ports.views,
        jobs=ports.submission,
        ids=ports.ids,
        clock=ports.clock,
        eta=ports.eta,
        require_admission=ports.controls.require_admission,
        rules=ports.rules,
        agents=ports.agents,
        models=models,
        commands=JobCommands(
            rules=ports.rules,
            agents=ports.agents,
            webhook_policy=ports.webhook_policy,
            models=models,
            ownership=OwnershipCheck(
                owners=ports.owners,
                webhooks=ports.webhook_store,
                shares_blocks=ports.shares_blocks,
            ),
            clock=ports.clock,
        ),
        call=call,
        background=ports.background,
        items=items,
        readers=JobReaders(
            connections=ports.connections,
            cancellation=ports.cancellation,
            background=ports.background,
            call=call,
            grace_s=ports.rules.disconnect_grace_s,
            pause=ports.pause,
        ),
    )


def _agents(ports: ApiPorts, jobs: JobService) -> AgentService:
    agents = AgentRecords(
        log=ports.log,
        views=ports.views,
        payloads=ports.payloads,
        ids=ports.ids,
        listing=ports.agent_views,
    )
    return AgentService(
        turns=AgentTurns(submission=jobs.submission, records=agents, defaults=ports.defaults),
        jobs=jobs,
        reader=AgentReader(agents=agents, records=jobs.records),
        contexts=AgentContexts(log=ports.log, places=ports.places, ids=ports.ids),
        records=agents,
        call=jobs.call,
        ids=ports.ids,
        ownership=jobs.submission.commands.ownership,
    )


def _events(ports: ApiPorts, call: BlockingCalls) -> EventService:
    return EventService(
        log=ports.log,
        payloads=ports.payloads,
        clock=ports.clock,
        call=call,
        ping_s=ports.ping_s,
    )


def _webhooks(ports: ApiPorts, call: BlockingCalls) -> WebhookServices:
    retries = WebhookRetry(
        log=ports.log, store=ports.webhook_store, ids=ports.ids, clock=ports.clock
    )
    return WebhookServices(store=ports.webhook_store, retries=retries, call=call)


def _batches(ports: ApiPorts, call: BlockingCalls, ownership: OwnershipCheck) -> BatchServices:
    return BatchServices(
        records=BatchRecords(log=ports.log, views=ports.batch_views, ids=ports.ids),
        files=FileRecords(log=ports.log, views=ports.batch_views, ids=ports.ids, clock=ports.clock),
        payloads=ports.payloads,
        ids=ports.ids,
        clock=ports.clock,
        call=call,
        lines=ports.batch_lines,
        wake=ports.wake_batches,
        rules=ports.batch_rules,
        webhook_policy=ports.webhook_policy,
        require_admission=ports.controls.require_admission,
        ownership=ownership,
    )


def _metrics(ports: ApiPorts, call: BlockingCalls) -> MetricsService:
    return MetricsService(
        log=LogMetrics(
            log=ports.log,
            usage=ports.metrics.usage,
            agents=AgentTotals(ports.metrics.usage, ports.clock, ports.metrics.agents_max),
            queue=ports.metrics.queue,
            webhooks=ports.webhook_store,
            controls=ports.controls,
            clock=ports.clock,
        ),
        fleet=FleetMetrics(ports.pulses),
        api=ApiMetrics(
            version=ports.version,
            requests=ports.metrics.requests,
            tries=ports.metrics.tries,
            writer=ports.metrics.writer,
            counters=ports.metrics.counters,
            disk=ports.disk,
            process=ProcessMetrics(),
        ),
        aliases=ports.metrics.aliases,
        call=call,
    )


def _models(ports: ApiPorts, call: BlockingCalls) -> ModelService:
    stock = ModelStock(
        log=ports.log,
        serving=ports.serving,
        registry=ports.registry,
        inspect=ports.inspect_model,
    )
    return ModelService(stock=stock, call=call)


def _overview(ports: ApiPorts, call: BlockingCalls, records: JobRecords) -> OverviewService:
    return OverviewService(
        views=ports.views,
        eta=ports.eta,
        pulses=ports.pulses,
        models=ports.models,
        controls=ports.controls,
        swaps=ports.swaps,
        ends=RecentEnds(ports.log, ports.views, records.diagnose),
        rates=ports.rates,
        usage=ports.metrics.usage,
        disk_floor=ports.disk,
        clock=ports.clock,
        version=ports.version,
        call=call,
        ping_s=ports.ping_s,
    )


def _status(ports: ApiPorts, call: BlockingCalls) -> StatusService:
    return StatusService(
        log=ports.log,
        pulses=ports.pulses,
        views=ports.views,
        call=call,
        version=ports.version,
        model=ports.model,
        health=HealthChecks(
            log=ports.log,
            pulses=ports.pulses,
            swaps=ports.swaps,
            controls=ports.controls,
            draining=ports.draining,
            disk=ports.disk,
        ),
        document=OpenApiDocument(ports.version),
    )
