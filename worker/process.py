"""The worker process, from its lock to its drain.

lock → log → broker → engine (loads the model) → take over deliveries → work → drain
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from domain.audit.recorded_answers import LoggedAnswers
from domain.engine.control import AdmissionState, in_force
from domain.engine.operate import EngineControls
from domain.engine.workers import WorkerState
from domain.errors import SemanticError
from domain.events.model import ModelLoadFailed
from domain.events.worker import WorkerDraining
from domain.job.ports import ItemSink
from domain.model.wanted_model import SwapState
from domain.values import ModelCard, WorkerId
from ops.broker.address import resolve_broker_url
from ops.broker.client import BrokerClient, Keys, connect
from ops.broker.control import RedisControlSignals, RedisWorkerPulses
from ops.broker.departures import LOOK_FOR_DEPARTED_S, DepartedWorkers
from ops.broker.dramatiq_queue import BlockingRedisBroker
from ops.broker.items import RedisItemBacklog, RedisItemSink
from ops.broker.worker_requests import BlockAnswers, TokenCountServer, counts_wait
from ops.clock import RandomIds, SystemClock, uuid7_hex
from ops.data_dir.lock import DataLock, WorkerIdentity
from ops.exit_codes import ExitCode
from ops.liveness.child import BEAT_S, Lifeline, resting_collector, take_heartbeat
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.models.registry import embedding_models, first_model, given_choice
from ops.observe.logs import Logger
from ops.settings.settings import Settings
from worker.actors import Consumers, declare_actors
from worker.cachestore.cache_gauge import CacheGauge
from worker.cachestore.tier import DiskTier
from worker.control.swap_follower import SwapFollower, follower_of
from worker.control.tuning import LOOK_S, LogWatch, WorkerTuning
from worker.control.worker_drain import PlannedExit, WorkerDrain, last_saves_s, leave
from worker.engine.engine import BatchEngine
from worker.engine.scheduling.step_watch import StepWatch
from worker.liveness.idle import IDLE_CHECK_S, IdleModel, UnloadedModel, unloaded_by
from worker.liveness.periodic_tasks import PeriodicTask
from worker.liveness.pulse import PULSE_S, PulseReporter, WorkerMetrics
from worker.liveness.stuck_step import CHECK_S, LastStepFile, StuckStepGuard, read_last_step
from worker.recording.worker_event_recorder import WorkerEventRecorder, library_versions
from worker.turn_scheduler import ActiveJobs, TurnScheduler

if TYPE_CHECKING:
    from domain.job.run_attempt import JobRunner
    from worker.composition import CacheParts, ServedModels
    from worker.engine.mlx.model.adapters import KeptBase

#: Longest wait for the scan of the block store after the model is loaded, in seconds. Blocks that
#: the scan finds later become available then.
SCAN_S_MAX = 5.0
#: Time between two searches for lost jobs, and for a swap where no model is loaded, in seconds.
RECONCILE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The log and the broker, and the names under which this worker is known there."""

    log: SqlEventLog
    recorder: WorkerEventRecorder
    client: BrokerClient
    keys: Keys
    broker_id: str
    follower: SwapFollower
    controls: EngineControls
    metrics: WorkerMetrics


@dataclass(slots=True, eq=False)
class ProcessState:
    """What one worker passes on to the next one of the same process.

    Attributes:
        stop: Set once the process is asked to stop.
        is_beating: Whether the supervisor expects heartbeats before the model is loaded.
        lifeline: The tie to the supervisor.
    """

    beat: Callable[[], None] = field(default_factory=take_heartbeat)
    stop: threading.Event = field(default_factory=threading.Event)
    is_beating: bool = False
    kept: KeptBase | None = None
    lifeline: Lifeline = field(default_factory=Lifeline)

    def base(self, empty: Callable[[], KeptBase]) -> KeptBase:
        """Return the weights that the worker before kept, or what ``empty`` makes."""
        self.kept = self.kept or empty()
        return self.kept


class WorkerProcess:
    """The running worker."""

    def __init__(
        self, settings: Settings, logger: Logger, shared: ProcessState | None = None
    ) -> None:
        self._settings = settings
        self._shared = shared or ProcessState()
        self._model = first_model(settings)
        self._embeds = tuple(entry.name for entry in embedding_models(settings))
        self._logger = logger
        self._worker = WorkerId(f"worker-{uuid7_hex()}")
        self._step_path = settings.data_dir / "worker.step"
        self._stop = threading.Event()
        self._state = WorkerState.LOADING
        self._last_card: ModelCard | None = None
        self._failed_as: ExitCode | None = None
        self._planned: PlannedExit | None = None
        #: The model of the swap for which this worker ends.
        self._target: str | None = None
        #: Whether the next model is another adapter of the weights in memory.
        self._keeps_base = False
        self._identity: WorkerIdentity | None = None
        self._turns = TurnScheduler.of_worker()
        self._request_reconcile: Callable[[], None] = lambda: None

    def request_stop(self) -> None:
        """Drain and end. While the model is loading, the process exits at once."""
        if self._state is WorkerState.LOADING:
            if self._identity is not None:
                with suppress(OSError):
                    self._identity.forget()  # this end is no death within the load
            os._exit(int(ExitCode.OK))
        self._shared.stop.set()
        self._stop.set()

    def successor(self, code: int) -> WorkerProcess | None:
        """Return the worker that goes on in this process after ``run``, if one does.

        It serves another adapter of the model, whose weights stay in memory.
        """
        if code != ExitCode.SWAPPED or not self._keeps_base:
            return None
        self._shared.is_beating = True
        return WorkerProcess(self._settings, self._logger, self._shared)

    def _plan_exit(self, code: ExitCode, *, drain_s: float) -> None:
        """Drain and end, to be started again."""
        if self._planned is None:
            self._planned = PlannedExit(code, drain_s)
            if code is ExitCode.SWAPPED:
                self._state = WorkerState.SWAPPING
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
        if self._shared.stop.is_set():
            return int(ExitCode.OK)
        with ExitStack() as stack:
            stack.enter_context(DataLock(self._settings.data_dir / "worker.lock"))
            return self._run(stack)

    def _run(self, stack: ExitStack) -> int:
        settings = self._settings
        if self._shared.is_beating:
            stack.enter_context(PeriodicTask("heartbeat", BEAT_S, self._shared.beat))
        upgrade(settings.log_url)
        log = stack.enter_context(open_log(settings.log_url, clock=SystemClock()))
        recorder = WorkerEventRecorder(self._worker, log=log, ids=RandomIds())
        follower = follower_of(settings, self._worker, log=log, logger=self._logger)
        # After all blocks are on the disk, and before the log is closed.
        stack.callback(self._enter, follower, SwapState.RESTARTING)
        self._identity = identity = WorkerIdentity(settings.data_dir / "worker.json")
        unloaded = unloaded_by(identity.previous_worker, log)
        if identity.previous_worker is not None:
            lost = read_last_step(self._step_path, identity.previous_worker)
            if recorder.record_lost(identity.previous_worker, lost):
                self._logger.warning("worker_lost", worker=identity.previous_worker)
        identity.record(self._worker)
        self._model = follower.choose(
            place=identity.broker_id, choice=given_choice(), previous=identity.previous_worker
        )
        keys = Keys(settings.redis.prefix)
        client = connect(resolve_broker_url(settings), name=keys.connection(identity.broker_id))
        stack.callback(client.close)
        signals = RedisControlSignals(client, keys)
        connections = Connections(
            log=log,
            recorder=recorder,
            client=client,
            keys=keys,
            broker_id=identity.broker_id,
            follower=follower,
            controls=EngineControls(log=log, ids=RandomIds(), signals=signals),
            metrics=WorkerMetrics.of(settings.data_dir, place=identity.broker_id),
        )
        if unloaded is not None and follower.may_wait_unloaded(unloaded.id):
            self._last_card = unloaded
            if not self._wait_unloaded(unloaded, connections):
                return self._exit_code()
        return self._serve(stack, connections)

    def _wait_unloaded(self, card: ModelCard, to: Connections) -> bool:
        """Wait without a model until it is needed; return ``False`` if the process must end."""
        waiting = UnloadedModel(
            worker=self._worker,
            pid=os.getpid(),
            card=card,
            pulses=RedisWorkerPulses(to.client, to.keys),
            views=to.log.views,
            starts_jobs=lambda: to.controls.admission() is AdmissionState.OPEN,
            counts_wait=partial(counts_wait, to.client, to.keys),
            metrics=to.metrics,
            embeds=self._embeds,
        )
        self._state = WorkerState.UNLOADED
        self._logger.info("model_unloaded", model=card.id)
        look = partial(self._follow, to.follower)
        models = PeriodicTask("models", RECONCILE_S, look)
        with PeriodicTask("pulse", PULSE_S, waiting.beat), models:
            is_needed = waiting.wait(self._stop)
        self._enter(to.follower, SwapState.DRAINING)
        if self._stop.is_set():
            return False
        self._state = WorkerState.LOADING
        return is_needed

    def _serve(self, stack: ExitStack, to: Connections) -> int:
        """Load the model and work until the end; return the exit code."""
        with resting_collector():  # MLX takes memory that a worker without a model does not need
            from worker import composition as parts  # noqa: PLC0415 - imports MLX

        settings, logger, turns = self._settings, self._logger, self._turns
        log, client, keys = to.log, to.client, to.keys
        sink, values, active = RedisItemSink(client, keys), settings.engine.values, ActiveJobs()
        cache = parts.open_cache(stack, settings, worker=self._worker, log=log)
        served = parts.served_models(settings, self._model, self._shared.base)
        engine = self._engine(stack, sink, cache, log, to.controls, served)
        broker = BlockingRedisBroker(client, keys, broker_id=to.broker_id)
        tuning = WorkerTuning(
            to.controls, values, engine=engine, turns=turns, queue=broker, logger=logger
        )
        pulse = self._pulse(to, engine, cache.gauge, tuning)
        stack.enter_context(PeriodicTask("pulse", PULSE_S, pulse.beat))
        idle = IdleModel(settings.model.idle_ttl_s, active)
        answers, used = LoggedAnswers(log=log, payloads=log), idle.record_use
        counter = parts.build_counter(settings, self._model, engine, answers=answers, on_count=used)
        stack.enter_context(TokenCountServer(client, keys, counter))
        if not self._load(engine, to, cache.tier):
            return int(ExitCode.LOAD_FAILED)
        backlog, spans = RedisItemBacklog(client, keys), parts.open_exports(stack, settings, logger)
        runner = parts.build_runner(
            self._worker, log, engine, spans, sink=sink, backlog=backlog, active=active, turns=turns
        )
        watch = LogWatch(
            log=log,
            client=client,
            keys=keys,
            active=active,
            follow_model=partial(self._follow, to.follower),
            blocks=BlockAnswers(client, keys, worker=self._worker, blocks=cache.gauge),
        )
        recover = watch.reconciliation(self._show_life(stack, to, broker))
        reconciler = PeriodicTask("reconcile", RECONCILE_S, recover)
        self._request_reconcile = reconciler.wake
        look = stack.enter_context(PeriodicTask("engine control", LOOK_S, tuning.apply))
        stack.enter_context(watch.listener(reconcile=reconciler.wake, tune=look.wake))
        consumers = self._consume(broker, parts.with_lanes(runner, served, turns))
        self._state = WorkerState.READY
        to.follower.has_loaded()
        reconciler.start()
        self._wait(idle)
        if self._failed_as is not None:
            leave(self._failed_as, self._turns, active, cache.tier)
        reconciler.close()
        return self._drain(to, engine, consumers, active, cache.tier, recover)

    def _show_life(
        self, stack: ExitStack, to: Connections, broker: BlockingRedisBroker
    ) -> Callable[[], None]:
        """Send heartbeats to the supervisor, and look for other workers that have ended.

        Returns:
            What lets an emptied broker know the jobs that the workers have.
        """
        stack.enter_context(PeriodicTask("heartbeat", BEAT_S, self._shared.beat))
        departed = DepartedWorkers(to.client, to.keys, to.broker_id)
        stack.enter_context(PeriodicTask("departures", LOOK_FOR_DEPARTED_S, departed.look))
        return partial(departed.restore, broker.restore_fetched)

    def _drain(
        self,
        to: Connections,
        engine: BatchEngine,
        consumers: Consumers,
        active: ActiveJobs,
        tier: DiskTier | None,
        hand_over: Callable[[], None],
    ) -> int:
        """Give running generations the drain time to finish; other workers take the rest.

        Args:
            hand_over: Enqueues the jobs that were not finished; they are acknowledged by then.
        """
        if self._planned is None or self._planned.code is ExitCode.IDLE:
            self._state = WorkerState.DRAINING
        to.recorder.record(WorkerDraining(worker=self._worker))
        self._enter(to.follower, SwapState.DRAINING)
        card = engine.card()
        self._turns.close()
        self._logger.info("draining", jobs=len(active))
        WorkerDrain(
            engine=engine,
            consumers=consumers,
            stop_s=self._shared.lifeline.limit_s(self._settings.server.drain_s),
            is_asked_to_stop=self._shared.stop,
            on_saving=partial(self._enter, to.follower, SwapState.SAVING),
        ).run(self._planned)
        # Without the broker another worker, or the next life of this one, looks for them.
        with suppress(SemanticError):
            hand_over()
        if self._failed_as is not None:
            leave(self._failed_as, self._turns, active, tier)
        code = self._exit_code()
        to.recorder.record_stopped(unloaded=card.id if code == ExitCode.IDLE else None)
        return code

    def _wait(self, idle: IdleModel) -> None:
        """Wait until the process must end; an idle model is a reason."""
        while not self._stop.wait(IDLE_CHECK_S):
            if idle.is_due():
                self._logger.info("model_idle", model=self._model.name)
                self._plan_exit(ExitCode.IDLE, drain_s=self._settings.server.drain_s)

    def _last_saves_s(self) -> float:
        return self._shared.lifeline.limit_s(
            last_saves_s(self._planned, is_asked_to_stop=self._shared.stop.is_set())
        )

    def _exit_code(self) -> int:
        """Return the exit code of a process that ends in order."""
        if self._planned is None or self._shared.stop.is_set():
            return int(ExitCode.OK)
        return int(self._planned.code)

    def _follow(self, follower: SwapFollower) -> None:
        """End if the log wants another model, or the same one anew."""
        may_end = self._state in {WorkerState.READY, WorkerState.UNLOADED}
        if may_end and (swap := follower.look()) is not None:
            self._logger.info("swapping", model=swap.model, seconds=swap.drain_s)
            self._target = swap.model
            self._keeps_base = follower.shares_base(swap)
            self._plan_exit(ExitCode.SWAPPED, drain_s=swap.drain_s)

    def _enter(self, follower: SwapFollower, phase: SwapState) -> None:
        if self._planned is not None and self._planned.code is ExitCode.SWAPPED:
            follower.enter(phase)

    def _engine(
        self,
        stack: ExitStack,
        sink: ItemSink,
        cache: CacheParts,
        log: SqlEventLog,
        controls: EngineControls,
        served: ServedModels,
    ) -> BatchEngine:
        """Return the engine, not started; its steps are watched."""
        from worker.composition import build_engine  # noqa: PLC0415 - imports MLX

        # The memory of a step is measured for the batch that is in force now.
        values = asdict(in_force(controls.current().tuned, self._settings.engine.values))
        del values["gap_max_ms"]  # no setting: the tuning sets it
        changed = self._settings.engine.model_copy(update=values)
        last_step = stack.enter_context(LastStepFile(self._step_path, self._worker))
        watch = StepWatch(self._settings.engine.step_limit_s, on_step=last_step.write)
        engine = build_engine(
            self._settings.model_copy(update={"engine": changed}),
            sink=sink,
            cache=cache,
            answers=LoggedAnswers(log=log, payloads=log),
            on_device_failure=partial(self._fail, ExitCode.DEVICE_FAILED),
            watch=watch,
            models=served,
            last_saves_s=self._last_saves_s,
        )
        stuck = partial(self._fail, ExitCode.STUCK)
        guard = StuckStepGuard(watch, engine, last_step, on_stuck=stuck, logger=self._logger)
        stack.enter_context(PeriodicTask("steps", CHECK_S, guard.check))
        return engine

    def _pulse(
        self, to: Connections, engine: BatchEngine, gauge: CacheGauge, tuning: WorkerTuning
    ) -> PulseReporter:
        to.metrics.add(
            gauge.counted,
            to.log.figures,
            engine.counted,
        )
        return PulseReporter(
            worker=self._worker,
            pulses=RedisWorkerPulses(to.client, to.keys),
            engine=engine,
            gauge=gauge,
            turns=self._turns.state,
            tuning=tuning,
            on_forgotten=lambda: self._request_reconcile(),
            state=lambda: self._state,
            logger=self._logger,
            target=lambda: self._target or self._model.name,
            last_model=self._last_card,
            metrics=to.metrics,
            embeds=self._embeds,
        )

    def _load(self, engine: BatchEngine, to: Connections, tier: DiskTier | None) -> bool:
        """Load the model; return whether it loaded. If not, the log wants another one now."""
        model, recorder = self._model.name, to.recorder
        self._logger.info("model_loading", model=model)
        to.follower.begin_load()
        started_s = time.monotonic()
        try:
            engine.start()
        except SemanticError as error:
            failed = ModelLoadFailed(worker=self._worker, model=model, message=error.message)
            recorder.record(failed)
            if not to.follower.has_failed(error.message):
                raise
            return False
        load_ms = (time.monotonic() - started_s) * 1000
        card = engine.card()
        recorder.record_started(card, load_ms=load_ms, versions=library_versions())
        self._logger.info(
            "model_ready", model=card.id, context=card.context_length, load_ms=round(load_ms)
        )
        if tier is not None and not tier.wait_scanned(SCAN_S_MAX):
            self._logger.warning("cache_not_scanned_yet", dir=str(self._settings.cache_dir))
        return True

    def _consume(self, broker: BlockingRedisBroker, runner: JobRunner) -> Consumers:
        models = (self._model.name, *self._embeds)
        declare_actors(broker, runner, draining=self._stop, models=models)
        if taken_over := broker.requeue_all_unacked():
            self._logger.info("took_over", jobs=taken_over)
        (consumers := Consumers(broker, models=models)).start()
        return consumers
