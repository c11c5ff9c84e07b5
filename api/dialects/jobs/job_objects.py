"""Jobs as clients see them, with their answers, forecasts and webhooks; every function blocks."""

from __future__ import annotations

from api.app import App
from api.dialects.jobs.objects import full_job_object, job_object
from api.dialects.replies import JobObject
from api.http.messages import Caller
from api.loops.webhooks import SHOWN_MAX
from domain.errors import JobNotFound
from domain.job.eta import Forecast, awaiting_model
from domain.job.state import Job
from domain.values import JobId, JobStatus, Priority


def load_job(app: App, job_id: JobId, caller: Caller) -> JobObject:
    """Return a job with its answer, what it found in the cache, and its webhooks.

    Raises:
        JobNotFound: There is no such job.
    """
    records = app.records
    view = records.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    return full_job_object(
        view,
        wait_of(app, view),
        answer=records.read_stored(view),
        # Before its first attempt a job has looked nothing up in the cache.
        diagnosis=records.diagnose(job_id) if view.attempt else None,
        # The URLs of the settings belong to the operator.
        webhooks=[
            one
            for one in app.webhook_store.of_subject(job_id, limit=SHOWN_MAX)
            if caller.sees in {None, one.owner}
        ],
    )


def summarise_job(app: App, view: Job) -> JobObject:
    """Return a job without its answer."""
    return job_object(view, wait_of(app, view))


def wait_of(app: App, view: Job) -> Forecast | None:
    """Return the forecast of an open job."""
    if view.status.is_terminal:
        return None
    if view.status is JobStatus.QUEUED and app.models.awaits_model(view):
        return awaiting_model(Priority(view.submitted.priority))
    return app.eta.of(view.id)
