"""``/v1/jobs``: generations that outlive their connection, and ``/v1/webhooks`` for their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from api.app import App
from api.dialects.generate import ATTACHED_HEADER, KEY_REUSED, MODEL_UNKNOWN, QUEUE_FULL
from api.dialects.jobs import wire as native
from api.dialects.jobs.bodies import (
    TAG_PATTERN,
    TAGS_MAX,
    BulkBody,
    BulkReport,
    BulkRow,
    DurableMessage,
    JobBar,
    JobBody,
    JobEdge,
    JobError,
    JobFilterBody,
    JobForkBody,
    JobObject,
    JobStep,
    JobTimeline,
    WebhookObject,
)
from api.dialects.jobs.durable import DURABLE_PARAMETERS, is_durable, read_durable
from api.dialects.jobs.objects import load_job, rounded, summarise_job, wait_of, webhook_object
from api.dialects.jobs.wire import (
    CURSOR_PATTERN,
    NO_ITEM,
    Cursor,
    NativeEncoder,
    parse_cursor,
    submit_fork,
)
from api.http.bodies import JOB_ID_PATTERN, KNOWN_NAME_PATTERN, PAIRS_MAX, WEBHOOK_ID_PATTERN
from api.http.messages import (
    JOB_HEADER,
    NewestPage,
    Reply,
    Request,
    StreamReply,
    json_reply,
    newest_page,
    shown,
)
from api.http.operation import (
    IDEMPOTENCY_KEY,
    PREFERRED_WAIT_S,
    Operation,
    body_of,
    choice,
    header,
    moment,
    page_size,
    pairs,
    parse_instant,
    path,
    query,
    text,
    texts,
)
from api.streaming.answers import JobStream, wait_for_end
from api.submit import accept_job
from domain.audit.timeline import bars_of, read_timeline, related_jobs
from domain.chat.items import Progress, StreamItem
from domain.errors import JobNotFound, SemanticError
from domain.job.cancel import BulkChange, BulkStep
from domain.job.eta import retry_after_s
from domain.job.listing import JobFilter, labels_of
from domain.job.submit import UNIQUE, Accepted
from domain.values import JobId, JobStatus, Priority, WaitingFor, rfc3339
from domain.webhook.delivery import WebhookId, WebhookState

#: Largest ``Retry-After`` of an open job, in seconds.
LOOK_AGAIN_MAX_S: Final = 60

_JOB_ID: Final = path("job_id", pattern=JOB_ID_PATTERN, example="job-" + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_BEFORE: Final = text("before", "only jobs older than this one", pattern=JOB_ID_PATTERN)
_STATUS: Final = choice("status", "only jobs in this state", JobStatus, default=None)
_AGENT_ID: Final = text("agent_id", "only jobs of this agent", pattern=KNOWN_NAME_PATTERN)
_MODEL: Final = text("model", "only jobs whose request names this model")
_PRIORITY: Final = choice("priority", "only jobs of this queue", Priority, default=None)
_TAG: Final = texts("tag", "only jobs with all these tags", most=TAGS_MAX, pattern=TAG_PATTERN)
_METADATA: Final = pairs("metadata", "only jobs with these values of metadata", most=PAIRS_MAX)
_SINCE: Final = moment("since", "only jobs accepted at this instant or later")
_WEBHOOK_ID: Final = path("webhook_id", pattern=WEBHOOK_ID_PATTERN, example="webhook-" + "0" * 32)
_BEFORE_WEBHOOK: Final = text(
    "before", "only webhooks older than this one", pattern=WEBHOOK_ID_PATTERN
)
_STATE: Final = choice("state", "only webhooks in this state", WebhookState, default=None)
_CURSOR: Final = {"type": "string", "pattern": CURSOR_PATTERN}
_AFTER: Final = query(
    "after", _CURSOR, partial(parse_cursor, field="after"), NO_ITEM, "id of the last item received"
)
_LAST_EVENT_ID: Final = header(
    "Last-Event-ID",
    _CURSOR,
    partial(parse_cursor, field="Last-Event-ID"),
    None,
    "like the parameter after, over which it takes precedence",
)


async def create_job(app: App, request: Request) -> Reply:
    """Enqueue a generation as a job."""
    wait_s = PREFERRED_WAIT_S.read(request)
    parse = partial(native.parse, request.body, request.headers, defaults=app.defaults)
    accept = partial(accept_job, app, parse, request, protocol="jobs")
    accepted, job = await app.call(_accepted, accept, app, request)
    return await accepted_reply(accepted, job, wait_s, request, app)


def _accepted(
    accept: Callable[[], Accepted], app: App, request: Request
) -> tuple[Accepted, JobObject]:
    """Accept a job, and return it as it is then; blocks."""
    accepted = accept()
    return accepted, load_job(app, accepted.job_id, request.caller)


async def accepted_reply(
    accepted: Accepted,
    job: JobObject,
    wait_s: int | None,
    request: Request,
    app: App,
    *,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Reply:
    """Reply with a job that was accepted: 202, or 200 if it ends within ``wait_s`` seconds.

    A repeat of a request whose job has ended gets 200 too, and so does one that gets the unique
    job: it made none. A new job that has ended before its
    reply is 202 as any other, so that a client that does not wait always gets the same status.

    ``more`` are further headers.
    """
    if wait_s is not None:
        await wait_for_end(app.feed, accepted.job_id, wait_s, request)
        job = await app.call(load_job, app, accepted.job_id, request.caller)
    headers = {"location": job["links"]["self"], JOB_HEADER: accepted.job_id, **more}
    if accepted.attached is not None:
        headers[ATTACHED_HEADER] = accepted.attached
    if wait_s is not None:
        headers["preference-applied"] = f"wait={wait_s}"
    is_awaited = wait_s is not None or accepted.attached is not None
    is_done = is_awaited and JobStatus(job["status"]).is_terminal
    if is_done or accepted.attached == UNIQUE:
        return json_reply(job, headers=headers)
    return json_reply(job, status=202, headers=headers | {"retry-after": _look_again(job)})


def list_jobs(app: App, request: Request) -> NewestPage[JobObject]:
    """List jobs, newest first."""
    before = _BEFORE.read(request)
    page = app.views.page(
        _wanted(request), limit=_LIMIT.read(request), before=JobId(before) if before else None
    )
    shown_jobs = [summarise_job(app, view) for view in page.jobs]
    return newest_page(shown_jobs, has_more=page.has_more)


def _wanted(request: Request) -> JobFilter:
    return JobFilter(
        status=_STATUS.read(request),
        agent=_AGENT_ID.read(request),
        model=_MODEL.read(request),
        priority=_PRIORITY.read(request),
        since=_SINCE.read(request),
        owner=request.caller.sees,
        labels=tuple(dict.fromkeys(_TAG.read(request) + _METADATA.read(request))),
    )


def get_job(app: App, request: Request) -> JobObject:
    """Return a job, with its answer once it has one."""
    return load_job(app, JobId(_JOB_ID.read(request)), request.caller)


async def stream_job(app: App, request: Request) -> Reply | StreamReply:
    """Stream the numbered items of a job from any position.

    A client that leaves ends the stream and not the job.

    The stream ends with ``model_changed`` if the client has output of another model.

    A client that reconnects after the last item gets 204, on which an ``EventSource`` stops.
    With ``offset``, and for HEAD, the reply is that of a Durable Stream.
    """
    job_id = JobId(request.params["job_id"])
    if is_durable(request):
        return await read_durable(app, job_id, request)
    cursor = _cursor(request)
    job = await app.feed.open_job(job_id, request, after=cursor.n, attempt=cursor.attempt)
    if job.is_over:
        await job.close()
        return Reply(status=204)
    news = partial(_queue_progress, job_id, app) if cursor.n < 0 else None
    pieces = JobStream(job, NativeEncoder(), ping_s=app.ping_s, news=news)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: job_id})


def _cursor(request: Request) -> Cursor:
    # Both are parsed, so that an invalid one is always refused. The header takes precedence: an
    # ``EventSource`` adds it to an address whose query stays the same.
    after, last_event_id = _AFTER.read(request), _LAST_EVENT_ID.read(request)
    return after if last_event_id is None else last_event_id


async def _queue_progress(job_id: JobId, app: App) -> StreamItem | None:
    """Return the place of a waiting job and its estimates, ``None`` if it runs."""
    try:
        view = await app.call(app.views.get, job_id)
        foreseen = None if view is None else await app.call(wait_of, app, view)
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
        model=(view.submitted.bound_model or "") if waits_for_model else "",
    )
    return StreamItem(n=None, attempt=1, body=body)


def cancel_job(app: App, request: Request) -> JobObject:
    """Cancel a job; a repeated request changes nothing."""
    job_id = JobId(_JOB_ID.read(request))
    app.cancellation.cancel(job_id, reason="api")
    return load_job(app, job_id, request.caller)


def retry_job(app: App, request: Request) -> Reply:
    """Enqueue a job again if it ended without an answer."""
    job_id = JobId(_JOB_ID.read(request))
    app.cancellation.retry(job_id, reason="api")
    job = load_job(app, job_id, request.caller)
    headers = {"location": job["links"]["self"], "retry-after": _look_again(job)}
    return json_reply(job, status=202, headers=headers)


def cancel_jobs(app: App, request: Request) -> BulkReport:
    """Cancel the open jobs of a filter, or list them."""
    return _change_all(app, request, BulkChange.cancel)


def retry_jobs(app: App, request: Request) -> BulkReport:
    """Enqueue the jobs of a filter again that ended without an answer, or list them."""
    return _change_all(app, request, BulkChange.retry)


def _change_all(
    app: App,
    request: Request,
    change: Callable[[BulkChange, JobFilter], tuple[list[BulkStep], bool]],
) -> BulkReport:
    """Do the same with each job of a filter; a broken log or broker ends it early; blocks."""
    wire = body_of(BulkBody, request)
    bulk = BulkChange(
        views=app.views,
        cancellation=app.cancellation,
        reason="api",
        limit=wire.limit,
        is_dry=wire.dry_run,
    )
    steps, has_more = change(bulk, _filter_of(wire.filter, request))
    return {
        "object": "list",
        "dry_run": wire.dry_run,
        "data": [_bulk_row(step) for step in steps],
        "has_more": has_more,
    }


def _filter_of(wire: JobFilterBody, request: Request) -> JobFilter:
    since = wire.since
    return JobFilter(
        status=None if wire.status is None else JobStatus(wire.status),
        agent=wire.agent_id,
        model=wire.model,
        priority=None if wire.priority is None else Priority(wire.priority),
        since=None if since is None else parse_instant(since, field="filter.since"),
        owner=request.caller.sees,
        labels=labels_of(wire.tags or (), wire.metadata or {}),
    )


def _bulk_row(step: BulkStep) -> BulkRow:
    fault = None if step.error is None else shown(JobError, step.error)
    return shown(BulkRow, step.job, result=step.result, error=fault)


async def fork_job(app: App, request: Request) -> Reply:
    """Continue the answer of a job after its first tokens, in a new job."""
    wait_s = PREFERRED_WAIT_S.read(request)
    IDEMPOTENCY_KEY.read(request)  # one that is not valid is no missing job
    wire = body_of(JobForkBody, request)
    job_id = JobId(_JOB_ID.read(request))
    accept = partial(submit_fork, app, job_id, wire, request)
    accepted, job = await app.call(_accepted, accept, app, request)
    return await accepted_reply(accepted, job, wait_s, request, app)


def _look_again(job: JobObject) -> str:
    """Return ``Retry-After`` of a job: the seconds until its end, if they can be estimated."""
    estimate = job["estimate"]
    finishes_in_s = None if estimate is None else estimate["finishes_in_s"]
    return str(retry_after_s(finishes_in_s, most_s=LOOK_AGAIN_MAX_S))


def get_job_timeline(app: App, request: Request) -> JobTimeline:
    """Return the steps of a job and where its time went."""
    job_id = JobId(_JOB_ID.read(request))
    timeline = partial(read_timeline, app.log, job_id, payloads=app.payloads)()
    if timeline is None:
        raise JobNotFound(job_id)
    after, successors = related_jobs(job_id, app.views)
    return shown(
        JobTimeline,
        timeline,
        object="job.timeline",
        at=rfc3339(app.clock.now()),
        after=[shown(JobEdge, one) for one in after],
        successors=[shown(JobEdge, one) for one in successors],
        steps=[shown(JobStep, step) for step in timeline.steps],
        bars=[shown(JobBar, bar) for bar in bars_of(timeline)],
    )


JOB_OPERATIONS: Final = (
    Operation(
        "POST /v1/jobs",
        create_job,
        parameters=(IDEMPOTENCY_KEY, PREFERRED_WAIT_S),
        body=JobBody,
        example={"prompt": "Say hello.", "max_tokens": 32},
        reply=JobObject,
        status=202,
        may_be_done=True,
        has_links=True,
        responses={404: MODEL_UNKNOWN, 409: KEY_REUSED, 429: QUEUE_FULL},
    ),
    Operation(
        "GET /v1/jobs",
        list_jobs,
        parameters=(
            _LIMIT,
            _BEFORE,
            _STATUS,
            _AGENT_ID,
            _MODEL,
            _PRIORITY,
            _TAG,
            _METADATA,
            _SINCE,
        ),
    ),
    Operation("GET /v1/jobs/{job_id}", get_job, parameters=(_JOB_ID,)),
    Operation(
        "GET /v1/jobs/{job_id}/stream",
        stream_job,
        parameters=(_JOB_ID, _AFTER, _LAST_EVENT_ID, *DURABLE_PARAMETERS),
        reply=list[DurableMessage],
        is_streamed=True,
        responses={
            204: "The job has ended and the client has all of its items, or a long poll is over",
            400: "An offset beside a cursor of the native stream, or live without an offset",
            304: "The client has what follows the offset",
            410: "The answer has begun anew since the offset was given",
        },
    ),
    Operation("POST /v1/jobs/{job_id}/cancel", cancel_job, parameters=(_JOB_ID,)),
    Operation(
        "POST /v1/jobs/{job_id}/retry",
        retry_job,
        parameters=(_JOB_ID,),
        reply=JobObject,
        status=202,
        responses={409: "The job is open, or has its answer"},
    ),
    Operation(
        "POST /v1/jobs/{job_id}/fork",
        fork_job,
        parameters=(_JOB_ID, IDEMPOTENCY_KEY, PREFERRED_WAIT_S),
        body=JobForkBody,
        example={"at": 0, "sampling": {"temperature": 0.5}},
        reply=JobObject,
        status=202,
        may_be_done=True,
        responses={409: "The job is open, or the tokens of its answer are not known"},
    ),
    Operation(
        "POST /v1/jobs:cancel",
        cancel_jobs,
        body=BulkBody,
        example={"filter": {"tags": ["night"]}, "dry_run": True},
    ),
    Operation(
        "POST /v1/jobs:retry",
        retry_jobs,
        body=BulkBody,
        example={"filter": {"tags": ["night"], "status": "failed"}, "dry_run": True},
    ),
    Operation("GET /v1/jobs/{job_id}/timeline", get_job_timeline, parameters=(_JOB_ID,)),
)


def list_webhooks(app: App, request: Request) -> NewestPage[WebhookObject]:
    """List webhooks, newest first."""
    limit, before = _LIMIT.read(request), _BEFORE_WEBHOOK.read(request)
    found = app.webhook_store.page(
        limit=limit + 1,
        before=WebhookId(before) if before else None,
        state=_STATE.read(request),
        owner=request.caller.sees,
    )
    data = [webhook_object(webhook) for webhook in found[:limit]]
    return newest_page(data, has_more=len(found) > limit)


def retry_webhook(app: App, request: Request) -> WebhookObject:
    """Deliver a webhook again, at once and with all its attempts.

    The webhook thread sends it within a second.
    """
    revived = app.webhook_retries.retry(WebhookId(_WEBHOOK_ID.read(request)), reason="api")
    return webhook_object(revived)


WEBHOOK_OPERATIONS: Final = (
    Operation("GET /v1/webhooks", list_webhooks, parameters=(_LIMIT, _BEFORE_WEBHOOK, _STATE)),
    Operation(
        "POST /v1/webhooks/{webhook_id}/retry", retry_webhook, parameters=(_WEBHOOK_ID,), status=202
    ),
)
