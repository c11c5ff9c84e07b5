"""The port through which jobs are looked up and listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from domain.events.job import JobSubmitted
from domain.job.eta import MeasuredJob, QueuedJob, RunningJob
from domain.job.state import Job
from domain.values import Digest, JobId, JobStatus, Owner, Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs, newest first; ``has_more``: whether older ones follow."""

    jobs: tuple[Job, ...]
    has_more: bool


def labels_of(tags: Iterable[str], metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels of a job: its tags, none of which contains ``=``, and ``KEY=VALUE``.

    >>> labels_of(["night", "docs", "night"], {"team": "a=b"})
    ('docs', 'night', 'team=a=b')
    """
    return (*sorted(set(tags)), *(f"{key}={value}" for key, value in sorted(metadata.items())))


def tags_of(labels: Sequence[str]) -> list[str]:
    """Return the tags among the labels of a job."""
    return [label for label in labels if "=" not in label]


def metadata_of(labels: Sequence[str]) -> dict[str, str]:
    """Return the metadata among the labels of a job.

    >>> metadata_of(("docs", "team=a=b"))
    {'team': 'a=b'}
    """
    pairs = (label.partition("=") for label in labels if "=" in label)
    return {key: value for key, _, value in pairs}


def waits_for(job: JobId) -> str:
    """Return the mark under which an index has the jobs that wait or waited for a job.

    No label of a caller begins like it.
    """
    return f"<{job}"


def indexed_labels(submitted: JobSubmitted) -> tuple[str, ...]:
    """Return the labels of a job, and the marks of the jobs that it waits for, each once."""
    return tuple(
        dict.fromkeys((*submitted.labels, *(waits_for(JobId(one.job)) for one in submitted.after)))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are wanted; ``None`` excludes none.

    Attributes:
        model: Only jobs whose request names this model.
        since: Only jobs accepted at this instant (in the form of the log) or later.
        owner: Only jobs of this API key.
        labels: Only jobs with all of these (``indexed_labels``), each named once.
    """

    status: JobStatus | None = None
    agent: str | None = None
    model: str | None = None
    priority: Priority | None = None
    since: str | None = None
    owner: Owner | None = None
    labels: tuple[str, ...] = ()

    def fits(self, job: Job) -> bool:
        """Whether a job is wanted."""
        asked = job.submitted
        return (
            self.status in {None, job.status}
            and self.agent in {None, asked.agent}
            and self.model in {None, asked.model}
            and self.priority in {None, asked.priority}
            and (self.since is None or job.created_at >= self.since)
            and self.owner in {None, asked.owner}
            and set(self.labels) <= set(indexed_labels(asked))
        )


#: Excludes no job.
ALL_JOBS: Final = JobFilter()


class JobViews(Protocol):
    """The jobs projection."""

    def get(self, job_id: JobId) -> Job | None:
        """Return the row of a job, if there is one."""

    def page(
        self, wanted: JobFilter = ALL_JOBS, *, limit: int, before: JobId | None = None
    ) -> JobPage:
        """Return jobs newest first.

        Args:
            before: Only jobs accepted before this one; an unknown id gives an empty page, and so
                does one of another owner.
        """

    def unfinished(self, *, with_held: bool = True) -> tuple[Job, ...]:
        """Return every job that has not ended, oldest first."""

    def held(self, now: str, *, limit: int, after: int = 0) -> tuple[Job, ...]:
        """Return held jobs that may be due, oldest first.

        Their ``held_until`` is ``now`` or earlier, and the job that they await has ended.

        Args:
            after: Only those accepted at a later position.
        """

    def count_held(self, *, owner: Owner | None = None) -> int:
        """Return the number of held jobs, of an API key or of all."""

    def overdue(self, now: str) -> tuple[Job, ...]:
        """Return open jobs without a cancellation whose deadline is ``now`` or earlier.

        Instants are texts in the form of the log; the oldest job comes first.
        """

    def keyed(self, key: Digest) -> Job | None:
        """Return the job of an idempotency key, if there is one."""

    def holder(self, unique: Digest, *, at: str) -> Job | None:
        """Return the job that is unique at an instant (in the form of the log), if there is one."""

    def alike(self, asked: Digest, *, limit: int) -> tuple[Job, ...]:
        """Return the jobs of equal requests, newest first."""

    def waiting(
        self, priority: Priority, *, owner: Owner | None = None
    ) -> Mapping[str | None, int]:
        """Return how many jobs of a queue, or of an API key in it, wait, by their bound model."""

    def counts(self) -> Mapping[JobStatus, int]:
        """Return the number of jobs of every status, 0 included.

        Raises:
            LogUnavailable: The log cannot be read.
        """

    def bound_models(self) -> tuple[str, ...]:
        """Return the models that queued and running jobs are bound to, in order."""

    def bound(self, model: str, *, accepted_before: str, limit: int) -> tuple[Job, ...]:
        """Return open jobs without a cancellation that are bound to a model, oldest first.

        Args:
            accepted_before: Of the jobs that wait for their model, only those accepted before this
                instant, and those whose attempt has begun.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJobs:
    """Numbers of jobs that have not ended.

    Attributes:
        waiting: Jobs that wait for a worker, by queue; every queue is named.
        oldest: RFC 3339 instant at which the oldest of them was accepted, by queue.
        running: Jobs whose attempt has begun.
        agents: Different agents of all these jobs.
    """

    waiting: Mapping[Priority, int]
    oldest: Mapping[Priority, str]
    running: int
    agents: int


class QueueViews(Protocol):
    """Open and measured jobs, for estimates. Each method raises ``LogUnavailable``."""

    def queued(self, priority: Priority, *, limit: int) -> tuple[QueuedJob, ...]:
        """Return the jobs of a queue that wait for a worker, oldest first."""

    def running(self, *, limit: int) -> tuple[RunningJob, ...]:
        """Return jobs whose attempt has begun, oldest first."""

    def measured(self, *, limit: int) -> tuple[MeasuredJob, ...]:
        """Return completed jobs, the latest accepted first."""

    def open_jobs(self) -> OpenJobs:
        """Return the numbers of open jobs; the cost does not grow with the ended ones."""
