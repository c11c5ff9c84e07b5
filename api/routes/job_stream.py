"""``GET /v1/jobs/{job_id}/stream``: the items of a job, from any point, as often as wanted."""

from __future__ import annotations

from functools import partial

from api.http.messages import Reply, Request, StreamReply
from api.http.query import text
from api.presenters.jobs import rounded
from api.protocols.native.stream import NativeEncoder, parse_cursor
from api.routes.generate import JOB_HEADER
from api.services import Services
from api.streaming.item_buffer import ItemBuffer
from api.streaming.job_stream import JobStream
from api.streaming.reattach import follow_job
from api.streaming.waiting import leave_alone
from domain.chat.items import Progress, StreamItem
from domain.errors import SemanticError
from domain.values import JobId

CURSOR_HEADER = "last-event-id"


async def stream_job(request: Request, *, services: Services) -> Reply | StreamReply:
    """Send the items after a cursor; leaving ends the stream and not the job.

    A client that reconnects after the last item gets 204, which tells an ``EventSource`` to stop.
    """
    job_id = JobId(request.params["job_id"])
    after = _cursor(request)
    items = await follow_job(job_id, after=after, services=services)
    if items is None:
        return Reply(status=204)
    feed = ItemBuffer(items, request, on_gone=leave_alone)
    news = partial(_wait_of, job_id, services) if after < 0 else None
    pieces = JobStream(feed, NativeEncoder(), ping_s=services.ping_s, news=news)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: job_id})


def _cursor(request: Request) -> int:
    # Both are looked at, so that a bad one is never passed over in silence; the header wins, as it
    # is what an ``EventSource`` adds to the address it was given.
    after = parse_cursor(text(request.query, "after"), field="after")
    header = request.headers.get(CURSOR_HEADER)
    return after if header is None else parse_cursor(header, field="Last-Event-ID")


async def _wait_of(job_id: JobId, services: Services) -> StreamItem | None:
    """Return what is to be expected of a job that has not begun, if anything is known."""
    try:
        foreseen = await services.call(services.outlook.of, job_id)
    except SemanticError:
        return None  # the stream itself goes on
    if foreseen is None or foreseen.position is None:
        return None
    body = Progress(
        phase="queued",
        done=0,
        total=foreseen.position,
        starts_in_s=rounded(foreseen.start_s),
        finishes_in_s=rounded(foreseen.end_s),
    )
    return StreamItem(n=None, attempt=1, body=body)
