"""Appends a batch of events inside one write transaction.

A transaction first reads every row that the batch depends on by its key, then decides each append
in memory, and writes all new rows at the end. A refused append has changed nothing, so the others
need no savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, insert, select

from domain.errors import (
    ConcurrencyConflict,
    IdempotencyKeyTaken,
    LogUnavailable,
    UniqueJobExists,
)
from domain.events.cache import AgentCacheMissed, AgentCacheRestored
from domain.events.event import Event
from domain.events.job import JobSubmitted
from domain.log.record import Append, Draft, LogHead, RecordedEvent, reader_needed, refuse_newer
from domain.ports import Clock, IdSource
from domain.values import Digest, StreamName, rfc3339
from ops.log.hot_statements import HotStatement
from ops.log.migrate import raise_reader_min, read_reader_min
from ops.log.projections.fold import (
    LIVE,
    ProjectionFold,
    catch_up,
    read_checkpoint,
    write_checkpoint,
)
from ops.log.projections.jobs import UNIQUE_HOLDER
from ops.log.row_codec import (
    event_of,
    event_values,
    link,
    read_stamped_head,
    with_texts,
)
from ops.log.tables import EVENTS, JOBS, PAYLOADS

_VERSION = HotStatement(
    select(func.max(EVENTS.c.version)).where(EVENTS.c.stream == bindparam("stream"))
)
_BY_EVENT_ID = HotStatement(select(EVENTS).where(EVENTS.c.event_id == bindparam("event_id")))
_DIGEST = HotStatement(select(PAYLOADS.c.digest).where(PAYLOADS.c.digest == bindparam("digest")))
_KEY_HOLDER = HotStatement(select(JOBS.c.id).where(JOBS.c.idempotency == bindparam("idempotency")))
_INSERT_EVENTS = HotStatement(insert(EVENTS).inline())
_INSERT_PAYLOADS = HotStatement(insert(PAYLOADS).inline())


class LogTransaction:
    """Appends on a connection that holds the write lock; the caller commits.

    Other processes write to the same log, so each transaction reads its rows again.

    Args:
        now: Returns the timestamp of new events; that of the last event where it is earlier.

    Raises:
        LogNewer: A newer program has written to the log since this one opened it.
    """

    def __init__(
        self, connection: Connection, batch: Sequence[Append], *, now: Callable[[], str]
    ) -> None:
        self._connection = connection
        self._now = now
        self._reader_min = self._reader_needed = read_reader_min(connection)
        refuse_newer(self._reader_min)
        self._head, self._last_at = read_stamped_head(connection)
        parts = [part for one in batch for part in one.parts]
        streams = {part.stream for part in parts}
        self._versions = {stream: _version(connection, stream) for stream in streams}
        self._existing: dict[str, RecordedEvent] = {}
        for event_id in {draft.event_id for part in parts for draft in part.drafts}:
            row = _BY_EVENT_ID.row(connection, {"event_id": event_id})
            if row is not None:
                (self._existing[event_id],) = with_texts(connection, [event_of(row)])
        self._projections = (
            ProjectionFold(connection, LIVE, streams | _named_jobs(parts))
            if self._are_projections_current()
            else None
        )
        self._recorded: list[RecordedEvent] = []
        self._keys: dict[Digest, StreamName] = {}
        self._payloads: dict[Digest, bytes] = {}

    def append(self, request: Append) -> tuple[RecordedEvent, ...]:
        """Append all drafts of a request or none; other requests are not affected.

        Raises:
            ConcurrencyConflict: A stream has another version.
            IdempotencyKeyTaken: A submitted job has the key of another job.
            UniqueJobExists: A submitted job is unique, and another job holds that now.
            LogUnavailable: The projections, which have the keys, are behind the log.
            ValueError: An event id exists in another stream.
        """
        fresh = [(part, drafts) for part in request.parts if (drafts := self._fresh_drafts(part))]
        if fresh:
            self._record(fresh)
        return tuple(self._existing[draft.event_id] for draft in request.drafts)

    def write(self) -> None:
        """Write the new rows and the projections' checkpoint; call once, before the commit."""
        if not self._recorded:
            return
        rows = [event_values(event) for event in self._recorded]
        _INSERT_EVENTS.run_many(self._connection, rows)
        if self._reader_needed > self._reader_min:
            raise_reader_min(self._connection, self._reader_needed)
        self._write_payloads()
        if self._projections is not None:
            self._projections.write()
            write_checkpoint(self._connection, LIVE.jobs, self._head.position)

    def _are_projections_current(self) -> bool:
        checkpoint = read_checkpoint(self._connection, LIVE.jobs)
        if checkpoint.is_current_version and checkpoint.position < self._head.position:
            # Events were written without projections; several transactions close a large gap.
            checkpoint = catch_up(self._connection, LIVE)
        return checkpoint.is_current_version and checkpoint.position == self._head.position

    def _fresh_drafts(self, part: Append) -> list[Draft]:
        for draft in part.drafts:
            existing = self._existing.get(draft.event_id)
            if existing is not None and existing.stream != part.stream:
                msg = f"event {draft.event_id} stands in {existing.stream}, not {part.stream}"
                raise ValueError(msg)
        return [draft for draft in part.drafts if draft.event_id not in self._existing]

    def _record(self, parts: Sequence[tuple[Append, Sequence[Draft]]]) -> None:
        # Another process may have written the last event, with a clock that was ahead.
        now = max(self._last_at, self._now())
        keys: dict[Digest, StreamName] = {}
        for part, drafts in parts:
            if (version := self._versions[part.stream]) != part.expected_version:
                raise ConcurrencyConflict(
                    part.stream, expected=part.expected_version, actual=version
                )
            keys |= self._fresh_keys(part.stream, drafts, now)
        head = self._head
        recorded: list[RecordedEvent] = []
        for part, drafts in parts:
            for version, draft in enumerate(drafts, start=part.expected_version + 1):
                event = link(
                    draft, stream=part.stream, version=version, before=head, recorded_at=now
                )
                recorded.append(event)
                head = LogHead(position=event.position, hash=event.hash)
        if self._projections is not None:
            self._projections.fold(recorded)
        # Nothing below can fail, so a refused append changes nothing.
        self._head, self._last_at = head, now
        self._versions |= {event.stream: event.version for event in recorded}
        self._recorded += recorded
        needed = (reader_needed(event.type, event.schema_version) for event in recorded)
        self._reader_needed = max(self._reader_needed, *needed)
        self._keys |= keys
        self._existing |= {event.event_id: event for event in recorded}
        for part, _ in parts:
            self._payloads |= part.payloads
        for event in recorded:
            self._payloads |= event.texts

    def _fresh_keys(
        self, stream: StreamName, drafts: Sequence[Draft], now: str
    ) -> dict[Digest, StreamName]:
        """Return the new idempotency and unique keys of ``drafts``; raise if one is taken."""
        fresh: dict[Digest, StreamName] = {}
        for event in (draft.event for draft in drafts):
            if not isinstance(event, JobSubmitted):
                continue
            if event.idempotency is not None:
                query: dict[str, str] = {"idempotency": event.idempotency}
                if (holder := self._holder(event.idempotency, _KEY_HOLDER, query)) is not None:
                    raise IdempotencyKeyTaken(holder)
                fresh[event.idempotency] = stream
            if event.unique is not None:
                query = {"unique": event.unique, "at": now}
                if (holder := self._holder(event.unique, UNIQUE_HOLDER, query)) is not None:
                    raise UniqueJobExists(holder)
                fresh[event.unique] = stream
        return fresh

    def _holder(self, key: Digest, holder: HotStatement, query: Mapping[str, str]) -> str | None:
        """Return the job of this batch or of the table that has a key."""
        if self._projections is None:
            raise LogUnavailable("the projections are being rebuilt; try again in a moment")
        row = holder.row(self._connection, query)
        return self._keys.get(key) if row is None else str(row[0])

    def _write_payloads(self) -> None:
        if not self._payloads:
            return
        missing = [
            {"digest": digest, "content": content, "bytes": len(content)}
            for digest, content in self._payloads.items()
            if _DIGEST.row(self._connection, {"digest": digest}) is None
        ]
        if missing:
            _INSERT_PAYLOADS.run_many(self._connection, missing)


def _named_jobs(parts: Sequence[Append]) -> set[str]:
    events = (draft.event for part in parts for draft in part.drafts)
    return {
        event.job for event in events if isinstance(event, AgentCacheRestored | AgentCacheMissed)
    }


def append_event(
    connection: Connection, stream: StreamName, event: Event, *, clock: Clock, ids: IdSource
) -> None:
    """Append one event to the end of a stream; the caller commits.

    Args:
        connection: In a transaction that holds the write lock.
        event: Its event id is its correlation id too.
    """
    event_id = ids.event_id()
    request = Append(
        stream=stream,
        drafts=(Draft(event_id=event_id, event=event, correlation_id=event_id),),
        expected_version=_version(connection, stream),
    )
    transaction = LogTransaction(connection, [request], now=lambda: rfc3339(clock.now()))
    transaction.append(request)
    transaction.write()


def _version(connection: Connection, stream: StreamName) -> int:
    ((version,),) = _VERSION.rows(connection, {"stream": stream})
    return version or 0
