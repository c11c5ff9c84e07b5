"""``/metrics``: one scrape of the log, the workers and this process, each of which may be away."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from api.app import App
from api.http.messages import Access, Reply, Request
from api.http.operation import Operation
from domain.engine.control import AdmissionState
from domain.engine.workers import WorkerPulse, WorkerPulses
from domain.errors import SemanticError
from domain.events.model import WantedModelEvent
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.model.swap import SwapTotals
from domain.model.wanted_model import MODELS_STREAM, SwapState
from domain.ports import Clock
from domain.usage.figures import BOUNDS_US, Measure, UsageFigures, UsageViews
from domain.usage.fold import HOUR_CHARACTERS
from domain.values import CacheFigures, JobStatus, Priority, WaitingFor, rfc3339
from domain.webhook.delivery import WebhookState
from ops.observe.counter_file import Figures, ProcessMetrics, added
from ops.observe.exposition import HistogramRecorder, Readings, cumulated, render
from ops.observe.families import FAMILIES, SWAP_BOUNDS_S, Kind

#: The label of the agents without sums of their own.
OTHER: Final = "other"
#: Hours that are read again: clocks of several machines differ, and a commit may come late.
OPEN_HOURS: Final = 3

_Sums = dict[tuple[str, str], UsageFigures]


class AgentTotals:
    """Reads the sums. Safe to use from any thread.

    The first agents of the log have sums of their own. An agent that has once been counted under
    ``OTHER`` stays there, so that no sum decreases.

    Args:
        agents_max: Agents with sums of their own; 0: agents have no samples of their own.
    """

    def __init__(self, usage: UsageViews, clock: Clock, agents_max: int) -> None:
        self._usage = usage
        self._clock = clock
        self._agents_max = agents_max
        self._lock = threading.Lock()
        self._until: str | None = None
        self._over: _Sums = {}

    def read(self) -> _Sums:
        """Return the sums by model and by the label of the agent.

        Jobs without an agent have an empty label, and so have all jobs where no
        agent has sums of its own.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        if not self._agents_max:
            return {(model, ""): sums for model, sums in self._usage.totals().items()}
        with self._lock:
            found = self._by_agent()
        # Read after the sums: each agent in them has its row.
        named = {"", *self._usage.first_agents(self._agents_max)}
        totals: _Sums = {}
        for (model, agent), sums in found.items():
            key = model, agent if agent in named else OTHER
            totals[key] = totals.get(key, UsageFigures()) + sums
        return totals

    def _by_agent(self) -> _Sums:
        """Return the sums of all agents, and keep those of the hours that are over."""
        open_at = self._clock.now() - timedelta(hours=OPEN_HOURS)
        open_from = rfc3339(open_at)[:HOUR_CHARACTERS]
        if self._until is None or open_from > self._until:
            fresh = self._usage.by_agent(since=self._until, until=open_from)
            self._over, self._until = _added(self._over, fresh), open_from
        return _added(self._over, self._usage.by_agent(since=self._until))


def _added(sums: _Sums, more: Mapping[tuple[str, str], UsageFigures]) -> _Sums:
    totals = dict(sums)
    for key, figures in more.items():
        totals[key] = totals.get(key, UsageFigures()) + figures
    return totals


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


class LogMetrics:
    """Reads tables of the log. Safe to use from any thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._agents = AgentTotals(app.metrics.usage, app.clock, app.metrics.agents_max)
        self._swaps = SwapHistory()

    def read(self, into: Readings) -> None:
        """Add all samples.

        Raises:
            LogUnavailable: The log cannot be read; some samples may have been added.
        """
        into.add("log_events_total", self._app.log.head().position)
        self._read_usage(into)
        self._read_queue(into)
        self._swaps.read(self._app.log, into)
        into.add("webhooks_pending", self._app.webhook_store.count_pending())
        subscriptions = self._app.subscriptions
        for reader in subscriptions.read_all():
            if reader.created.url is None:
                names = {"subscription": reader.created.name, "owner": reader.created.owner or ""}
                into.add("subscription_lag_events", subscriptions.lag_of(reader), **names)
        admission = self._app.controls.admission()
        for state in AdmissionState:
            into.add("admission_state", state is admission, state=state.value)

    def _read_usage(self, into: Readings) -> None:
        for model, figures in self._app.metrics.usage.totals().items():
            _add_reuse(into, figures, model=model)
        for (model, agent), figures in self._agents.read().items():
            _add_requests(into, figures, model=model, agent=agent)
        for (model, measure), histogram in self._app.metrics.usage.histograms().items():
            bounds_s = [bound_us / _US for bound_us in BOUNDS_US[measure]]
            buckets = cumulated(bounds_s, histogram.counts, histogram.sum_us / _US)
            into.add_histogram(_FAMILY_OF[measure], buckets, model=model)

    def _read_queue(self, into: Readings) -> None:
        found = self._app.metrics.queue.open_jobs()
        now = self._app.clock.now()
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
        self._durations: dict[str, HistogramRecorder] = {}

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
            self._durations.setdefault(model, HistogramRecorder(SWAP_BOUNDS_S)).record(seconds)


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


#: Places whose totals are shown after their worker has gone.
PLACES_MAX: Final = 64
_STATES: Final = ("loading", "ready", "draining", "swapping", "unloaded")
_DISK_STATES: Final = ("on", "paused", "scanning", "off")


class FleetMetrics:
    """Reads the pulses. Safe to use from any thread.

    A worker is labelled by its place, which the next worker of the data directory has too. While a
    place has no worker, its last totals stay, so that a sum over all places never decreases.
    """

    def __init__(self, pulses: WorkerPulses) -> None:
        self._pulses = pulses
        self._lock = threading.Lock()
        self._totals: dict[str, Figures] = {}

    def read(self, into: Readings) -> None:
        """Add all samples.

        Raises:
            QueueUnavailable: The broker cannot be reached; the last totals were added.
        """
        try:
            # A worker that was killed has a pulse for some seconds beside the next one of its
            # place. The names of workers sort by their start.
            alive = {one.place or one.worker: one for one in self._pulses.alive()}
        except BaseException:
            self._add_totals(into)
            raise
        for place, pulse in alive.items():
            self._keep_totals(place, pulse.metrics)
            _add_values(into, place, pulse)
        states = Counter(pulse.state for pulse in alive.values())
        for state in _STATES:
            into.add("workers", states[state], state=state)
        self._add_totals(into)

    def _keep_totals(self, place: str, metrics: Figures) -> None:
        totals = {name: values for name, values in metrics.items() if _is_total(name)}
        with self._lock:
            self._totals.pop(place, None)
            self._totals[place] = totals
            if len(self._totals) > PLACES_MAX:
                del self._totals[next(iter(self._totals))]

    def _add_totals(self, into: Readings) -> None:
        with self._lock:
            totals = dict(self._totals)
        for place, figures in totals.items():
            for name, values in figures.items():
                add_figure(into, name, values, owner=place)


def add_figure(into: Readings, name: str, values: object, *, owner: str) -> None:
    """Add the values of a family that a process has reported; unknown ones are ignored.

    Args:
        values: Numbers by the value of the label that the family has beside its owner.
    """
    family = FAMILIES.get(name)
    if family is None or not family.labels or not isinstance(values, dict):
        return  # of a worker of another version
    first, *others = family.labels
    if family.kind is Kind.HISTOGRAM:
        into.add_histogram(name, values, **{first: owner})
        return
    for label, value in values.items():
        own = {others[0]: label} if others else {}
        into.add(name, value, **{first: owner}, **own)


def _is_total(name: str) -> bool:
    return name in FAMILIES and FAMILIES[name].kind is not Kind.GAUGE


def _add_values(into: Readings, place: str, pulse: WorkerPulse) -> None:
    model = pulse.model.id if pulse.model is not None else ""
    into.add("worker_info", 1, worker=place, host=pulse.host, model=model, state=pulse.state)
    for name, values in pulse.metrics.items():
        if not _is_total(name):
            add_figure(into, name, values, owner=place)
    reasons = Counter(job.waiting_for for job in pulse.waiting)
    for reason in WaitingFor:
        into.add("engine_waiting", reasons[reason], worker=place, reason=reason.value)
    if pulse.turns is not None:
        into.add("batch_places", pulse.turns.slots, worker=place)
    if pulse.cache is not None:
        _add_cache(into, place, pulse.cache)


def _add_cache(into: Readings, place: str, cache: CacheFigures) -> None:
    budget = cache.ram_budget_bytes
    into.add(
        "pool_utilization_ratio", cache.ram_used_bytes / budget if budget else 0.0, worker=place
    )
    into.add("pool_pinned_ratio", cache.fill, worker=place)
    into.add("pool_blocks", cache.ram_blocks, worker=place)
    used = {
        "weights": cache.weights_bytes,
        "live": cache.ram_live_bytes,
        "kept": max(0, cache.ram_used_bytes - cache.ram_live_bytes),
    }
    for kind, size_bytes in used.items():
        into.add("memory_used_bytes", size_bytes, worker=place, kind=kind)
    into.add("memory_limit_bytes", budget, worker=place, kind="contexts")
    if cache.ceiling_bytes:
        into.add("memory_limit_bytes", cache.ceiling_bytes, worker=place, kind="ceiling")
    into.add("memory_wait_seconds", cache.full_s, worker=place)
    into.add("disk_cache_used_bytes", cache.disk_used_bytes, worker=place)
    into.add("disk_cache_limit_bytes", cache.disk_budget_bytes, worker=place)
    into.add("disk_cache_blocks", cache.disk_blocks, worker=place)
    for state in _DISK_STATES:
        into.add("disk_cache_state", state == cache.disk, worker=place, state=state)


#: The ``process`` label of this process.
OWNER: Final = "api"


class MetricsService:
    """Answers scrapes; nothing is computed between them. It keeps totals, so an app needs one."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._log = LogMetrics(app)
        self._fleet = FleetMetrics(app.pulses)
        self._process = ProcessMetrics()

    def scrape(self, accept: str | None) -> tuple[bytes, str]:
        """Return the text of a scrape and its content type; blocks.

        A source that is away lacks its samples, and ``scrape_source_up`` shows it.
        """
        readings = Readings()
        self._read_api(readings)
        sources = {"log": self._log.read, "broker": self._fleet.read}
        for name, read in sources.items():
            found = Readings()
            try:
                read(found)
            except SemanticError:
                readings.add("scrape_source_up", 0, source=name)
            else:
                readings.add("scrape_source_up", 1, source=name)
            readings.merge(found)
        return render(readings.all(), accept=accept, aliases=self._app.metrics.aliases)

    def _read_api(self, into: Readings) -> None:
        """Add the samples of this process."""
        into.add("build_info", 1, version=self._app.version)
        into.add("http_connections_open", self._app.metrics.requests.connections)
        into.add("http_requests_in_flight", self._app.metrics.requests.in_flight)
        into.add("log_disk_free_bytes", self._app.disk.measure())
        into.add("log_disk_floor_bytes", self._app.disk.free_min_bytes)
        into.add("log_disk_full", self._app.disk.shortage() is not None)
        for name, values in self._process().items():
            add_figure(into, name, values, owner=OWNER)
        figures = self._app.metrics.writer()
        gauges = {name for name in figures if FAMILIES[name].kind is Kind.GAUGE}
        for name in gauges:
            add_figure(into, name, figures[name], owner=OWNER)
        totals = {name: values for name, values in figures.items() if name not in gauges}
        self._read_totals(into, totals)

    def _read_totals(self, into: Readings, writer: Figures) -> None:
        replies = dict(self._app.metrics.requests.replies)
        counted = {
            # One label by CounterFile: the status, and the route after it.
            "http_requests_total": {
                f"{status} {route}": float(count) for (route, status), count in replies.items()
            },
            "webhook_attempts_total": {
                state.value: float(self._app.metrics.tries[state]) for state in WebhookState
            },
        }
        for name, values in self._app.metrics.counters.publish(added(counted, writer)).items():
            if name == "webhook_attempts_total":
                for outcome, count in values.items():
                    into.add(name, count, outcome=outcome)
            elif name == "http_requests_total":
                for key, count in values.items():
                    status, _, route = key.partition(" ")
                    into.add(name, count, route=route, status=status)
            else:
                add_figure(into, name, values, owner=OWNER)


async def metrics(app: App, request: Request) -> Reply:
    """Return the metrics as Prometheus or OpenMetrics text."""
    body, content_type = await app.call(
        app.once(MetricsService).scrape, request.headers.get("accept")
    )
    return Reply(body=body, content_type=content_type)


METRIC_OPERATIONS: Final = (
    Operation("GET /metrics", metrics, media="text/plain", access=Access.READ_ALL),
)
