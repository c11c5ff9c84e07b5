"""An event log in memory that passes the contract of the real one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

from domain.errors import (
    ConcurrencyConflict,
    IdempotencyKeyTaken,
    LogUnavailable,
    PayloadMissing,
    UniqueJobExists,
)
from domain.events.job import JobSubmitted
from domain.job.eta import MeasuredJob, QueuedJob, RunningJob
from domain.job.fair_scheduler import line_of
from domain.job.listing import ALL_JOBS, JobFilter, JobPage, OpenJobs
from domain.job.state import Job, fold_recorded, is_job_event, job_id_of
from domain.log.record import (
    AGENT_STREAM,
    GENESIS_HASH,
    Append,
    Draft,
    EventFilter,
    LogHead,
    Ownership,
    RecordedEvent,
)
from domain.ports import Clock
from domain.usage.fold import UsageChange, usage_of
from domain.values import (
    AgentId,
    Digest,
    JobId,
    JobStatus,
    Owner,
    Priority,
    StreamName,
    rfc3339,
)
from ops.log.row_codec import link
from tests.support.fakes.projections import InMemoryAgentViews, InMemoryUsageViews
from tests.support.fakes.time import FakeClock


class InMemoryJobViews:
    """The jobs projection of an ``InMemoryEventLog``; rows in order of acceptance."""

    def __init__(self) -> None:
        self.rows: dict[JobId, Job] = {}

    def get(self, job_id: JobId) -> Job | None:
        return self.rows.get(job_id)

    def page(
        self, wanted: JobFilter = ALL_JOBS, *, limit: int, before: JobId | None = None
    ) -> JobPage:
        owner = wanted.owner
        ids = [view.id for view in self.rows.values() if owner in {None, view.submitted.owner}]
        if before is not None:
            ids = ids[: ids.index(before)] if before in ids else []
        views = (self.rows[job_id] for job_id in reversed(ids))
        found = [view for view in views if wanted.fits(view)]
        return JobPage(jobs=tuple(found[:limit]), has_more=len(found) > limit)

    def unfinished(self, *, with_held: bool = True) -> tuple[Job, ...]:
        return tuple(
            view
            for view in self.rows.values()
            if not view.status.is_terminal and (with_held or view.status is not JobStatus.HELD)
        )

    def held(self, now: str, *, limit: int, after: int = 0) -> tuple[Job, ...]:
        found = [
            view
            for view in self.rows.values()
            if view.held_until is not None
            and view.held_until <= now
            and view.accepted_position > after
            and (
                (awaited := self.rows.get(JobId(view.awaits or ""))) is None or awaited.finished_at
            )
        ]
        return tuple(found[:limit])

    def count_held(self, *, owner: Owner | None = None) -> int:
        rows = self.rows.values()
        return sum(
            one.status is JobStatus.HELD and owner in {None, one.submitted.owner} for one in rows
        )

    def overdue(self, now: str) -> tuple[Job, ...]:
        return tuple(
            view
            for view in self.rows.values()
            if (due_at := view.due_at) is not None and due_at <= now
        )

    def keyed(self, key: Digest) -> Job | None:
        return next(
            (view for view in self.rows.values() if view.submitted.idempotency == key), None
        )

    def holder(self, unique: Digest, *, at: str) -> Job | None:
        held = (one for one in self.rows.values() if one.unique == unique)
        return next((one for one in held if (one.submitted.unique_until or "") > at), None)

    def alike(self, asked: Digest, *, limit: int) -> tuple[Job, ...]:
        found = [view for view in reversed(self.rows.values()) if view.submitted.asked == asked]
        return tuple(found[:limit])

    def waiting(self, priority: Priority, *, owner: Owner | None = None) -> dict[str | None, int]:
        return Counter(
            view.submitted.bound_model
            for view in self.rows.values()
            if view.status is JobStatus.QUEUED
            and view.submitted.priority == priority
            and owner in {None, view.submitted.owner}
        )

    def counts(self) -> dict[JobStatus, int]:
        found = Counter(view.status for view in self.rows.values())
        return {status: found[status] for status in JobStatus}

    def bound_models(self) -> tuple[str, ...]:
        bound = {view.submitted.bound_model for view in self.unfinished(with_held=False)}
        return tuple(sorted(model for model in bound if model is not None))

    def bound(self, model: str, *, accepted_before: str, limit: int) -> tuple[Job, ...]:
        found = [
            view
            for view in self.unfinished(with_held=False)
            if view.submitted.bound_model == model
            and not view.cancel_requested
            and (
                not view.submitted.waits_for_model
                or view.waiting_since < accepted_before
                or view.status is JobStatus.RUNNING
            )
        ]
        return tuple(found[:limit])


class InMemoryQueueViews:
    """``QueueViews`` of an ``InMemoryEventLog``."""

    def __init__(self, log: InMemoryEventLog) -> None:
        self._log = log

    def queued(self, priority: Priority, *, limit: int) -> tuple[QueuedJob, ...]:
        found = [
            QueuedJob(
                id=view.id,
                line=line_of(view.submitted.agent, view.submitted.owner),
                priority=priority,
                urgency=view.submitted.urgency,
                has_begun=view.has_begun,
                request_bytes=self._size(view),
                max_tokens=self._max_tokens(view),
                bound_model=view.submitted.bound_model,
            )
            for view in self._in(JobStatus.QUEUED)
            if view.submitted.priority == priority
        ]
        return tuple(found[:limit])

    def running(self, *, limit: int) -> tuple[RunningJob, ...]:
        found = [
            RunningJob(
                id=view.id,
                priority=Priority(view.submitted.priority),
                started_at=view.started_at or "",
                prompt_tokens=view.usage.prompt_tokens,
                cached_tokens=view.usage.cached_tokens,
                max_tokens=self._max_tokens(view),
            )
            for view in self._in(JobStatus.RUNNING)
        ]
        return tuple(found[:limit])

    def measured(self, *, limit: int) -> tuple[MeasuredJob, ...]:
        found = [
            MeasuredJob(
                prompt_tokens=view.usage.prompt_tokens,
                cached_tokens=view.usage.cached_tokens,
                completion_tokens=view.usage.completion_tokens,
                prefill_ms=view.timings.prefill_ms,
                decode_ms=view.timings.decode_ms,
                request_bytes=self._size(view),
            )
            for view in self._in(JobStatus.COMPLETED)[::-1]
        ]
        return tuple(found[:limit])

    def open_jobs(self) -> OpenJobs:
        queued, running = self._in(JobStatus.QUEUED), self._in(JobStatus.RUNNING)
        lines = {
            one: [view for view in queued if view.submitted.priority == one] for one in Priority
        }
        return OpenJobs(
            waiting={one: len(views) for one, views in lines.items()},
            oldest={one: views[0].created_at for one, views in lines.items() if views},
            running=len(running),
            agents=len({view.submitted.agent for view in (*queued, *running)} - {None}),
        )

    def _in(self, status: JobStatus) -> list[Job]:
        return [view for view in self._log.views.rows.values() if view.status is status]

    def _size(self, view: Job) -> int | None:
        try:
            return len(self._log.get(Digest(view.submitted.request)))
        except PayloadMissing:
            return None

    def _max_tokens(self, view: Job) -> int:
        return int(self._log.load(StreamName(view.id))[0].data["max_tokens"])


class InMemoryEventLog:
    """``EventLog`` and ``PayloadStore``; its ``views`` are the ``JobViews``.

    The two stores both have a ``get``, so they cannot be one object.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.views = InMemoryJobViews()
        self.queue_views = InMemoryQueueViews(self)
        self.usage = InMemoryUsageViews()
        self.agents = InMemoryAgentViews(self)
        #: While true, appends fail as on a full disk.
        self.unavailable = False
        self._clock = clock or FakeClock()
        self._lock = threading.Lock()
        self._events: list[RecordedEvent] = []
        self._payloads: dict[Digest, bytes] = {}

    def append(
        self,
        stream: StreamName,
        drafts: Sequence[Draft],
        *,
        expected_version: int,
        payloads: Mapping[Digest, bytes] | None = None,
        also: Append | None = None,
    ) -> tuple[RecordedEvent, ...]:
        request = Append(
            stream=stream,
            drafts=tuple(drafts),
            expected_version=expected_version,
            payloads=payloads or {},
            also=also,
        )
        request.check()
        with self._lock:
            if self.unavailable:
                raise LogUnavailable("the disk is full")
            return self._append(request)

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        return tuple(
            event
            for event in list(self._events)
            if event.stream == stream and event.version > after_version
        )

    def read_all(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        stream: StreamName | None = None,
        types: Sequence[str] = (),
    ) -> tuple[RecordedEvent, ...]:
        """Return events as ``select`` does; for tests."""
        return self.select(EventFilter(stream=stream, types=types), after=after, limit=limit)

    def select(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[RecordedEvent, ...]:
        found = (event for event in self._events[max(after, 0) :] if self._fits(event, wanted))
        return tuple(event for event, _ in zip(found, range(limit), strict=False))

    def select_before(
        self, wanted: EventFilter, *, before: int | None = None, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        events = self._events[: None if before is None else max(before - 1, 0)]
        found = tuple(event for event in events if self._fits(event, wanted))
        return found[max(0, len(found) - limit) :]

    def _fits(self, event: RecordedEvent, wanted: EventFilter) -> bool:
        if wanted.owner is not None:
            ownership = self.ownership_of(event.stream)
            if ownership is None or ownership.owner != wanted.owner:
                return False
        if wanted.agent is not None and event.stream != AGENT_STREAM + wanted.agent:
            view = self.views.rows.get(JobId(event.stream))
            if view is None or view.submitted.agent != wanted.agent:
                return False
        return (
            wanted.stream in {None, event.stream}
            and (not wanted.types or event.type in wanted.types)
            and (wanted.since is None or event.recorded_at >= wanted.since)
            and (wanted.until is None or event.recorded_at < wanted.until)
        )

    def ownership_of(self, stream: StreamName) -> Ownership | None:
        if stream.startswith(AGENT_STREAM):
            view = self.agents.get(AgentId(stream.removeprefix(AGENT_STREAM)))
            return None if view is None else Ownership(owner=view.owner)
        row = self.views.rows.get(JobId(stream))
        if row is not None:
            return Ownership(owner=row.submitted.owner)
        first = next((event for event in self._events if event.stream == stream), None)
        owner = None if first is None else first.data.get("owner")
        return None if owner is None else Ownership(owner=owner)

    @property
    def owners(self) -> Self:
        """The log itself, as the real one names this part."""
        return self

    def head(self) -> LogHead:
        events = self._events
        if not events:
            return LogHead(position=0, hash=GENESIS_HASH)
        return LogHead(position=events[-1].position, hash=events[-1].hash)

    def check_writable(self) -> None:
        if self.unavailable:
            raise LogUnavailable("the disk is full")

    def lose_payload(self, digest: Digest) -> None:
        """Drop a payload, as erasure does."""
        del self._payloads[digest]

    def get(self, digest: Digest) -> bytes:
        if digest not in self._payloads:
            raise PayloadMissing(digest)
        return self._payloads[digest]

    def _append(self, request: Append) -> tuple[RecordedEvent, ...]:
        by_id = {event.event_id: event for event in self._events}
        fresh: list[tuple[Append, list[Draft]]] = []
        for part in request.parts:
            for draft in part.drafts:
                if draft.event_id in by_id and by_id[draft.event_id].stream != part.stream:
                    raise ValueError(f"event {draft.event_id} stands in another stream")
            if drafts := [draft for draft in part.drafts if draft.event_id not in by_id]:
                fresh.append((part, drafts))
        if fresh:
            recorded = self._record(fresh)
            rows, usage = self._projected(recorded)
            self._events.extend(recorded)
            for part, _ in fresh:
                self._payloads = {**part.payloads, **self._payloads}
            for event in recorded:
                self._payloads |= event.texts
            self.views.rows = rows
            self.usage.changes += usage
            by_id |= {event.event_id: event for event in recorded}
        return tuple(by_id[draft.event_id] for draft in request.drafts)

    def _record(self, parts: Sequence[tuple[Append, Sequence[Draft]]]) -> list[RecordedEvent]:
        last_at = self._events[-1].recorded_at if self._events else ""
        now = max(last_at, rfc3339(self._clock.now()))
        for part, drafts in parts:
            version = len(self.load(part.stream))
            if version != part.expected_version:
                raise ConcurrencyConflict(
                    part.stream, expected=part.expected_version, actual=version
                )
            for draft in drafts:
                if isinstance(draft.event, JobSubmitted):
                    self._require_fresh(draft.event, now)
        recorded: list[RecordedEvent] = []
        head = self.head()
        for part, drafts in parts:
            for version, draft in enumerate(drafts, start=part.expected_version + 1):
                event = link(
                    draft, stream=part.stream, version=version, before=head, recorded_at=now
                )
                recorded.append(event)
                head = LogHead(position=event.position, hash=event.hash)
        return recorded

    def _require_fresh(self, event: JobSubmitted, now: str) -> None:
        key, unique = event.idempotency, event.unique
        if key is not None and (keyed := self.views.keyed(key)) is not None:
            raise IdempotencyKeyTaken(keyed.id)
        if unique is not None and (holder := self.views.holder(unique, at=now)) is not None:
            raise UniqueJobExists(holder.id)

    def _projected(
        self, recorded: Sequence[RecordedEvent]
    ) -> tuple[dict[JobId, Job], list[UsageChange]]:
        rows = dict(self.views.rows)
        usage: list[UsageChange] = []
        for event in recorded:
            if is_job_event(event):
                job_id = job_id_of(event)
                rows[job_id] = fold_recorded(rows.get(job_id), event)
            named = event.stream if is_job_event(event) else event.data.get("job")
            if (change := usage_of(event, rows.get(JobId(str(named))))) is not None:
                usage.append(change)
        return rows, usage
