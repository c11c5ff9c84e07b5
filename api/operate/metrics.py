"""One scrape: all sources, each of which may be away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from api.http_server.shield import RequestCounts
from api.operate.log_metrics import FleetMetrics, LogMetrics, add_figure
from domain.errors import SemanticError
from domain.job.listing import QueueViews
from domain.usage.figures import UsageViews
from domain.webhook.delivery import WebhookState
from ops.adapters.data_dir.free_space import DiskFloor
from ops.metrics.counter_file import CounterFile, Figures, ProcessMetrics, added
from ops.metrics.exposition import Readings, render
from ops.metrics.families import FAMILIES
from ops.metrics.family import Kind

#: The ``process`` label of this process.
OWNER: Final = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiMetrics:
    """Metrics of this process.

    Attributes:
        version: Of this software.
        requests: Counts of the HTTP server.
        tries: Tries of webhooks by their outcome.
        writer: Returns what the log writer of this process has done.
        counters: Totals of the processes before this one.
        disk: The free space of the log's disk, and the floor under new work.
        process: Memory and descriptors.
    """

    version: str
    requests: RequestCounts
    tries: Counter[WebhookState]
    writer: Callable[[], Figures]
    counters: CounterFile
    disk: DiskFloor
    process: ProcessMetrics

    def read(self, into: Readings) -> None:
        """Add all samples."""
        into.add("build_info", 1, version=self.version)
        into.add("http_connections_open", self.requests.connections)
        into.add("http_requests_in_flight", self.requests.in_flight)
        into.add("log_disk_free_bytes", self.disk.measure())
        into.add("log_disk_floor_bytes", self.disk.free_min_bytes)
        into.add("log_disk_full", self.disk.shortage() is not None)
        for name, values in self.process().items():
            add_figure(into, name, values, owner=OWNER)
        figures = self.writer()
        gauges = {name for name in figures if FAMILIES[name].kind is Kind.GAUGE}
        for name in gauges:
            add_figure(into, name, figures[name], owner=OWNER)
        totals = {name: values for name, values in figures.items() if name not in gauges}
        self._read_totals(into, totals)

    def _read_totals(self, into: Readings, writer: Figures) -> None:
        replies = dict(self.requests.replies)
        counted = {
            # One label by CounterFile: the status, and the route after it.
            "http_requests_total": {
                f"{status} {route}": float(count) for (route, status), count in replies.items()
            },
            "webhook_attempts_total": {
                state.value: float(self.tries[state]) for state in WebhookState
            },
        }
        for name, values in self.counters.publish(added(counted, writer)).items():
            if name == "webhook_attempts_total":
                for outcome, count in values.items():
                    into.add(name, count, outcome=outcome)
            elif name == "http_requests_total":
                for key, count in values.items():
                    status, _, route = key.partition(" ")
                    into.add(name, count, route=route, status=status)
            else:
                add_figure(into, name, values, owner=OWNER)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsService:
    """Answers scrapes; nothing is computed between them.

    Attributes:
        log: Metrics that the log proves.
        fleet: Metrics of the workers.
        api: Metrics of this process.
        aliases: Whether families are repeated under the names of vLLM.
    """

    log: LogMetrics
    fleet: FleetMetrics
    api: ApiMetrics
    aliases: bool

    def scrape(self, accept: str | None) -> tuple[bytes, str]:
        """Return the text of a scrape and its content type; blocks.

        A source that is away lacks its samples, and ``scrape_source_up`` shows it.

        Args:
            accept: The header of the request.
        """
        readings = Readings()
        self.api.read(readings)
        sources = {"log": self.log.read, "broker": self.fleet.read}
        for name, read in sources.items():
            found = Readings()
            try:
                read(found)
            except SemanticError:
                readings.add("scrape_source_up", 0, source=name)
            else:
                readings.add("scrape_source_up", 1, source=name)
            readings.merge(found)
        return render(readings.all(), accept=accept, aliases=self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPorts:
    """The sources of metrics.

    Attributes:
        queue: The open jobs.
        usage: Sums and histograms of ended jobs.
        writer: Returns what the log writer of this process has done.
        counters: Totals of the api processes before this one.
        agents_max: Agents with samples of their own; 0: agents have no samples of their own.
        aliases: Whether metrics are repeated under the names of vLLM.
        requests: Counts of the HTTP server.
        tries: Tries of webhooks by their outcome.
    """

    queue: QueueViews
    usage: UsageViews
    writer: Callable[[], Figures] = dict
    counters: CounterFile = field(default_factory=lambda: CounterFile(None))
    agents_max: int = 0
    aliases: bool = False
    requests: RequestCounts = field(default_factory=RequestCounts)
    tries: Counter[WebhookState] = field(default_factory=Counter)
