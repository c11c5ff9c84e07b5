"""``/admin/overview`` and ``/admin/history``: what the service does now, and did lately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, Final

from api.app import App
from api.http.messages import Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.parameters import choice
from api.http.sse import Comment, Frame, encode, json_reply
from api.operate.overview_bodies import HistoryObject, OverviewObject
from api.operate.overview_rows import history_point
from domain.errors import SemanticError

#: Seconds between two objects of the stream.
LOOK_S: Final = 1.0


class HistoryRange(StrEnum):
    """How far a history goes back."""

    MINUTES_5 = "5m"
    HOUR = "1h"
    DAY = "24h"


#: Length of a range and of its steps, in seconds.
_SIZES: Final = {
    HistoryRange.MINUTES_5: (300, 5),
    HistoryRange.HOUR: (3600, 60),
    HistoryRange.DAY: (24 * 3600, 3600),
}
_RANGE: Final = choice(
    "range", "how far it goes back", HistoryRange, default=HistoryRange.MINUTES_5
)


async def get_overview(app: App, request: Request) -> Reply:
    """Return what the service does now."""
    return json_reply(await app.call(app.overview.current, request.caller.sees))


async def follow_overview(app: App, request: Request) -> StreamReply:
    """Stream what the service does, each second while it changes."""
    # The first read precedes the reply, so that an unavailable log is an error with a status.
    first = await app.call(app.overview.current, request.caller.sees)
    return StreamReply(pieces=_follow(first, request, app))


async def get_history(app: App, request: Request) -> Reply:
    """Return the rates of the last time, in steps."""
    wanted = _RANGE.read(request)
    length_s, step_s = _SIZES[wanted]
    points = await app.call(app.overview.history, length_s, step_s)
    body: HistoryObject = {
        "object": "history",
        "range": wanted.value,
        "step_s": step_s,
        "points": [history_point(point) for point in points],
    }
    return json_reply(body)


async def _follow(overview: OverviewObject, request: Request, app: App) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    shown: dict[str, Any] = {}
    ping_at_s = loop.time() + app.ping_s
    while True:
        content = {name: value for name, value in overview.items() if name != "at"}
        if content != shown:
            shown = content
            yield encode([Frame(event="overview", data=dict(overview))])
            ping_at_s = loop.time() + app.ping_s
        elif loop.time() >= ping_at_s:
            yield encode([Comment("ping")])
            ping_at_s = loop.time() + app.ping_s
        if await request.ends_within(LOOK_S):
            return
        try:
            overview = await app.call(app.overview.current, request.caller.sees)
        except SemanticError as error:
            yield encode([Frame(event="error", data={"code": error.code, "detail": error.message})])
            return


OVERVIEW_OPERATIONS: Final = (
    Operation(
        "GET /admin/overview",
        get_overview,
        id="getOverview",
        summary="Return what the service does now: workers, memory, rates and jobs",
        reply=OverviewObject,
    ),
    Operation(
        "GET /admin/overview/stream",
        follow_overview,
        id="followOverview",
        summary="Stream what the service does, at most one object a second",
        is_streamed=True,
    ),
    Operation(
        "GET /admin/history",
        get_history,
        id="getHistory",
        summary="Return the rates of the last minutes, hour or day",
        parameters=(_RANGE,),
        reply=HistoryObject,
    ),
)
