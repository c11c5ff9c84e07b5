"""What a scrape reads, besides the ports of other services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from api.http_server.request_counts import RequestCounts
from domain.job.listing import QueueViews
from domain.usage.ports import UsageViews
from domain.webhook.delivery import WebhookState
from ops.metrics.counter_file import CounterFile, Figures


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
