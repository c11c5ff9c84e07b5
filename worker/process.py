"""The worker process, from its lock to its drain.

lock → log → broker → engine (loads the model) → take over deliveries → work → drain
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from domain.chat.request import ChatRequest
from domain.errors import SemanticError
from domain.events.model import ModelLoadFailed
from domain.events.worker import WorkerDraining
from domain.job.fair_scheduler import TurnOrder
from domain.job.ports import ControlTopic, ItemSink, JobQueue, WorkerPulses
from domain.log.ports import EventLog
from domain.usecases.engine_control import EngineControls
from domain.usecases.jobs.count_tokens import count_tokens
from domain.usecases.jobs.reconcile import JobReconciler
from domain.usecases.jobs.run_attempt import JobRunner
from domain.usecases.recorded_answers import LoggedAnswers
from domain.values import ModelCard, Priority, WorkerId
from ops.adapters.data_dir.lock import DataLock
from ops.adapters.data_dir.worker_identity import WorkerIdentity
from ops.adapters.event_log.migrate import upgrade
from ops.adapters.event_log.sql_event_log import SqlEventLog, open_log
from ops.adapters.redis.client import BrokerClient, Keys, connect
from ops.adapters.redis.control import ControlListener, RedisControlSignals, RedisWorkerPulses
from ops.adapters.redis.dramatiq_queue import BlockingRedisBroker, DramatiqJobQueue
from ops.adapters.redis.items import RedisItemBacklog, RedisItemSink
from ops.adapters.redis.token_counts import TokenCountServer, counts_wait
from ops.broker.address import resolve_broker_url
from ops.clock import RandomIds, SystemClock, uuid7_hex
from ops.exit_codes import ExitCode
from ops.heartbeat import BEAT_S, take_heartbeat
from ops.logs import Logger
from ops.models.registry import first_model
from ops.settings import Settings
from worker.active_jobs import ActiveJobs, cancel_if_recorded, cancel_where_recorded
from worker.actors import declare_actors
from worker.cachestore.cache_gauge import CacheGauge
from worker.cachestore.tier import DiskTier
from worker.consumers import Consumers
from worker.engine.engine import BatchEngine
from worker.engine.scheduling.step_watch import StepWatch
from worker.liveness.idle import IDLE_CHECK_S, IdleModel, UnloadedModel, unloaded_by
from worker.liveness.last_step import LastStepFile, read_last_step
from worker.liveness.periodic_tasks import PeriodicTask
from worker.liveness.pulse import PULSE_S, PulseReporter, WorkerState
from worker.liveness.stuck_step import CHECK_S, StuckStepGuard
from worker.recording.worker_event_recorder import WorkerEventRecorder, library_versions
from worker.tuning import LOOK_S, WorkerTuning, tuned
from worker.turn_scheduler import TurnScheduler

if TYPE_CHECKING:
    from worker.composition import CacheParts

#: Longest wait for the scan of the block store after the model is loaded, in seconds. Blocks that
#: the scan finds later become available then.
SCAN_S_MAX = 5.0
#: Seconds after the drain time for the last events and items.
DRAIN_GRACE_S = 5.0
#: Seconds after an error of the device for the ends of the running attempts to be recorded.
LAST_ATTEMPTS_S = 5.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connections:
    """The log and the broker, and the names under which this worker is known there."""

    log: SqlEventLog
    recorder: WorkerEventRecorder
    client: BrokerClient
    keys: Keys
    broker_id: str


class WorkerProcess:
    """The running worker.

    Args:
        settings: The service's settings.
        logger: For the operator.
    """

    def __init__(self, settings: Settings, logger: Logger) -> None:
        self._settings = settings
        self._model = first_model(settings)
        self._logger = logger
        self._worker = WorkerId(f"worker-{uuid7_hex()}")
        self._step_path = settings.data_dir / "worker.step"
        self._stop = threading.Event()
        self._state = WorkerState.LOADING
        self._last_card: ModelCard | None = None
        self._failed_as: ExitCode | None = None
        reserved = settings.jobs.interactive_reserved
        # The tuning sets the slots before the first turn.
        self._turns = TurnScheduler(TurnOrder(slots=1, interactive_reserved=reserved))
        self._request_reconcile: Callable[[], None] = lambda: None

    def request_stop(self) -> None:
        """Drain and end. While the model is loading, the process exits at once."""
        if self._state is WorkerState.LOADING:
            os._exit(int(ExitCode.OK))
        self._stop.set()

    def _fail(self, code: ExitCode) -> None:
        """End soon, with all KV; called before the running attempts end."""
        self._failed_as = code
        self._state = WorkerState.DRAINING
        self._stop.set()

    def run(self) -> int:
        """Work until ``request_stop``; return the exit code.

        Raises:
            SemanticError: The log, the broker or the model is not available at the start.
        """
        with ExitStack() as stack:
            stack.enter_context(DataLock(self._settings.data_dir / "worker.lock"))
            return self._run(stack)

    def _run(self, stack: ExitStack) -> int:
        settings = self._settings
        upgrade(settings.log_url)
        log = stack.enter_context(open_log(settings.log_url, clock=SystemClock()))
        recorder = WorkerEventRecorder(self._worker, log=log, ids=RandomIds())
        identity = WorkerIdentity(settings.data_dir / "worker.json")
        unloaded = unloaded_by(identity.previous_worker, log)
        self._record_identity(identity, recorder)
        client = connect(resolve_broker_url(settings))
        stack.callback(client.close)
        connections = _Connections(
            log=log,
            recorder=recorder,
            client=client,
            keys=Keys(settings.redis.prefix),
            broker_id=identity.broker_id,
        )
        if unloaded is not None and unloaded.id == self._model.name:
            self._last_card = unloaded
            if not self._wait_unloaded(unloaded, connections):
                return int(ExitCode.OK)
        return self._serve(stack, connections)

    def _wait_unloaded(self, card: ModelCard, to: _Connections) -> bool:
        """Wait without a model until it is needed; return ``False`` if the process must end."""
        waiting = UnloadedModel(
            worker=self._worker,
            pid=os.getpid(),
            card=card,
            pulses=RedisWorkerPulses(to.client, to.keys),
            views=to.log.views,
            counts_wait=partial(counts_wait, to.client, to.keys),
        )
        self._state = WorkerState.UNLOADED
        self._logger.info("model_unloaded", model=card.id)
        with PeriodicTask("pulse", PULSE_S, waiting.beat):
            is_needed = waiting.wait(self._stop)
        self._state = WorkerState.LOADING
        return is_needed and not self._stop.is_set()

    def _serve(self, stack: ExitStack, to: _Connections) -> int:
        """Load the model and work until the end; return the exit code."""
        # MLX takes memory that a worker without a model does not need.
        from worker.composition import open_cache  # noqa: PLC0415 - imports MLX

        settings, clock, ids = self._settings, SystemClock(), RandomIds()
        log, recorder, client, keys = to.log, to.recorder, to.client, to.keys
        redis = settings.redis
        sink = RedisItemSink(client, keys, items_max=redis.items_max, ttl_s=redis.items_ttl_s)
        cache = open_cache(stack, settings, worker=self._worker, log=log, logger=self._logger)
        controls = EngineControls(log=log, ids=ids, signals=RedisControlSignals(client, keys))
        engine = self._engine(stack, sink, cache, log, controls)
        broker = BlockingRedisBroker(client, keys, broker_id=to.broker_id)
        tuning = self._tuning(controls, engine, broker)
        pulse = self._pulse(RedisWorkerPulses(client, keys), engine, cache.gauge, tuning)
        stack.enter_context(PeriodicTask("pulse", PULSE_S, pulse.beat))
        self._load(engine, recorder, cache.tier)
        stack.enter_context(PeriodicTask("heartbeat", BEAT_S, take_heartbeat()))

        active = ActiveJobs()
        idle = IdleModel(settings.model.idle_ttl_s, active)
        runner = JobRunner(
            worker=self._worker,
            log=log,
            payloads=log,
            engine=engine,
            sink=sink,
            backlog=RedisItemBacklog(client, keys),
            clock=clock,
            ids=ids,
            running=active,
            turns=self._turns,
        )
        reconciler = self._reconciler(log, DramatiqJobQueue(client, keys), active)
        self._request_reconcile = reconciler.wake
        self._follow(stack, client, keys, active, log, tuning)

        def count(request: ChatRequest) -> int:
            idle.record_use()
            return count_tokens(request, engine)

        stack.enter_context(TokenCountServer(client, keys, count=count))
        declare_actors(broker, runner, draining=self._stop, model=self._model.name)
        if taken_over := broker.requeue_all_unacked():
            self._logger.info("took_over", jobs=taken_over)
        reconciler.start()
        consumers = self._consume(broker)
        self._state = WorkerState.READY
        is_idle = self._wait(idle)
        if self._failed_as is not None:
            self._leave(self._failed_as, active, cache.tier)
        self._state = WorkerState.DRAINING
        recorder.record(WorkerDraining(worker=self._worker))
        reconciler.close()
        card = engine.card()
        self._drain(engine, consumers, active)
        recorder.record_stopped(unloaded=card.id if is_idle else None)
        return int(ExitCode.IDLE if is_idle else ExitCode.OK)

    def _wait(self, idle: IdleModel) -> bool:
        """Wait until the process must end; return whether that is because the model is idle."""
        while not self._stop.wait(IDLE_CHECK_S):
            if idle.is_due():
                self._logger.info("model_idle", model=self._model.name)
                self._stop.set()
                return True
        return False

    def _engine(
        self,
        stack: ExitStack,
        sink: ItemSink,
        cache: CacheParts,
        log: SqlEventLog,
        controls: EngineControls,
    ) -> BatchEngine:
        """Return the engine, not started; its steps are watched."""
        from worker.composition import build_engine  # noqa: PLC0415 - imports MLX

        # The memory of a step is measured for the batch that is in force now.
        in_force = tuned(self._settings.engine, controls.current())
        last_step = stack.enter_context(LastStepFile(self._step_path, self._worker))
        watch = StepWatch(self._settings.engine.step_limit_s, on_step=last_step.write)
        engine = build_engine(
            self._settings.model_copy(update={"engine": in_force}),
            sink=sink,
            cache=cache,
            answers=LoggedAnswers(log=log, payloads=log),
            on_device_failure=partial(self._fail, ExitCode.DEVICE_FAILED),
            watch=watch,
            model=self._model,
        )
        stuck = partial(self._fail, ExitCode.STUCK)
        guard = StuckStepGuard(watch, engine, last_step, on_stuck=stuck, logger=self._logger)
        stack.enter_context(PeriodicTask("steps", CHECK_S, guard.check))
        return engine

    def _tuning(
        self, controls: EngineControls, engine: BatchEngine, queue: BlockingRedisBroker
    ) -> WorkerTuning:
        """Return what operators have changed, applied."""
        settings, turns, logger = self._settings.engine, self._turns, self._logger
        return WorkerTuning(
            controls, settings, engine=engine, turns=turns, queue=queue, logger=logger
        )

    def _pulse(
        self,
        pulses: WorkerPulses,
        engine: BatchEngine,
        gauge: CacheGauge,
        tuning: WorkerTuning,
    ) -> PulseReporter:
        return PulseReporter(
            worker=self._worker,
            pulses=pulses,
            engine=engine,
            gauge=gauge,
            turns=self._turns.state,
            tuning=tuning,
            on_forgotten=lambda: self._request_reconcile(),
            state=lambda: self._state,
            logger=self._logger,
            last_model=self._last_card,
        )

    def _reconciler(self, log: SqlEventLog, queue: JobQueue, active: ActiveJobs) -> PeriodicTask:
        """Return the task that recovers lost cancellations and lost queue entries from the log."""
        reconciler = JobReconciler(views=log.views, queue=queue)

        def recover() -> None:
            cancel_where_recorded(active, log)
            reconciler.reconcile()

        return PeriodicTask("reconcile", self._settings.jobs.reconcile_s, recover)

    def _follow(
        self,
        stack: ExitStack,
        client: BrokerClient,
        keys: Keys,
        active: ActiveJobs,
        log: EventLog,
        tuning: WorkerTuning,
    ) -> None:
        """Receive messages; after each (re)connect, recover those that were missed."""
        look = stack.enter_context(PeriodicTask("engine control", LOOK_S, tuning.apply))

        def recover() -> None:
            self._request_reconcile()
            look.wake()
            cancel_where_recorded(active, log)

        listener = ControlListener(
            client,
            keys,
            on_cancel=lambda job_id: cancel_if_recorded(job_id, active, log),
            on_listening=recover,
            on_topic={ControlTopic.ENGINE: look.wake},
        )
        listener.start()
        stack.callback(listener.stop)

    def _record_identity(self, identity: WorkerIdentity, recorder: WorkerEventRecorder) -> None:
        """Record this worker in the data directory, and the loss of the one before."""
        previous = identity.previous_worker
        if previous is not None:
            step = read_last_step(self._step_path, previous)
            if recorder.record_lost(previous, step):
                self._logger.warning("worker_lost", worker=previous, step=step and asdict(step))
        identity.record(self._worker)

    def _load(
        self, engine: BatchEngine, recorder: WorkerEventRecorder, tier: DiskTier | None
    ) -> None:
        model = self._model.name
        self._logger.info("model_loading", model=model)
        started_s = time.monotonic()
        try:
            engine.start()
        except SemanticError as error:
            failed = ModelLoadFailed(worker=self._worker, model=model, message=error.message)
            recorder.record(failed)
            raise
        load_ms = (time.monotonic() - started_s) * 1000
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
        consumers = Consumers(broker, threads, model=self._model.name)
        consumers.start()
        return consumers

    def _leave(self, code: ExitCode, active: ActiveJobs, tier: DiskTier | None) -> NoReturn:
        """End the process after a failure of its engine, with all KV that it holds.

        Nothing is closed: closing would write blocks that may be wrong.
        """
        if tier is not None:
            tier.abandon()
        self._turns.close()
        give_up_at_s = time.monotonic() + LAST_ATTEMPTS_S
        while active.jobs() and time.monotonic() < give_up_at_s:
            time.sleep(_POLL_S)
        self._logger.critical(code.name.lower(), unrecorded=len(active))
        os._exit(int(code))

    def _drain(self, engine: BatchEngine, consumers: Consumers, active: ActiveJobs) -> None:
        """Give running generations the drain time to finish; the next worker takes the rest."""
        self._turns.close()
        drain_s = self._settings.server.drain_s
        self._logger.info("draining", jobs=len(active), seconds=drain_s)
        closer = threading.Thread(target=engine.close, args=(drain_s,), name="engine-close")
        closer.start()
        consumers.stop(drain_s + DRAIN_GRACE_S)
        closer.join(DRAIN_GRACE_S)
