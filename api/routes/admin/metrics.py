"""``/metrics`` for Prometheus and other scrapers."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.http.caller import Access
from api.http.messages import Reply, Request
from api.http.operation import Operation


async def get_metrics(app: App, request: Request) -> Reply:
    """Return all metrics, in the format that the scraper prefers."""
    body, content_type = await app.call(app.metrics_page.scrape, request.headers.get("accept"))
    return Reply(body=body, content_type=content_type)


METRIC_OPERATIONS: Final = (
    Operation(
        "GET /metrics",
        get_metrics,
        id="metrics",
        summary="Return the metrics as Prometheus or OpenMetrics text",
        media="text/plain",
        access=Access.READ_ALL,
    ),
)
