"""Compose and run the api process: public socket, log, Redis, services, HTTP server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib.metadata import version

from api.access.limits import AgentLimits, JobLimits, KeyJobs, Rate, WebhookPolicy
from api.app import App, MetricPorts
from api.calls import BlockingCalls, BoundedCalls
from api.dialects.batches.lines import BatchLines
from api.dialects.batches.objects import batch_message
from api.dialects.jobs.objects import summarise_job
from api.dialects.jobs.schedules import schedule_runner
from api.framework.lifecycle import Service, serve
from api.framework.listener import open_listener_or_exit
from api.loops.batches import BatchThread, LineThreads
from api.loops.forecasts import SAMPLE_S, LiveEta, LiveRates
from api.loops.periodic_tasks import ERASE_S, PeriodicTasks, open_sweeper
from api.loops.webhooks import WebhookThread
from api.operations import routes
from domain.batch.driver import BatchDriver
from domain.engine.operate import EngineControls
from domain.engine.presence import LoadedModels
from domain.errors import SemanticError
from domain.events.event import Event
from domain.job.cancel import JobCancellation
from domain.job.stranded import ABSENT_S, DueJobs, StrandedJobs
from domain.job.submit import JobSubmission
from domain.model.registry import ServingModels
from domain.model.swaps import ModelSwaps, OnDemandRules, OnDemandSwaps
from domain.model.wanted_model import DRAIN_S
from domain.ports import Clock
from domain.values import Owner
from domain.webhook.send import WebhookCollector
from ops.broker.address import resolve_broker_url
from ops.broker.client import BrokerClient, Keys, connect, connect_async
from ops.broker.control import RedisControlSignals, RedisWorkerPulses
from ops.broker.dramatiq_queue import DramatiqJobQueue
from ops.broker.items import RedisItemBacklog, RedisItemHub, RedisItemSink
from ops.broker.worker_requests import (
    REPLY_TIMEOUT_S,
    WAITING_MAX,
    RedisBlockPlaces,
    RedisTokenCounter,
)
from ops.clock import RandomIds, SystemClock
from ops.data_dir.free_space import DiskFloor, floor_of
from ops.data_dir.lock import DataDirLocked, DataLock, is_served
from ops.data_dir.permissions import create_private_files
from ops.exit_codes import after_failed_start
from ops.liveness.child import ORPHAN_S, Lifeline, watch_lifeline
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.models.registry import RegistryReader, first_model
from ops.observe.counter_file import CounterFile
from ops.observe.logs import Logger, configure_logging
from ops.observe.open import open_spans
from ops.settings.models import ModelsSettings
from ops.settings.service import (
    ServerSettings,
)
from ops.settings.settings import Settings, load_part_settings
from ops.webhooks.sender import HttpWebhookSender, check_urls, webhook_secret
from ops.webhooks.store import SqlWebhookStore

#: Threads for blocking calls: appends (group commit makes concurrent waits cheap) and the queue.
BLOCKING_CALLS_MAX = 32
#: Threads for token counts. A worker serves one after the other, so more threads would only wait.
COUNTS_AT_ONCE = 8
#: How long cancellations of clients that left may take at the end, in seconds.
BACKGROUND_DRAIN_S = 3.0
#: Time between two searches for jobs whose deadline or start has come, in seconds.
EXPIRE_S = 1.0
#: Time between two searches for jobs whose model no worker has, in seconds.
ABSENT_CHECK_S = 2.0
#: Time between two tries to hold the reserve of the disk again, in seconds.
DISK_CHECK_S = 2.0
#: How long a stream waits for its first item before its head is sent, in seconds. An idle worker
#: publishes it within milliseconds, and rejects a prompt that is too long within seconds.
OPENING_S = 5.0


def build(
    settings: Settings, stack: ExitStack, *, batch_woken: threading.Event
) -> tuple[App, RedisItemHub]:
    """Connect the adapters, which ``stack`` closes; raise where the log or the broker is away."""
    clock, ids = SystemClock(), RandomIds()
    disk = floor_of(settings.disk, log_file=settings.log_file, data_dir=settings.data_dir)
    log = _open_log(settings, stack, clock, disk)
    client, hub, keys = _broker(settings, stack)
    pulses, signals = RedisWorkerPulses(client, keys), RedisControlSignals(client, keys)
    controls = EngineControls(log=log, ids=ids, signals=signals)
    queue, backlog = DramatiqJobQueue(client, keys), RedisItemBacklog(client, keys)
    sink, places = RedisItemSink(client, keys), RedisBlockPlaces(client, keys, pulses)
    models = LoadedModels(pulses, clock, swaps_on_demand=settings.models.swaps_on_demand)
    serving = ServingModels(pulses, clock)
    job_limits, agents, webhook_policy = _limits(settings)
    counting = _executor(stack, COUNTS_AT_ONCE, "counting")
    webhook_store = stack.enter_context(closing(SqlWebhookStore(settings.log_url)))
    app = App(
        log=log,
        payloads=log,
        owners=log.owners,
        views=log.views,
        metrics=_metrics(settings, log, stack),
        agent_views=log.agents,
        eta=LiveEta(log.views, pulses, models, clock, admission=controls.admission),
        job_submission=JobSubmission(log=log, queue=queue, ids=ids),
        cancellation=JobCancellation(
            log=log, payloads=log, queue=queue, sink=sink, backlog=backlog, signals=signals, ids=ids
        ),
        backlog=backlog,
        source=hub,
        pulses=pulses,
        serving=serving,
        controls=controls,
        swaps=ModelSwaps(log=log, ids=ids),
        engine_settings=settings.engine.values,
        counter=RedisTokenCounter(client, keys),
        places=places,
        clock=clock,
        ids=ids,
        executor=_executor(stack, BLOCKING_CALLS_MAX, "blocking"),
        counts=BoundedCalls(counting, "token counts", most=WAITING_MAX, wait_s=REPLY_TIMEOUT_S),
        batch_views=log.batches,
        wake_batches=batch_woken.set,
        webhook_store=webhook_store,
        shares_blocks=settings.cache.share_between_keys,
        webhook_policy=webhook_policy,
        version=version("semantic"),
        model=first_model(settings).name,
        models=models,
        rates=LiveRates(pulses, log.views, clock),
        registry=RegistryReader(
            settings, announced=lambda: [card.id for card in serving.cards()]
        ).current,
        job_limits=job_limits,
        agents=agents,
        opening_s=OPENING_S,
        disk=disk,
    )
    return app, hub


def _limits(settings: Settings) -> tuple[JobLimits, AgentLimits, WebhookPolicy]:
    jobs, server, webhooks = settings.jobs, settings.server, settings.webhooks
    return (
        JobLimits(max_tokens_default=jobs.max_tokens_default, queue_limit=jobs.queue_limit),
        AgentLimits(
            rate=Rate(server.agent_requests_per_minute, whose="agent"),
            jobs_at_once=server.agent_jobs_at_once,
        ),
        WebhookPolicy(from_requests=webhooks.from_requests, allow_hosts=webhooks.allow_hosts),
    )


def _work_admission(
    server: ServerSettings, disk: DiskFloor, open_jobs: Callable[[Owner], int]
) -> Callable[[Sequence[Event]], None]:
    """Return the check of new work: the disk has space for it, and the key may have more jobs."""
    jobs = KeyJobs(open_jobs=open_jobs, at_once=server.key_jobs_at_once)

    def admit(events: Sequence[Event]) -> None:
        disk.require_space()
        jobs.admit(events)

    return admit


def _absent_models(models: ModelsSettings, app: App) -> Callable[[], None]:
    """Return the action to repeat: swap to a model that is due, and end stranded jobs."""
    rules, absent_s = OnDemandRules(), ABSENT_S
    if models.swaps_on_demand:
        # Time for another model's turn, and for two drains.
        absent_s += rules.wait_max_s + rules.residence_min_s + 2 * DRAIN_S
    stranded = StrandedJobs(
        views=app.views,
        models=app.models,
        cancellation=app.cancellation,
        clock=app.clock,
        absent_s=absent_s,
        is_registered=lambda model: app.registry().get(model) is not None,
    )
    swaps = OnDemandSwaps(
        views=app.views,
        models=app.models,
        swaps=app.swaps,
        signals=app.cancellation.signals,
        clock=app.clock,
        rules=rules,
    )

    def swap_and_end_stranded() -> None:
        if models.swaps_on_demand:
            swaps.swap_if_due()
        stranded.end_stranded()

    return swap_and_end_stranded


def _metrics(settings: Settings, log: SqlEventLog, stack: ExitStack) -> MetricPorts:
    counters = CounterFile(None)
    # A second api of the data directory keeps no totals on the disk.
    with suppress(DataDirLocked):
        stack.enter_context(DataLock(settings.data_dir / "api.lock"))
        counters = CounterFile(settings.data_dir / "api.counters.json")
    return MetricPorts(
        queue=log.views,
        usage=log.usage,
        writer=log.figures,
        counters=counters,
        agents_max=settings.metrics.agents_max,
        aliases=settings.metrics.vllm_names,
    )


def _open_log(settings: Settings, stack: ExitStack, clock: Clock, disk: DiskFloor) -> SqlEventLog:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    upgrade(settings.log_url)
    disk.renew()
    log = stack.enter_context(open_log(settings.log_url, clock=clock))
    log.admit_work = _work_admission(settings.server, disk, log.views.open_jobs_of)
    return log


def _broker(settings: Settings, stack: ExitStack) -> tuple[BrokerClient, RedisItemHub, Keys]:
    url, keys = resolve_broker_url(settings), Keys(settings.redis.prefix)
    client = connect(url)
    stack.callback(client.close)
    return client, RedisItemHub(connect_async(url), keys), keys


def _executor(stack: ExitStack, threads: int, name: str) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
    stack.callback(executor.shutdown, wait=False, cancel_futures=True)
    return executor


def _batch_driver(app: App, stack: ExitStack) -> BatchDriver:
    threads = LineThreads()
    stack.callback(threads.close)
    return BatchDriver(
        batches=app.batch_records,
        files=app.file_records,
        jobs=app.views,
        payloads=app.payloads,
        submission=app.job_submission,
        cancellation=app.cancellation,
        clock=app.clock,
        protocol=BatchLines(app),
        spread=threads,
        has_own_line=app.models.has_own_line,
    )


def _webhook_thread(settings: Settings, app: App, logger: Logger) -> WebhookThread:
    """Return the thread that delivers webhooks.

    Raises:
        InvalidRequest: A URL of the settings may not be called.
        LogUnavailable: The secret cannot be read or created.
    """
    wanted = settings.webhooks
    check_urls(wanted.urls, wanted.allow_hosts)
    collector = WebhookCollector(
        log=app.log,
        store=app.webhook_store,
        ids=app.ids,
        clock=app.clock,
        describe_job=partial(summarise_job, app),
        describe_batch=batch_message,
        urls=wanted.urls,
        subscriptions=app.subscriptions,
    )
    sender = partial(
        HttpWebhookSender,
        secret=webhook_secret(wanted, settings.data_dir),
        clock=app.clock,
        allow_hosts=wanted.allow_hosts,
        user_agent=f"semantic/{app.version}",
    )
    return WebhookThread(collector, sender, logger=logger, tries=app.metrics.tries)


def _periodic_tasks(
    settings: Settings, app: App, call: BlockingCalls, logger: Logger, stack: ExitStack
) -> list[PeriodicTasks]:
    due = DueJobs(views=app.views, clock=app.clock, cancellation=app.cancellation)
    sweeper = open_sweeper(settings, stack, places=app.places)
    actions = (
        ("deadlines", EXPIRE_S, due.expire_overdue),
        ("held_jobs", EXPIRE_S, due.release_due),
        ("schedules", EXPIRE_S, app.once(schedule_runner).fire_due),
        ("absent_models", ABSENT_CHECK_S, _absent_models(settings.models, app)),
        ("rates", SAMPLE_S, app.rates.sample),
        ("disk", DISK_CHECK_S, app.disk.renew),
        ("erasing", ERASE_S, sweeper.run),
    )
    return [
        PeriodicTasks(name, interval_s, partial(call, action), logger=logger)
        for name, interval_s, action in actions
    ]


def run(settings: Settings, logger: Logger, lifeline: Lifeline) -> int:
    """Serve until a signal ends the process; return only if the start failed.

    The public socket is bound first, so that a taken port is reported at once.
    """
    listener = open_listener_or_exit(settings.server)
    with ExitStack() as stack:
        try:
            woken = threading.Event()
            app, hub = build(settings, stack, batch_woken=woken)
            webhooks = _webhook_thread(settings, app, logger)
            hub.on_announced = webhooks.record_traffic
        except SemanticError as error:
            logger.error("cannot_serve", why=error.message)  # noqa: TRY400 - the message suffices
            return int(after_failed_start(error))

        driver = _batch_driver(app, stack)
        batches = BatchThread(driver, woken=woken, logger=logger)

        spans = open_spans(settings.tracing, part="api", logger=logger)
        call = app.call
        periodic = _periodic_tasks(settings, app, call, logger, stack)

        async def on_start() -> None:
            await hub.start()
            batches.start()
            webhooks.start()
            for task in periodic:
                task.start()

        async def on_stop() -> None:
            for task in periodic:
                await task.close()
            await call(batches.close)
            await call(webhooks.close)
            await app.background.drain(BACKGROUND_DRAIN_S)
            await hub.close()
            await call(spans.close)
            stack.close()

        return serve(
            Service(
                routes=routes(app),
                settings=settings.server,
                listener=listener,
                on_start=on_start,
                on_stop=on_stop,
                on_listening=lambda host, port: logger.info("listening", host=host, port=port),
                logger=logger,
                draining=app.draining,
                limit_s=lifeline.limit_s,
                counts=app.metrics.requests,
                spans=spans,
            )
        )


def main() -> int:
    """Run the api until SIGTERM, SIGINT or the end of its supervisor."""
    create_private_files()
    settings = load_part_settings()
    logger = configure_logging("api", level=settings.log.level, format=settings.log.format)
    lifeline = watch_lifeline(
        lambda: os.kill(os.getpid(), signal.SIGTERM),
        orphan_s=ORPHAN_S,
        has_successor=partial(is_served, settings.data_dir),
    )
    return run(settings, logger, lifeline)
