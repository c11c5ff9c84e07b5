"""``GET /v1/jobs/{job_id}/stream``: the items of a job, from any position, any number of times."""

from __future__ import annotations

from functools import partial
from typing import Final

from api.http.messages import JOB_HEADER, Reply, Request, StreamReply
from api.http.parameters import header, query
from api.presenters.jobs import rounded
from api.protocols.native.stream import CURSOR_PATTERN, NO_ITEM, Cursor, NativeEncoder, parse_cursor
from api.services.route_services import JobService
from api.streaming.item_buffer import ItemBuffer
from api.streaming.job_stream import JobStream
from domain.chat.items import Progress, StreamItem
from domain.errors import SemanticError
from domain.values import JobId, WaitingFor

_CURSOR: Final = {"type": "string", "pattern": CURSOR_PATTERN}
AFTER: Final = query(
    "after", _CURSOR, partial(parse_cursor, field="after"), NO_ITEM, "id of the last item received"
)
LAST_EVENT_ID: Final = header(
    "Last-Event-ID",
    _CURSOR,
    partial(parse_cursor, field="Last-Event-ID"),
    None,
    "like the parameter after, over which it takes precedence",
)


async def stream_job(request: Request, jobs: JobService) -> Reply | StreamReply:
    """Stream the items after a cursor; a client that leaves ends the stream and not the job.

    The stream ends with ``model_changed`` if the client has output of another model.

    A client that reconnects after the last item gets 204, on which an ``EventSource`` stops.
    """
    job_id = JobId(request.params["job_id"])
    cursor = _cursor(request)
    items = await jobs.items.reattach(job_id, after=cursor.n, attempt=cursor.attempt)
    if items is None:
        return Reply(status=204)
    # Item 0 is no output, so a client that has no other one can begin anew.
    buffer = ItemBuffer(items, request, attempt=cursor.attempt if cursor.n > 0 else 0)
    news = partial(_queue_progress, job_id, jobs) if cursor.n < 0 else None
    pieces = JobStream(buffer, NativeEncoder(), ping_s=jobs.ping_s, news=news)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: job_id})


def _cursor(request: Request) -> Cursor:
    # Both are parsed, so that an invalid one is always refused. The header takes precedence: an
    # ``EventSource`` adds it to an address whose query stays the same.
    after, last_event_id = AFTER.read(request), LAST_EVENT_ID.read(request)
    return after if last_event_id is None else last_event_id


async def _queue_progress(job_id: JobId, jobs: JobService) -> StreamItem | None:
    """Return the place of a waiting job and its estimates, ``None`` if it runs."""
    try:
        view = await jobs.call(jobs.records.views.get, job_id)
        foreseen = None if view is None else await jobs.call(jobs.wait_of, view)
    except SemanticError:
        return None  # the stream continues without it
    if view is None or foreseen is None:
        return None
    waits_for_model = foreseen.waiting_for is WaitingFor.MODEL
    if foreseen.position is None and not waits_for_model:
        return None
    body = Progress(
        phase="queued",
        done=0,
        total=foreseen.position or 0,
        starts_in_s=rounded(foreseen.start_s),
        finishes_in_s=rounded(foreseen.end_s),
        waiting_for=foreseen.waiting_for or WaitingFor.PLACE,
        model=(view.bound_model or "") if waits_for_model else "",
    )
    return StreamItem(n=None, attempt=1, body=body)
