"""Builds the engine, its disk tier and the recorder of cache events from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import structlog

from domain.chat.ports import RecordedAnswers
from domain.chat.request import ChatRequest
from domain.engine.control import GAP_MS
from domain.errors import ModelUnusable
from domain.job.ports import ItemBacklog, ItemSink
from domain.job.prepare_prompt import PromptCounter, PromptTokens
from domain.job.run_attempt import JobRunner
from domain.log.ports import EventLog
from domain.model.registry import DRAFT_HEAD, NO_DRAFTER, ModelEntry
from domain.values import WorkerId
from ops.blockstore.store import BlockStore
from ops.clock import RandomIds, SystemClock
from ops.data_dir.free_space import free_bytes
from ops.log.sql_event_log import SqlEventLog
from ops.models.registry import embedding_models
from ops.observe.logs import Logger
from ops.observe.open import open_spans
from ops.observe.span import SpanSink
from ops.settings.settings import Settings
from worker.cachestore.cache_gauge import CacheGauge
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.engine.mlx.embedding.engine import EmbeddingEngine, shape_of
from worker.engine.mlx.embedding.lane import EmbeddingLane
from worker.engine.mlx.memory.at_load import DeviceBudget
from worker.engine.mlx.memory.device import EmbeddingAccount, ProcessDevice
from worker.engine.mlx.memory.step import StepFile
from worker.engine.mlx.model.adapters import KeptBase, checked_adapter
from worker.engine.mlx.model.draft_head import draft_loader
from worker.engine.mlx.model.loader import (
    DIGESTS,
    check_weight_files,
    find_model,
    load_renderer,
    load_weights,
)
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import ModelRunner
from worker.engine.scheduling.request_gate import RequestGate
from worker.engine.scheduling.step_watch import StepWatch
from worker.recording.attempt_spans import JobObserver
from worker.recording.cache_event_recorder import CacheEventRecorder
from worker.turn_scheduler import ActiveJobs, TurnScheduler

_log = structlog.get_logger(__name__)

#: Seconds at the end of the process for blocks that wait to be written.
LAST_BLOCKS_S = 5.0
#: Seconds within which the text that a fast model emits is sent together.
STREAM_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """The models of a worker.

    Attributes:
        model: The one that generates text.
        lane: Computes the vectors of the embedding models on the engine thread.
        kept: The weights of the model before, where this one has the same ones.
    """

    model: ModelEntry
    lane: EmbeddingLane
    engines: Mapping[str, EmbeddingEngine]
    kept: KeptBase


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheParts:
    """The parts that observe and persist the KV cache.

    Attributes:
        tier: Stores blocks on the disk; ``None`` where blocks stay in memory.
    """

    recorder: CacheEventRecorder
    tier: DiskTier | None
    gauge: CacheGauge


def open_cache(
    stack: ExitStack, settings: Settings, *, worker: WorkerId, log: EventLog
) -> CacheParts:
    """Start the recorder of cache events and, where configured, the disk tier.

    Args:
        stack: Closes both, the tier first.
        worker: The stream of events that belong to no agent.
    """
    recorder = CacheEventRecorder(worker, log=log, ids=RandomIds(), clock=SystemClock())
    stack.enter_context(recorder)
    tier = _open_tier(stack, settings, recorder, worker)
    gauge = CacheGauge(tier, partial(recorder.record_evicted, "ram"))
    return CacheParts(recorder=recorder, tier=tier, gauge=gauge)


def _open_tier(
    stack: ExitStack, settings: Settings, recorder: CacheEventRecorder, worker: WorkerId
) -> DiskTier | None:
    if not settings.cache.disk_budget_bytes:
        return None

    clock, least = SystemClock(), settings.disk.cache_min_bytes
    store = BlockStore(
        settings.cache_dir,
        budget_bytes=settings.cache.disk_budget_bytes,
        clock=clock,
        spare=(lambda: free_bytes(settings.cache_dir) - least) if least else None,
        on_event=recorder.record,
        worker=worker,
    )
    tier = DiskTier(store, clock=clock, on_event=recorder.record)
    tier.start()
    stack.callback(tier.close, LAST_BLOCKS_S)
    return tier


def build_engine(
    settings: Settings,
    *,
    sink: ItemSink,
    cache: CacheParts,
    answers: RecordedAnswers,
    on_device_failure: Callable[[], None],
    watch: StepWatch,
    models: ServedModels,
    last_saves_s: Callable[[], float],
) -> BatchEngine:
    """Return the engine, not started; ``start`` loads the model.

    Args:
        on_device_failure: Called before the engine dies of an error of the device.
        models: The model to load, and those of the vectors that are computed between its steps.
        last_saves_s: Returns how long the end waits for contexts to reach the disk, in seconds.
    """
    model, digests = models.model, settings.data_dir / DIGESTS
    account = models.lane.account
    budget = replace(_budget(settings), device=account, reserve=account)

    def new_runner() -> ModelRunner:
        runner = BatchRunner(
            load_weights=lambda: load_weights(
                model, answers, budget.check_weights, models.kept, digests=digests
            ),
            gap_max_ms=GAP_MS,
            kv_budget_bytes=budget,
            tier=cache.tier,
            on_context=cache.recorder.record,
        )
        runner.speculates = settings.engine.speculation
        runner.load_draft = draft_loader(model)
        runner.last_saves_s = last_saves_s
        return cache.gauge.watch(runner)

    engine = BatchEngine(
        runner_factory=new_runner,
        sink=sink,
        clock=SystemClock(),
        max_batch_size=settings.engine.max_batch_size,
        stream_interval_s=STREAM_INTERVAL_S,
        batch_window_s=settings.engine.batch_window_ms / 1000,
        on_device_failure=on_device_failure,
        watch=watch,
    )
    if models.engines:
        engine.beside = models.lane
    models.lane.wake = engine.wake
    return engine


def served_models(
    settings: Settings, model: ModelEntry, base: Callable[[Callable[[], KeptBase]], KeptBase]
) -> ServedModels:
    """Return a model and the embedding models of the settings; the largest of these is reserved.

    Args:
        base: Returns the weights that the worker before kept, or what its argument makes.
    """
    reserve, digests = 0, settings.data_dir / DIGESTS
    entries = embedding_models(settings)
    for entry in entries:
        try:
            reserve = max(reserve, shape_of(entry)[1].memory_bytes)
        except ModelUnusable as error:
            _log.warning("embedding_model_unusable", model=entry.name, why=error.message)
    lane = EmbeddingLane(EmbeddingAccount(ProcessDevice(), reserve))
    engines = {entry.name: EmbeddingEngine(entry, lane, digests) for entry in entries}
    return ServedModels(model=model, lane=lane, engines=engines, kept=base(KeptBase))


def with_lanes(runner: JobRunner, models: ServedModels, turns: TurnScheduler) -> JobRunner:
    """Return the runner, which runs the jobs of embedding models in their own turns."""
    assert turns.lane is not None, "the lane has turns of its own"
    lanes = {
        name: replace(runner, engine=engine, turns=turns.lane)
        for name, engine in models.engines.items()
    }
    return replace(runner, lanes=lanes)


def build_runner(
    worker: WorkerId,
    log: SqlEventLog,
    engine: BatchEngine,
    spans: SpanSink,
    *,
    sink: ItemSink,
    backlog: ItemBacklog,
    active: ActiveJobs,
    turns: TurnScheduler,
) -> JobRunner:
    """Return what runs the delivered jobs of a worker."""
    return JobRunner(
        worker=worker,
        log=log,
        payloads=log,
        engine=engine,
        sink=sink,
        backlog=backlog,
        clock=SystemClock(),
        ids=RandomIds(),
        running=active,
        turns=turns,
        observer=JobObserver(spans, log),
        hold_request=RequestGate().read,
    )


def open_exports(stack: ExitStack, settings: Settings, logger: Logger) -> SpanSink:
    """Return what exports the spans of the worker; ``stack`` closes it."""
    spans = open_spans(settings.tracing, part="worker", logger=logger)
    stack.callback(spans.close)
    return spans


def build_counter(
    settings: Settings,
    model: ModelEntry,
    engine: BatchEngine,
    *,
    answers: RecordedAnswers,
    on_count: Callable[[], None],
) -> PromptCounter:
    """Return what counts the tokens of prompts.

    Args:
        engine: Need not have loaded its model.
    """

    def load_tokens() -> Callable[[ChatRequest], PromptTokens]:
        render = load_renderer(model, answers, digests=settings.data_dir / DIGESTS)

        def read(request: ChatRequest) -> PromptTokens:
            rendered = render(request)
            return PromptTokens(rendered.tokens, rendered.echoed)

        return read

    return PromptCounter(engine, load_tokens=load_tokens, on_count=on_count)


def check_model(settings: Settings, model: ModelEntry) -> None:
    """Refuse a model that this machine cannot load, as far as that is known without a load.

    Raises:
        ModelLoadError: Files are missing or cut off, or the weights do not fit.
    """
    model_dir = find_model(model.source, model.revision, downloads=False)
    check_weight_files(model_dir)
    if model.adapter is not None:
        checked_adapter(model.adapter)
    if model.draft not in (None, DRAFT_HEAD, NO_DRAFTER):
        check_weight_files(find_model(model.draft, downloads=False))
    _budget(settings).check_weights(model_dir)


def _budget(settings: Settings) -> DeviceBudget:
    return DeviceBudget(
        device=ProcessDevice(),
        batch=settings.engine.max_batch_size,
        pinned_bytes=settings.engine.kv_budget_bytes,
        steps=StepFile(settings.data_dir / "steps.json"),
        disk_bytes=settings.cache.disk_budget_bytes or None,
    )
