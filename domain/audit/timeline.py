"""Where the time of a job went: steps, and bars between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from domain.errors import TEXT_LOST
from domain.events.event import Event
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    EmbeddingRequested,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobReleased,
    JobRetried,
    JobSubmitted,
)
from domain.job.listing import JobFilter, JobViews, waits_for
from domain.job.state import Job, first_status
from domain.log.codec import decode_recorded
from domain.log.ports import EventReader, PayloadStore
from domain.log.record import EventFilter, RecordedEvent
from domain.values import (
    AfterCondition,
    Digest,
    JobId,
    JobStatus,
    Predecessor,
    StreamName,
    WorkerId,
    rfc3339,
)

#: Longer durations are shown in seconds.
_SECONDS_FROM_MS = 10_000
_SOURCES = {"ram": "memory", "disk": "the disk"}
_AGAIN = {True: "may be tried again", False: "final"}
#: Machine names and texts of the steps of events, by type; the event is the argument.
_TEXTS: Mapping[str, tuple[str, str]] = {
    "AttemptFailed": ("attempt_failed", "attempt {0.attempt} failed: {0.error}: {0.message}"),
    "JobAttached": ("attached", "a repeated request joined ({0.reason})"),
    "JobCancelRequested": ("cancel_requested", "asked to stop ({0.reason})"),
    "JobCancelled": ("cancelled", "cancelled after {0.usage.completion_tokens:,} tokens"),
    "JobExpired": ("expired", "expired: the deadline {0.deadline} passed"),
    "JobFailed": ("failed", "failed: {0.error}: {0.message}"),
    "JobHidden": ("hidden", "its caller deleted the answer"),
    "JobReleased": ("released", "put into its queue"),
    "JobRelabelled": ("relabelled", "its caller replaced the metadata"),
    "JobRetried": ("retried", "put back into the queue ({0.reason})"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """One step of a job.

    Attributes:
        what: Machine name: ``accepted``, ``held``, ``released``, ``attached``, ``attempt``,
            ``lost``, ``prefill``, ``first_token``, ``attempt_failed``, ``cancel_requested``,
            ``retried``, an end (``completed``, ``failed``, ``cancelled``, ``expired``), or an
            event's type.
        at: RFC 3339 instant.
        after_ms: Milliseconds since the acceptance.
        text: One line for people.
        took_ms: Duration in milliseconds, where it is known.
        position: Position of the event in the log; ``None`` for a step that a worker measured
            between two events.
    """

    what: str
    at: str
    after_ms: float
    text: str
    took_ms: float | None = None
    attempt: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All steps of a job.

    Attributes:
        steps: In order of time.
        ended: Whether the job has ended; repeated requests may still join it.
        total_ms: Milliseconds from acceptance to the last step.
        queued_ms: Part of ``total_ms`` in which the job waited for a worker.
    """

    job: JobId
    steps: tuple[TimelineStep, ...]
    ended: bool
    total_ms: float
    queued_ms: float
    attempts: int


def build_timeline(
    events: Sequence[RecordedEvent],
    losses: Mapping[WorkerId, str] | None = None,
    *,
    client: str | None = None,
) -> Timeline:
    """Return the timeline of a job.

    Args:
        events: All events of the job's stream, at least one.
        losses: By worker, the instant at which it was found dead.
        client: The text that names the client of the request.
    """
    accepted = _moment(events[0].recorded_at)
    builder = _TimelineBuilder(accepted=accepted, losses=losses or {}, client=client)
    for recorded in events:
        builder.take(recorded)
    last = builder.steps[-1]
    return Timeline(
        job=JobId(events[0].stream),
        steps=tuple(builder.steps),
        ended=builder.ended,
        total_ms=last.after_ms,
        queued_ms=builder.queued_ms,
        attempts=builder.attempts,
    )


@dataclass(slots=True)
class _TimelineBuilder:
    """Folds the events; later steps are measured against its state."""

    accepted: datetime
    losses: Mapping[WorkerId, str]
    client: str | None
    steps: list[TimelineStep] = field(default_factory=list)
    queued_ms: float = 0.0
    attempts: int = 0
    ended: bool = False
    _waiting_since: datetime | None = None
    _running: tuple[AttemptStarted, datetime] | None = None

    def take(self, recorded: RecordedEvent) -> None:
        event = decode_recorded(recorded)
        match event:
            case JobSubmitted():
                self._accept(event, recorded)
            case AttemptStarted():
                self._start(event, recorded)
            case JobCompleted():
                self._complete(event, recorded)
            case EmbeddingRequested():
                texts = "one text" if event.texts == 1 else f"{event.texts} texts"
                self._add(recorded, "embedding", f"asks for the vectors of {texts}")
            case AttemptFailed() | JobReleased() | JobRetried():
                self._wait_again(recorded)
                self._add_plain(event, recorded)
            case JobCancelled() | JobFailed() | JobExpired():
                self._stop_waiting(recorded)
                self._add_plain(event, recorded)
            case _:
                self._add_plain(event, recorded)

    def _add_plain(self, event: Event, recorded: RecordedEvent) -> None:
        what, text = _TEXTS.get(recorded.type, (recorded.type, ""))
        attempt = None
        if isinstance(event, AttemptFailed):
            attempt, text = event.attempt, f"{text} ({_AGAIN[event.retryable]})"
        self._add(recorded, what, text.format(event), attempt=attempt)

    def _accept(self, event: JobSubmitted, recorded: RecordedEvent) -> None:
        whose = f" for {event.agent}" if event.agent else ""
        by = f" from {self.client}" if self.client else ""
        text = f"{event.protocol} request{by}{whose}: {event.model}, {event.priority}"
        is_held = first_status(event) is JobStatus.HELD
        self._waiting_since = None if is_held else self.accepted
        if event.parent is not None:
            text += f", continues {event.parent} after {event.parent_tokens:,} tokens"
        self._add(recorded, "accepted", f"{text}, at most {event.max_tokens:,} tokens")
        if is_held:
            waits = [f"{one.name} ({one.job}) has {one.condition}" for one in event.after]
            if event.start_after is not None:
                waits.insert(0, f"the clock is at {event.start_after}")
            self._add(recorded, "held", f"held until {', '.join(waits)}")

    def _start(self, event: AttemptStarted, recorded: RecordedEvent) -> None:
        now = _moment(recorded.recorded_at)
        self._add_loss(recorded)
        waited_ms = _ms(now - self._waiting_since) if self._waiting_since else None
        self.queued_ms += waited_ms or 0.0
        self.attempts += 1
        self._waiting_since, self._running = None, (event, now)
        known = _SOURCES.get(event.cache_source)
        parts = [f"attempt {event.attempt} on {event.worker}"]
        if waited_ms is not None:
            parts.append(f"after {show_duration(waited_ms)} in the queue")
        cached = f"{event.cached_tokens:,} of them known from {known}" if known else "none known"
        parts.append(f"prompt of {event.prompt_tokens:,} tokens, {cached}")
        if event.resumed_tokens:
            parts.append(f"continues after {event.resumed_tokens:,} tokens of earlier attempts")
        self._add(recorded, "attempt", "; ".join(parts), waited_ms, event.attempt)

    def _complete(self, event: JobCompleted, recorded: RecordedEvent) -> None:
        usage, timings = event.usage, event.timings
        if self._running is not None and timings.first_token_ms:
            started = self._running[1]
            first = started + timedelta(milliseconds=timings.first_token_ms)
            begun = first - timedelta(milliseconds=timings.prefill_ms)
            fresh = usage.prompt_tokens - usage.cached_tokens
            read = f"read {fresh:,} tokens of the prompt, {usage.cached_tokens:,} were known"
            self._measured("prefill", max(begun, started), read, timings.prefill_ms, event.attempt)
            self._measured("first_token", first, "first token", None, event.attempt)
        spent_s = timings.decode_ms / 1000
        rate = f", {(usage.completion_tokens - 1) / spent_s:,.0f} tokens/s" if spent_s else ""
        text = f"completed ({event.stop_reason}): {usage.completion_tokens:,} tokens{rate}"
        self._stop_waiting(recorded)
        self._add(recorded, "completed", text, timings.decode_ms or None, event.attempt)

    def _add_loss(self, recorded: RecordedEvent) -> None:
        """Add the loss of an attempt that had no end when the next attempt began."""
        if self._running is None:
            return
        event, started = self._running
        lost_at = _moment(self.losses.get(event.worker, recorded.recorded_at))
        text = f"attempt {event.attempt} ended without a report: {event.worker} died"
        self._measured("lost", max(lost_at, started), text, None, event.attempt)
        self._waiting_since = max(lost_at, started)

    def _wait_again(self, recorded: RecordedEvent) -> None:
        self._running, self._waiting_since = None, _moment(recorded.recorded_at)
        self.ended = False

    def _stop_waiting(self, recorded: RecordedEvent) -> None:
        """Note the end of the job."""
        if self._waiting_since is not None:
            self.queued_ms += _ms(_moment(recorded.recorded_at) - self._waiting_since)
        self._running = self._waiting_since = None
        self.ended = True

    def _add(
        self,
        recorded: RecordedEvent,
        what: str,
        text: str,
        took_ms: float | None = None,
        attempt: int | None = None,
    ) -> None:
        at = _moment(recorded.recorded_at)
        self._measured(what, at, text, took_ms, attempt, recorded.position)

    def _measured(
        self,
        what: str,
        at: datetime,
        text: str,
        took_ms: float | None,
        attempt: int | None,
        position: int | None = None,
    ) -> None:
        self.steps.append(
            TimelineStep(
                what=what,
                at=rfc3339(at),
                after_ms=_ms(at - self.accepted),
                text=text,
                took_ms=took_ms,
                attempt=attempt,
                position=position,
            )
        )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _ms(span: timedelta) -> float:
    return round(span / timedelta(milliseconds=1), 3)


def show_duration(ms: float) -> str:
    """Return a duration as text for people.

    >>> show_duration(950), show_duration(95_040)
    ('950 ms', '95.0 s')
    """
    return f"{ms:,.0f} ms" if ms < _SECONDS_FROM_MS else f"{ms / 1000:,.1f} s"


class BarKind(StrEnum):
    """What a stretch of time was spent on."""

    #: It waited for its instant or for other jobs, outside of its queue.
    HELD = "held"
    QUEUED = "queued"
    RESTORE = "restore"
    PREFILL = "prefill"
    DECODE = "decode"
    #: An attempt whose phases are not recorded: it runs, or it ended without an answer.
    RUN = "run"
    #: An attempt whose worker died.
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """A stretch of time.

    Attributes:
        attempt: The attempt, or the one that was waited for.
        from_ms: Its begin, in milliseconds since the acceptance.
        to_ms: Its end; ``None`` while it lasts.
    """

    kind: BarKind
    attempt: int
    from_ms: float
    to_ms: float | None


def bars_of(timeline: Timeline) -> tuple[TimelineBar, ...]:
    """Return the bars of a timeline in order of time; they do not overlap."""
    bars: list[TimelineBar] = []
    attempt, since_ms = 0, 0.0
    kind: BarKind | None = None

    def bar(kind: BarKind, to_ms: float | None) -> TimelineBar:
        number = attempt + (kind in {BarKind.HELD, BarKind.QUEUED})
        return TimelineBar(kind=kind, attempt=number, from_ms=since_ms, to_ms=to_ms)

    for step in timeline.steps:
        if step.what not in _BEGINS:
            continue  # the job goes on as before
        if kind is not None and step.after_ms > since_ms:
            bars.append(bar(_CLOSES_AS.get(step.what, kind), step.after_ms))
        if step.what == "attempt":
            attempt = step.attempt or attempt + 1
        kind, since_ms = _BEGINS[step.what], step.after_ms
    return (*bars, bar(kind, None)) if kind is not None else tuple(bars)


#: What begins with a step; ``None`` for an end.
_BEGINS: Mapping[str, BarKind | None] = {
    "accepted": BarKind.QUEUED,
    "held": BarKind.HELD,
    "released": BarKind.QUEUED,
    "retried": BarKind.QUEUED,
    "attempt": BarKind.RUN,
    "prefill": BarKind.PREFILL,
    "first_token": BarKind.DECODE,
    "lost": BarKind.QUEUED,
    "attempt_failed": BarKind.QUEUED,
    **dict.fromkeys(("completed", "failed", "cancelled", "expired")),
}
#: What the bar before a step is after all: between the begin of an attempt and its prefill, cached
#: blocks are restored.
_CLOSES_AS = {"prefill": BarKind.RESTORE, "lost": BarKind.LOST}


#: Most successors of a job that are named.
SUCCESSORS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedJob:
    """A job before or behind another one.

    Attributes:
        name: As in ``Predecessor``, of the later of the two; so is the condition.
        status: ``None`` if the job is not known.
    """

    name: str
    job: str
    condition: AfterCondition
    status: JobStatus | None


def related_jobs(
    job_id: JobId, views: JobViews
) -> tuple[tuple[RelatedJob, ...], tuple[RelatedJob, ...]]:
    """Return the jobs that a job waits or waited for, and the newest that do for it."""

    def related(edge: Predecessor, job_id: str, job: Job | None) -> RelatedJob:
        status = None if job is None else job.status
        return RelatedJob(name=edge.name, job=job_id, condition=edge.condition, status=status)

    own = views.get(job_id)
    after = () if own is None else own.submitted.after
    later = views.page(JobFilter(labels=(waits_for(job_id),)), limit=SUCCESSORS_MAX).jobs
    return tuple(related(one, one.job, views.get(JobId(one.job))) for one in after), tuple(
        related(one, job.id, job)
        for job in later
        for one in job.submitted.after
        if one.job == job_id
    )


def read_timeline(
    log: EventReader,
    job: JobId,
    *,
    payloads: PayloadStore,
    archived: Sequence[RecordedEvent] = (),
) -> Timeline | None:
    """Return the timeline of a job, ``None`` if there is no such job.

    Args:
        log: The events of the job and of its workers.
        payloads: Has the text that names its client.
        archived: Its events, if the log has them no longer.
    """
    events = log.load(StreamName(job)) or archived
    if not events or events[0].type != "JobSubmitted":
        return None
    workers = {str(event.data["worker"]) for event in events if event.type == "AttemptStarted"}
    losses = {
        WorkerId(worker): lost.recorded_at
        for worker in workers
        for lost in log.select(EventFilter(stream=worker, types=("WorkerLost",)), limit=1)
    }
    return build_timeline(events, losses, client=_client(events[0], payloads))


def _client(submitted: RecordedEvent, payloads: PayloadStore) -> str | None:
    """Return the text that names the client; ``None`` if there is none, or it was erased."""
    digest = submitted.data.get("client_name")
    try:
        return None if digest is None else payloads.get(Digest(digest)).decode("utf-8", "replace")
    except TEXT_LOST:
        return None
