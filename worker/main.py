"""Compose and run the worker: log, broker, engine, actor, and an orderly end.

lock → log → broker → engine (loads the model) → take over what was in hand → work → drain
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from domain.chat.ports import RecordedAnswers
from domain.errors import LogUnavailable, QueueUnavailable, SemanticError
from domain.events.model import ModelLoadFailed
from domain.events.worker import WorkerDraining, WorkerStopped
from domain.job.fair_scheduler import TurnOrder, TurnState
from domain.job.ports import JobQueue, WorkerPulse, WorkerPulses
from domain.log.ports import EventLog
from domain.usecases.jobs.count_tokens import count_tokens
from domain.usecases.jobs.reconcile import reconcile
from domain.usecases.jobs.run_attempt import Runner
from domain.usecases.recorded_answers import LoggedAnswers
from domain.values import Priority, WorkerId
from ops.adapters.data_dir.lock import DataDirLocked, DataLock
from ops.adapters.data_dir.worker_identity import WorkerIdentity
from ops.adapters.event_log.migrate import upgrade
from ops.adapters.event_log.sql_event_log import SqlEventLog, open_log
from ops.adapters.redis.client import BrokerClient, Keys, connect
from ops.adapters.redis.control import ControlListener, RedisWorkerPulses
from ops.adapters.redis.dramatiq_queue import BlockingRedisBroker, DramatiqJobQueue
from ops.adapters.redis.items import RedisItemBacklog, RedisItemSink
from ops.adapters.redis.token_counts import TokenCountServer
from ops.blockstore.report import ScanReport
from ops.blockstore.store import BlockStore
from ops.broker.address import resolve_broker_url
from ops.clock import RandomIds, SystemClock, uuid7_hex
from ops.exit_codes import ExitCode
from ops.heartbeat import BEAT_S, take_heartbeat
from ops.logs import Logger, configure_logging
from ops.parent_watch import watch_lifeline
from ops.settings import Settings, load_settings
from worker.active_jobs import ActiveJobs, cancel_if_recorded, cancel_where_recorded
from worker.actors import declare_actors
from worker.cache_event_recorder import CacheEventRecorder
from worker.cache_gauge import CacheGauge
from worker.cachestore.tier import DiskTier, Storage
from worker.consumers import Consumers
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import ModelLoadError
from worker.periodic_tasks import PeriodicTask
from worker.turn_scheduler import TurnScheduler
from worker.worker_event_recorder import WorkerEventRecorder, library_versions

#: The engine thread comes back from native code every few milliseconds and must not wait the
#: default 5 ms for the interpreter while other threads format text.
SWITCH_INTERVAL_S = 0.0005
PULSE_S = 1.0
#: Jobs handed to the engine beyond its batch, so that a place that falls free is filled at once.
SLOTS_AHEAD = 2
#: Longest wait for the list of blocks once the model is loaded; beyond, blocks appear later.
SCAN_S_MAX = 5.0
#: What the end leaves for blocks on their way to the disk.
LAST_BLOCKS_S = 5.0
#: Beyond the drain time, for last events and items.
DRAIN_GRACE_S = 5.0


class _Contexts(NamedTuple):
    """What contexts are kept with: who writes about them, the disk, and the figures."""

    recorder: CacheEventRecorder
    tier: DiskTier | None
    gauge: CacheGauge


class WorkerProcess:
    """The running worker and the signals that end it.

    Args:
        settings: All knobs.
        logger: For the operator.
    """

    def __init__(self, settings: Settings, logger: Logger) -> None:
        self._settings = settings
        self._logger = logger
        self._worker = WorkerId(f"worker-{uuid7_hex()}")
        self._stop = threading.Event()
        self._state = "loading"
        self._turns = _turns(settings)
        self._on_forgotten: Callable[[], None] = lambda: None

    def request_stop(self) -> None:
        """Drain and end; before the model is loaded there is nothing to drain."""
        if self._state == "loading":
            os._exit(int(ExitCode.OK))
        self._stop.set()

    def run(self) -> int:
        """Work until asked to stop; return the exit code.

        Raises:
            SemanticError: A part that is needed from the start is not there.
        """
        with ExitStack() as stack:
            stack.enter_context(DataLock(self._settings.data_dir / "worker.lock"))
            return self._run(stack)

    def _run(self, stack: ExitStack) -> int:
        settings, clock, ids = self._settings, SystemClock(), RandomIds()
        upgrade(settings.log_url)
        log = stack.enter_context(open_log(settings.log_url, clock=clock))
        recorder = WorkerEventRecorder(self._worker, log=log, ids=ids)
        hand = self._enter(recorder)
        keys = Keys(settings.redis.prefix)
        client = connect(resolve_broker_url(settings))
        stack.callback(client.close)
        kept = settings.redis
        sink = RedisItemSink(client, keys, items_max=kept.items_max, ttl_s=kept.items_ttl_s)
        contexts = self._contexts(stack, log)
        engine = self._engine(sink, clock, contexts, LoggedAnswers(log=log, payloads=log))
        pulses = RedisWorkerPulses(client, keys)
        beat = partial(self._beat, pulses, engine, contexts.gauge)
        stack.enter_context(PeriodicTask("pulse", PULSE_S, beat))
        self._load(engine, recorder, contexts.tier)
        stack.enter_context(PeriodicTask("heartbeat", BEAT_S, take_heartbeat()))

        active, turns = ActiveJobs(), self._turns
        runner = Runner(
            worker=self._worker,
            log=log,
            payloads=log,
            engine=engine,
            sink=sink,
            backlog=RedisItemBacklog(client, keys),
            clock=clock,
            ids=ids,
            running=active,
            turns=turns,
        )
        queue = DramatiqJobQueue(client, keys)
        upkeep = self._upkeep(log, queue, active)
        self._on_forgotten = upkeep.wake
        self._listen(stack, client, keys, active, log)
        stack.enter_context(
            TokenCountServer(client, keys, count=lambda request: count_tokens(request, engine))
        )
        broker = BlockingRedisBroker(client, keys, broker_id=hand, shared_hand_max=_slots(settings))
        declare_actors(broker, runner, draining=self._stop)
        if taken_over := broker.requeue_in_hand():
            self._logger.info("took_over", jobs=taken_over)
        upkeep.start()
        consumers = self._consume(broker)
        self._state = "ready"
        self._stop.wait()
        self._state = "draining"
        recorder.record(WorkerDraining(worker=self._worker))
        upkeep.close()
        self._drain(engine, consumers, turns, active)
        recorder.record(WorkerStopped(worker=self._worker))
        return int(ExitCode.OK)

    def _upkeep(self, log: SqlEventLog, queue: JobQueue, active: ActiveJobs) -> PeriodicTask:
        """Look into the log for what was lost on its way: wishes to end a job, and jobs."""

        def look() -> None:
            cancel_where_recorded(active, log)
            reconcile(views=log.views, queue=queue)

        return PeriodicTask("reconcile", self._settings.jobs.reconcile_s, look)

    def _listen(
        self,
        stack: ExitStack,
        client: BrokerClient,
        keys: Keys,
        active: ActiveJobs,
        log: EventLog,
    ) -> None:
        """Hear nudges; whenever that begins, also anew, look for what was missed."""

        def begin() -> None:
            self._on_forgotten()
            cancel_where_recorded(active, log)

        listener = ControlListener(
            client,
            keys,
            on_cancel=lambda job_id: cancel_if_recorded(job_id, active, log),
            on_listening=begin,
        )
        listener.start()
        stack.callback(listener.stop)

    def _enter(self, recorder: WorkerEventRecorder) -> str:
        """Record this worker in the data directory; return the directory's broker id."""
        identity = WorkerIdentity(self._settings.data_dir / "worker.json")
        previous = identity.previous_worker
        if previous is not None and recorder.record_lost(previous):
            self._logger.warning("worker_lost", worker=previous)
        identity.record(self._worker)
        return identity.broker_id

    def _contexts(self, stack: ExitStack, log: EventLog) -> _Contexts:
        recorder = CacheEventRecorder(self._worker, log=log, ids=RandomIds(), clock=SystemClock())
        stack.enter_context(recorder)
        tier = self._tier(stack, recorder)
        return _Contexts(recorder, tier, CacheGauge(tier, partial(recorder.record_evicted, "ram")))

    def _tier(self, stack: ExitStack, recorder: CacheEventRecorder) -> DiskTier | None:
        """Begin to look through the block store, if contexts are to outlive this process."""
        settings, clock = self._settings, SystemClock()
        if not (settings.cache.persist and settings.engine.reuse):
            return None
        store = BlockStore(
            settings.cache_dir,
            budget_bytes=settings.cache.disk_budget_bytes,
            clock=clock,
            on_event=recorder.record,
        )
        tier = DiskTier(
            store,
            clock=clock,
            storage=Storage(settings.cache.storage),
            on_event=recorder.record,
            on_scanned=self._log_scan,
        )
        tier.start()
        stack.callback(tier.close, LAST_BLOCKS_S)
        return tier

    def _log_scan(self, report: ScanReport) -> None:
        self._logger.info(
            "cache_scanned",
            blocks=report.blocks,
            size_mb=report.size_bytes // 10**6,
            took_ms=round(report.took_ms),
        )

    def _engine(
        self,
        sink: RedisItemSink,
        clock: SystemClock,
        contexts: _Contexts,
        answers: RecordedAnswers,
    ) -> BatchEngine:
        settings = self._settings
        source = ModelSource(
            id=settings.model.id,
            name=settings.model.name,
            context_length=settings.model.context_length,
            digest_cache=settings.data_dir / "digests.json",
        )
        return BatchEngine(
            runner_factory=lambda: contexts.gauge.watch(
                BatchRunner(
                    load_weights=lambda: load_weights(source, answers),
                    prefill_step_tokens=settings.engine.prefill_step_tokens,
                    gap_max_ms=settings.engine.gap_max_ms,
                    kv_budget_bytes=settings.engine.kv_budget_bytes,
                    reuse=settings.engine.reuse,
                    tier=contexts.tier,
                    on_context=contexts.recorder.record,
                )
            ),
            sink=sink,
            clock=clock,
            max_batch_size=settings.engine.max_batch_size,
            stream_interval_s=settings.engine.stream_interval_ms / 1000,
            batch_window_s=settings.engine.batch_window_ms / 1000,
        )

    def _load(
        self, engine: BatchEngine, recorder: WorkerEventRecorder, tier: DiskTier | None
    ) -> None:
        model = self._settings.model.id
        self._logger.info("model_loading", model=model)
        began = time.monotonic()
        try:
            engine.start()
        except SemanticError as error:
            failed = ModelLoadFailed(worker=self._worker, model=model, message=error.message)
            recorder.record(failed)
            raise
        load_ms = (time.monotonic() - began) * 1000
        card = engine.card()
        recorder.record_started(card, load_ms=load_ms, versions=library_versions())
        self._logger.info(
            "model_ready", model=card.id, context=card.context_length, load_ms=round(load_ms)
        )
        if tier is not None and not tier.wait_scanned(SCAN_S_MAX):
            self._logger.warning("cache_not_scanned_yet", dir=str(self._settings.cache_dir))

    def _consume(self, broker: BlockingRedisBroker) -> Consumers:
        jobs = self._settings.jobs
        threads = {
            Priority.INTERACTIVE: jobs.worker_threads,
            Priority.BATCH: jobs.batch_threads,
        }
        consumers = Consumers(broker, threads)
        consumers.start()
        return consumers

    def _drain(
        self, engine: BatchEngine, consumers: Consumers, turns: TurnScheduler, active: ActiveJobs
    ) -> None:
        """Let running generations finish for a while; the rest is left for the next worker."""
        turns.close()
        drain_s = self._settings.server.drain_s
        self._logger.info("draining", jobs=len(active), seconds=drain_s)
        closer = threading.Thread(target=engine.close, args=(drain_s,), name="engine-close")
        closer.start()
        consumers.stop(drain_s + DRAIN_GRACE_S)
        closer.join(DRAIN_GRACE_S)

    def _beat(self, pulses: WorkerPulses, engine: BatchEngine, gauge: CacheGauge) -> None:
        if self._state == "ready" and not engine.is_alive():
            self._logger.critical("engine_dead")
            # The supervisor starts a new worker, which takes over every job in hand.
            os._exit(int(ExitCode.FAILED))
        card = engine.card() if self._state == "ready" else None
        known = pulses.beat(
            WorkerPulse(
                worker=self._worker,
                pid=os.getpid(),
                state=self._state,
                model=card,
                cache=gauge.read(),
                turns=self._turn_state() if card is not None else None,
            )
        )
        if not known:
            # A broker that has forgotten us has forgotten the jobs too, or was away.
            self._on_forgotten()

    def _turn_state(self) -> TurnState:
        # Those that the engine gets ahead of time do not compute yet.
        return replace(self._turns.state(), slots=self._settings.engine.max_batch_size)


def _turns(settings: Settings) -> TurnScheduler:
    reserved = settings.jobs.interactive_reserved
    return TurnScheduler(TurnOrder(slots=_slots(settings), interactive_reserved=reserved))


def _slots(settings: Settings) -> int:
    return settings.engine.max_batch_size + SLOTS_AHEAD


def main() -> int:
    """Run a worker until SIGTERM, SIGINT or the end of its supervisor."""
    settings = load_settings()
    logger = configure_logging("worker", level=settings.log.level, format=settings.log.format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    process = WorkerProcess(settings, logger)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.request_stop())
    watch_lifeline(process.request_stop)
    try:
        return process.run()
    except (ModelLoadError, DataDirLocked) as error:
        logger.error("cannot_run", why=error.message)  # noqa: TRY400 - the line says it all
        return int(ExitCode.CONFIG)
    except (LogUnavailable, QueueUnavailable) as error:
        logger.error("cannot_start", why=error.message)  # noqa: TRY400 - as above
        return int(ExitCode.FAILED)


if __name__ == "__main__":
    sys.exit(main())
