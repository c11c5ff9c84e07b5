"""``/admin/usage``: sums of ended jobs by hour, day, agent or model."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import choice, moment, page_size
from api.http.replies import json_reply
from api.schemas.overview import UsageObject
from domain.usage.ports import UsageGroup
from domain.usage.report import report_usage

#: A report by hour of 30 days has 720 rows.
_ROWS_MAX: Final = 10_000

_BY: Final = choice("by", "what the rows are", UsageGroup, default=UsageGroup.DAY)
_SINCE: Final = moment("since", "count from the hour of this instant on; from the first by default")
_LIMIT: Final = page_size(default=1000, most=_ROWS_MAX)


async def get_usage(app: App, request: Request) -> Reply:
    """Return the sums of ended jobs."""
    report = await app.call(
        report_usage,
        app.metrics.usage,
        _BY.read(request),
        since=_SINCE.read(request),
        limit=_LIMIT.read(request),
        owner=request.caller.sees,
    )
    return json_reply(report.as_json())


USAGE_OPERATIONS: Final = (
    Operation(
        "GET /admin/usage",
        get_usage,
        id="getUsage",
        summary="Return jobs, tokens and times by hour, day, agent or model",
        parameters=(_BY, _SINCE, _LIMIT),
        reply=UsageObject,
    ),
)
