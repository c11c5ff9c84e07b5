"""``GET /v1/jobs/{job_id}/timeline``: the steps of a job."""

from __future__ import annotations

from functools import partial
from typing import Final

from api.app import App
from api.dialects.jobs.bodies import JobTimeline
from api.http.bodies import JOB_ID_PATTERN
from api.http.messages import Reply, Request, json_reply
from api.http.operation import Operation, path
from domain.errors import JobNotFound
from domain.job.timeline import Timeline, bars_of
from domain.usecases.jobs.timeline import read_timeline
from domain.values import JobId, rfc3339

_JOB_ID: Final = path("job_id", pattern=JOB_ID_PATTERN, example="job-" + "0" * 32)


async def get_timeline(app: App, request: Request) -> Reply:
    """Return the steps of a job and the time between them."""
    job_id = JobId(_JOB_ID.read(request))
    timeline = await app.call(partial(read_timeline, app.log, job_id, payloads=app.payloads))
    if timeline is None:
        raise JobNotFound(job_id)
    return json_reply(_timeline(timeline, at=rfc3339(app.clock.now())))


def _timeline(timeline: Timeline, *, at: str) -> JobTimeline:
    return {
        "object": "job.timeline",
        "job": timeline.job,
        "at": at,
        "ended": timeline.ended,
        "total_ms": timeline.total_ms,
        "queued_ms": timeline.queued_ms,
        "attempts": timeline.attempts,
        "steps": [
            {
                "what": step.what,
                "at": step.at,
                "after_ms": step.after_ms,
                "text": step.text,
                "took_ms": step.took_ms,
                "attempt": step.attempt,
                "position": step.position,
            }
            for step in timeline.steps
        ],
        "bars": [
            {
                "kind": bar.kind.value,
                "attempt": bar.attempt,
                "from_ms": bar.from_ms,
                "to_ms": bar.to_ms,
            }
            for bar in bars_of(timeline)
        ],
    }


TIMELINE_OPERATIONS: Final = (
    Operation(
        "GET /v1/jobs/{job_id}/timeline",
        get_timeline,
        id="getJobTimeline",
        summary="Return the steps of a job and where its time went",
        parameters=(_JOB_ID,),
        reply=JobTimeline,
    ),
)
