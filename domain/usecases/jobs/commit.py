"""Load, decide, append: the only way in which a job changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from domain.errors import ConcurrencyConflict, JobNotFound
from domain.events.job import JobEvent
from domain.job.decisions import JobProposal, decide
from domain.job.state import Job, fold_recorded
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource
from domain.values import Digest, JobId, StreamName

#: Most times that a decision is repeated after a concurrent append. The writers of one job are its
#: worker and its cancellers, so more than two conflicts in a row mean that a writer loops.
COMMIT_TRIES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedJob:
    """A job with the events that it was folded from."""

    job: Job
    recorded: Sequence[RecordedEvent]


def load_job(job_id: JobId, *, log: EventLog) -> LoadedJob:
    """Fold a job from the log.

    Raises:
        JobNotFound: It has no events.
    """
    recorded = log.load(StreamName(job_id))
    job: Job | None = None
    for event in recorded:
        job = fold_recorded(job, event)
    if job is None:
        raise JobNotFound(job_id)
    return LoadedJob(job=job, recorded=recorded)


def commit(
    job_id: JobId,
    proposal: JobProposal | Callable[[Job], JobProposal | None],
    *,
    log: EventLog,
    ids: IdSource,
    payloads: Mapping[Digest, bytes] | None = None,
) -> Job:
    """Decide on the present state and append; decide again after a concurrent append.

    Args:
        proposal: The event, or a function from the state to it (``None`` for none).
        log: The log of the job.
        ids: Ids of the new events.
        payloads: Texts that the events refer to, by digest.

    Returns:
        The job after the append.

    Raises:
        JobNotFound: The job has no events.
        JobAlreadyTerminal: From ``decide``.
        StaleAttempt: From ``decide``.
        LogUnavailable: Nothing was written.
    """
    for tries_left in reversed(range(COMMIT_TRIES_MAX)):
        loaded = load_job(job_id, log=log)
        wanted = proposal(loaded.job) if callable(proposal) else proposal
        events = decide(loaded.job, wanted) if wanted is not None else ()
        if not events:
            return loaded.job
        try:
            recorded = log.append(
                StreamName(job_id),
                drafts(events, loaded, ids=ids),
                expected_version=loaded.job.version,
                payloads=payloads,
            )
        except ConcurrencyConflict:
            if not tries_left:
                raise
            continue
        return functools.reduce(fold_recorded, recorded, loaded.job)
    raise AssertionError  # the last try returns or raises


def drafts(events: tuple[JobEvent, ...], loaded: LoadedJob, *, ids: IdSource) -> list[Draft]:
    """Return drafts of the events, each with the id of the one before as its causation."""
    cause = loaded.recorded[-1].event_id
    wrapped: list[Draft] = []
    for event in events:
        draft = Draft(
            event_id=ids.event_id(),
            event=event,
            correlation_id=loaded.job.correlation_id,
            causation_id=cause,
        )
        wrapped.append(draft)
        cause = draft.event_id
    return wrapped
