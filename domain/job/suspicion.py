"""What follows from the deaths of a job's workers: whether it may run, and beside which jobs."""

from __future__ import annotations

from domain.job.fair_scheduler import Suspicion
from domain.job.state import Job, counted_failures_now, deaths_without_progress, device_failures

#: Errors of the GPU in a row, without a new token between them, after which a job fails: each one
#: restarts the worker, and the job probably causes them.
DEVICE_FAILURES_MAX = 5


def suspicion_of(job: Job, emitted_tokens: int) -> Suspicion:
    """Return how a job with ``emitted_tokens`` may run beside others after its worker died."""
    if job.deaths + job.active_attempt > 1:
        return Suspicion.APART
    has_no_progress = deaths_without_progress(job, emitted_tokens) or device_failures(
        job, emitted_tokens
    )
    return Suspicion.TRIED if has_no_progress else Suspicion.NONE


def worn_out(job: Job, emitted_tokens: int) -> str | None:
    """Return why the job must not get another attempt, ``None`` if it may."""
    assert job.submitted is not None, "only an accepted job runs"
    deaths = deaths_without_progress(job, emitted_tokens)
    if deaths >= job.submitted.worker_deaths_max:
        return f"{deaths} workers in a row died on this job before it emitted a token"
    failures = device_failures(job, emitted_tokens)
    if failures >= DEVICE_FAILURES_MAX:
        return f"the device failed {failures} times in a row before it emitted a token"
    if counted_failures_now(job) >= job.submitted.attempts_max:
        return f"{job.attempt} attempts took their worker down or failed"
    return None
