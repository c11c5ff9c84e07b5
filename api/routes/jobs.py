"""``/v1/jobs``: generations that outlive their connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from api.http.messages import Reply, Request
from api.http.query import choice, moment, text, whole_number
from api.http.replies import json_reply
from api.http.request_headers import preferred_wait_s
from api.presenters.jobs import full_job_object, job_object
from api.protocols.native import jobs as native
from api.routes.generate import ATTACHED_HEADER, JOB_HEADER, parse_request
from api.schemas.base import JOB_ID_PATTERN, NAME_PATTERN
from api.schemas.replies import JobList, JobObject
from api.services import Services
from api.streaming.waiting import wait_for_end
from api.submission.submit import accept
from domain.errors import JobNotFound
from domain.job.eta import retry_after_s
from domain.job.view import JobView
from domain.usecases.jobs.cancel import cancel
from domain.usecases.jobs.retry import retry
from domain.usecases.jobs.submit import Accepted
from domain.values import JobId, JobStatus, Priority

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
#: Longest that a client is told to wait before it looks at an open job again, in seconds.
LOOK_AGAIN_MAX_S: Final = 60
#: Longest that an answer is held back for the end of the job (``Prefer: wait``), in seconds.
WAIT_MAX_S: Final = 60


async def create_job(request: Request, *, services: Services) -> Reply:
    """Accept a job and say where it can be followed; the caller may wait for its end a while."""
    wait_s = preferred_wait_s(request.headers, most_s=WAIT_MAX_S)
    parse = partial(
        native.parse,
        ids=services.ids,
        max_tokens_default=services.max_tokens_default,
        efforts=services.efforts,
        model_default=services.model,
    )
    parsed = await parse_request(parse, request, services)
    accepted = await accept(parsed, request, services, protocol="jobs")
    return await accepted_reply(accepted, wait_s, request, services)


async def accepted_reply(
    accepted: Accepted,
    wait_s: int | None,
    request: Request,
    services: Services,
    *,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Reply:
    """Answer with a job that was accepted: 202, or 200 if its end came within ``wait_s``.

    ``more`` are further headers.
    """
    if wait_s is not None:
        await wait_for_end(accepted.job_id, wait_s, request, services)
    job = await services.call(_load, accepted.job_id, services)
    headers = {"location": job["links"]["self"], JOB_HEADER: accepted.job_id, **more}
    if accepted.attached is not None:
        headers[ATTACHED_HEADER] = accepted.attached
    if wait_s is not None:
        headers["preference-applied"] = f"wait={wait_s}"
    if JobStatus(job["status"]).is_terminal:
        return json_reply(job, headers=headers)
    return json_reply(job, status=202, headers=headers | {"retry-after": _look_again(job)})


async def list_jobs(request: Request, *, services: Services) -> Reply:
    """List jobs, newest first."""
    query = request.query
    status = choice(query, "status", [status.value for status in JobStatus])
    before = text(query, "before", pattern=JOB_ID_PATTERN)
    priority = choice(query, "priority", [priority.value for priority in Priority])
    page = await services.call(
        services.views.page,
        limit=whole_number(query, "limit", default=PAGE_DEFAULT, least=1, most=PAGE_MAX),
        before=JobId(before) if before else None,
        status=JobStatus(status) if status else None,
        agent=text(query, "agent_id", pattern=NAME_PATTERN),
        model=text(query, "model"),
        priority=Priority(priority) if priority else None,
        since=moment(query, "since"),
    )
    body: JobList = {
        "object": "list",
        "data": await services.call(_objects, page.jobs, services),
        "has_more": page.has_more,
        "next_before": page.jobs[-1].id if page.has_more else None,
    }
    return json_reply(body)


async def get_job(request: Request, *, services: Services) -> Reply:
    """Show one job, with its answer once there is one."""
    job = await services.call(_load, JobId(request.params["job_id"]), services)
    return json_reply(job)


async def cancel_job(request: Request, *, services: Services) -> Reply:
    """Ask for the end of a job; one that has ended already is shown as it is."""
    job_id = JobId(request.params["job_id"])
    await services.call(
        cancel,
        job_id,
        reason="api",
        log=services.log,
        queue=services.queue,
        sink=services.sink,
        backlog=services.backlog,
        signals=services.signals,
        ids=services.ids,
    )
    return json_reply(await services.call(_load, job_id, services))


async def retry_job(request: Request, *, services: Services) -> Reply:
    """Put a job that ended without an answer back into its queue."""
    job_id = JobId(request.params["job_id"])
    await services.call(
        retry,
        job_id,
        reason="api",
        log=services.log,
        queue=services.queue,
        backlog=services.backlog,
        ids=services.ids,
    )
    job = await services.call(_load, job_id, services)
    headers = {"location": job["links"]["self"], "retry-after": _look_again(job)}
    return json_reply(job, status=202, headers=headers)


def _look_again(job: JobObject) -> str:
    """Return when it makes sense to ask for a job: when it should be done, if that is known."""
    estimate = job["estimate"]
    finishes_in_s = None if estimate is None else estimate["finishes_in_s"]
    return str(retry_after_s(finishes_in_s, most_s=LOOK_AGAIN_MAX_S))


def _objects(views: Sequence[JobView], services: Services) -> list[JobObject]:
    return [job_object(view, services.outlook) for view in views]


def _load(job_id: JobId, services: Services) -> JobObject:
    view = services.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    return full_job_object(view, services)
