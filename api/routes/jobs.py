"""``/v1/jobs``: generations that outlive their connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from api.http.messages import JOB_HEADER, Reply, Request
from api.http.operation import Operation
from api.http.parameters import choice, moment, page_size, path, text
from api.http.replies import json_reply
from api.http.request_headers import IDEMPOTENCY_KEY, PREFERRED_WAIT_S
from api.protocols.native import jobs as native
from api.routes.generate import (
    ATTACHED_HEADER,
    KEY_REUSED,
    MODEL_UNKNOWN,
    QUEUE_FULL,
)
from api.routes.job_stream import AFTER, LAST_EVENT_ID, stream_job
from api.schemas.base import JOB_ID_PATTERN, KNOWN_NAME_PATTERN
from api.schemas.jobs import JobBody
from api.schemas.replies import JobList, JobObject
from api.services.route_services import JobService
from domain.job.eta import retry_after_s
from domain.job.view import JobView
from domain.usecases.jobs.submit import Accepted
from domain.values import JobId, JobStatus, Priority

#: Largest ``Retry-After`` of an open job, in seconds.
LOOK_AGAIN_MAX_S: Final = 60

_JOB_ID: Final = path("job_id", pattern=JOB_ID_PATTERN, example="job-" + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_BEFORE: Final = text("before", "only jobs older than this one", pattern=JOB_ID_PATTERN)
_STATUS: Final = choice("status", "only jobs in this state", JobStatus, default=None)
_AGENT_ID: Final = text("agent_id", "only jobs of this agent", pattern=KNOWN_NAME_PATTERN)
_MODEL: Final = text("model", "only jobs whose request names this model")
_PRIORITY: Final = choice("priority", "only jobs of this queue", Priority, default=None)
_SINCE: Final = moment("since", "only jobs accepted at this instant or later")


async def create_job(request: Request, jobs: JobService) -> Reply:
    """Accept a job; the client may wait for its end for a while."""
    wait_s = PREFERRED_WAIT_S.read(request)
    parse = partial(native.parse, request.body, request.headers, defaults=jobs.defaults)
    accepted, job = await jobs.call(jobs.create, parse, request)
    return await accepted_reply(accepted, job, wait_s, request, jobs)


async def accepted_reply(
    accepted: Accepted,
    job: JobObject,
    wait_s: int | None,
    request: Request,
    jobs: JobService,
    *,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Reply:
    """Reply with a job that was accepted: 202, or 200 if it ends within ``wait_s`` seconds.

    ``more`` are further headers.
    """
    if wait_s is not None:
        await jobs.items.wait_for_end(accepted.job_id, wait_s, request)
        job = await jobs.call(jobs.load, accepted.job_id, request.caller)
    headers = {"location": job["links"]["self"], JOB_HEADER: accepted.job_id, **more}
    if accepted.attached is not None:
        headers[ATTACHED_HEADER] = accepted.attached
    if wait_s is not None:
        headers["preference-applied"] = f"wait={wait_s}"
    if JobStatus(job["status"]).is_terminal:
        return json_reply(job, headers=headers)
    return json_reply(job, status=202, headers=headers | {"retry-after": _look_again(job)})


async def list_jobs(request: Request, jobs: JobService) -> Reply:
    """List jobs, newest first."""
    before = _BEFORE.read(request)
    page = await jobs.call(
        jobs.records.views.page,
        limit=_LIMIT.read(request),
        before=JobId(before) if before else None,
        status=_STATUS.read(request),
        agent=_AGENT_ID.read(request),
        model=_MODEL.read(request),
        priority=_PRIORITY.read(request),
        since=_SINCE.read(request),
        owner=request.caller.sees,
    )
    body: JobList = {
        "object": "list",
        "data": await jobs.call(_objects, page.jobs, jobs),
        "has_more": page.has_more,
        "next_before": page.jobs[-1].id if page.has_more else None,
    }
    return json_reply(body)


async def get_job(request: Request, jobs: JobService) -> Reply:
    """Return one job, with its answer once it has one."""
    job = await jobs.call(jobs.load, JobId(_JOB_ID.read(request)), request.caller)
    return json_reply(job)


async def cancel_job(request: Request, jobs: JobService) -> Reply:
    """Cancel a job; one that has ended stays as it is."""
    job_id = JobId(_JOB_ID.read(request))
    await jobs.call(jobs.cancellation.cancel, job_id, reason="api")
    return json_reply(await jobs.call(jobs.load, job_id, request.caller))


async def retry_job(request: Request, jobs: JobService) -> Reply:
    """Enqueue a job again if it ended without an answer."""
    job_id = JobId(_JOB_ID.read(request))
    await jobs.call(jobs.retries.retry, job_id, reason="api")
    job = await jobs.call(jobs.load, job_id, request.caller)
    headers = {"location": job["links"]["self"], "retry-after": _look_again(job)}
    return json_reply(job, status=202, headers=headers)


def _look_again(job: JobObject) -> str:
    """Return ``Retry-After`` of a job: the seconds until its end, if they can be estimated."""
    estimate = job["estimate"]
    finishes_in_s = None if estimate is None else estimate["finishes_in_s"]
    return str(retry_after_s(finishes_in_s, most_s=LOOK_AGAIN_MAX_S))


def _objects(views: Sequence[JobView], jobs: JobService) -> list[JobObject]:
    return [jobs.summarise(view) for view in views]


JOB_OPERATIONS: Final = (
    Operation(
        "POST /v1/jobs",
        create_job,
        id="createJob",
        summary="Enqueue a generation as a job",
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
        id="listJobs",
        summary="List jobs, newest first",
        parameters=(_LIMIT, _BEFORE, _STATUS, _AGENT_ID, _MODEL, _PRIORITY, _SINCE),
        reply=JobList,
    ),
    Operation(
        "GET /v1/jobs/{job_id}",
        get_job,
        id="getJob",
        summary="Return a job, with its answer once it has one",
        parameters=(_JOB_ID,),
        reply=JobObject,
    ),
    Operation(
        "GET /v1/jobs/{job_id}/stream",
        stream_job,
        id="streamJob",
        summary="Stream the numbered items of a job from any position",
        parameters=(_JOB_ID, AFTER, LAST_EVENT_ID),
        is_streamed=True,
        responses={204: "The job has ended and the client has all of its items"},
    ),
    Operation(
        "POST /v1/jobs/{job_id}/cancel",
        cancel_job,
        id="cancelJob",
        summary="Cancel a job; a repeated request changes nothing",
        parameters=(_JOB_ID,),
        reply=JobObject,
    ),
    Operation(
        "POST /v1/jobs/{job_id}/retry",
        retry_job,
        id="retryJob",
        summary="Enqueue a job again if it ended without an answer",
        parameters=(_JOB_ID,),
        reply=JobObject,
        status=202,
        responses={409: "The job is open, or has its answer"},
    ),
)
