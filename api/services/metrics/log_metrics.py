"""Metrics that the event log proves; they are the same for every api process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from api.services.metrics.agent_totals import AgentTotals
from domain.engine.control import AdmissionState
from domain.events.model import WantedModelEvent
from domain.job.listing import QueueViews
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.model.swap_totals import SwapTotals
from domain.model.wanted_model import MODELS_STREAM, SwapState
from domain.ports import Clock
from domain.usage.figures import UsageFigures
from domain.usage.histogram import BOUNDS_US, Measure
from domain.usage.ports import UsageViews
from domain.usecases.engine_control import EngineControls
from domain.values import JobStatus, Priority
from domain.webhook.ports import WebhookStore
from ops.metrics.durations import DurationHistogram, cumulated
from ops.metrics.readings import Readings
from ops.metrics.service_families import SWAP_BOUNDS_S

_US: Final = 1_000_000
_FAMILY_OF: Final = {
    Measure.TOTAL: "request_duration_seconds",
    Measure.FIRST_TOKEN: "time_to_first_token_seconds",
    Measure.QUEUE: "request_queue_time_seconds",
    Measure.PREFILL: "request_prefill_time_seconds",
    Measure.DECODE: "request_decode_time_seconds",
    Measure.INTER_TOKEN: "inter_token_latency_seconds",
    Measure.RESTORE: "cache_restore_duration_seconds",
}
_ENDS: Final = tuple(status for status in JobStatus if status.is_terminal)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMetrics:
    """Reads tables of the log. Safe to use from any thread.

    Attributes:
        usage: Sums and histograms of ended jobs.
        agents: The sums by agent.
        queue: The open jobs.
        controls: What operators have set.
        clock: Now.
        swaps: The ended swaps.
    """

    log: EventLog
    usage: UsageViews
    agents: AgentTotals
    queue: QueueViews
    webhooks: WebhookStore
    controls: EngineControls
    clock: Clock
    swaps: SwapHistory = field(default_factory=lambda: SwapHistory())

    def read(self, into: Readings) -> None:
        """Add all samples.

        Raises:
            LogUnavailable: The log cannot be read; some samples may have been added.
        """
        into.add("log_events_total", self.log.head().position)
        self._read_usage(into)
        self._read_queue(into)
        self.swaps.read(self.log, into)
        into.add("webhooks_pending", self.webhooks.count_pending())
        admission = self.controls.admission()
        for state in AdmissionState:
            into.add("admission_state", state is admission, state=state.value)

    def _read_usage(self, into: Readings) -> None:
        for model, figures in self.usage.totals().items():
            _add_reuse(into, figures, model=model)
        for (model, agent), figures in self.agents.read().items():
            _add_requests(into, figures, model=model, agent=agent)
        for (model, measure), histogram in self.usage.histograms().items():
            bounds_s = [bound_us / _US for bound_us in BOUNDS_US[measure]]
            buckets = cumulated(bounds_s, histogram.counts, histogram.sum_us / _US)
            into.add_histogram(_FAMILY_OF[measure], buckets, model=model)

    def _read_queue(self, into: Readings) -> None:
        found = self.queue.open_jobs()
        now = self.clock.now()
        for priority in Priority:
            into.add("request_queue_depth", found.waiting[priority], priority=priority.value)
            oldest = found.oldest.get(priority)
            waits_since = now if oldest is None else datetime.fromisoformat(oldest)
            age_s = max(0.0, (now - waits_since).total_seconds())
            into.add("request_queue_oldest_seconds", age_s, priority=priority.value)
        into.add("requests_running", found.running)
        into.add("agents_active", found.agents)


class SwapHistory:
    """The ended swaps of the log; each read loads only what is new in the stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = SwapTotals()
        self._durations: dict[str, DurationHistogram] = {}

    def read(self, log: EventLog, into: Readings) -> None:
        """Add the samples.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        with self._lock:
            self._fold(log)
            for state in (SwapState.DONE, SwapState.ROLLED_BACK, SwapState.SUPERSEDED):
                ended = self._totals.ended.get(state, 0)
                into.add("model_swap_total", ended, outcome=state.value)
            for model, durations in self._durations.items():
                into.add_histogram("model_swap_duration_seconds", durations.read(), model=model)

    def _fold(self, log: EventLog) -> None:
        fresh: list[tuple[WantedModelEvent, str, int]] = []
        for recorded in log.load(MODELS_STREAM, after_version=self._totals.version):
            event = decode_recorded(recorded)
            if isinstance(event, WantedModelEvent):
                fresh.append((event, recorded.recorded_at, recorded.version))
        self._totals.fold(fresh)
        for model, seconds in self._totals.take_done():
            self._durations.setdefault(model, DurationHistogram(SWAP_BOUNDS_S)).record(seconds)


def _add_requests(into: Readings, figures: UsageFigures, *, model: str, agent: str) -> None:
    for status in _ENDS:
        ended = getattr(figures, status.value)
        into.add("request_total", ended, model=model, agent_id=agent, status=status.value)
    into.add("prompt_tokens_total", figures.prompt_tokens, model=model, agent_id=agent)
    into.add("tokens_generated_total", figures.completion_tokens, model=model, agent_id=agent)
    into.add("reasoning_tokens_total", figures.reasoning_tokens, model=model, agent_id=agent)


def _add_reuse(into: Readings, figures: UsageFigures, *, model: str) -> None:
    into.add("request_success_total", figures.completed, model=model)
    into.add("request_attempts_total", figures.attempts, model=model)
    into.add("prefix_cache_queries_total", figures.prompt_tokens, model=model)
    into.add("prefix_cache_hits_total", figures.cached_tokens, model=model)
    into.add("cache_hit_total", figures.hits, model=model)
    into.add("cache_missed_tokens_total", figures.missed_tokens, model=model)
    for source, tokens in (("ram", figures.ram_tokens), ("disk", figures.disk_tokens)):
        into.add("cache_restored_tokens_total", tokens, model=model, source=source)
    misses = {
        "diverged": figures.misses_diverged,
        "gone": figures.misses_gone,
        "model_changed": figures.misses_model_changed,
    }
    for reason, count in misses.items():
        into.add("cache_miss_total", count, model=model, reason=reason)
