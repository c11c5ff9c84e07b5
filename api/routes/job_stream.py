"""``GET /v1/jobs/{job_id}/stream``: the items of a job, from any point, as often as wanted."""

from __future__ import annotations

from api.feed import Feed
from api.http import Reply, Request, StreamReply
from api.protocols.native_stream import NativeEncoder, parse_cursor
from api.query import text
from api.replay import follow_job
from api.routes.generate import JOB_HEADER
from api.services import Services
from api.streaming import JobStream
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
    feed = Feed(items, request, on_gone=_leave_alone)
    pieces = JobStream(feed, NativeEncoder(), ping_s=services.ping_s)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: job_id})


def _cursor(request: Request) -> int:
    # Both are looked at, so that a bad one is never passed over in silence; the header wins, as it
    # is what an ``EventSource`` adds to the address it was given.
    after = parse_cursor(text(request.query, "after"), field="after")
    header = request.headers.get(CURSOR_HEADER)
    return after if header is None else parse_cursor(header, field="Last-Event-ID")


def _leave_alone() -> None:
    """The job goes on without this reader."""
