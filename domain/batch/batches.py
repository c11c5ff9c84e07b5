"""Accepts, loads, cancels, deletes and lists batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from domain.batch.ports import BatchViews
from domain.batch.state import (
    Batch,
    BatchId,
    decide,
    evolve,
    fold,
)
from domain.errors import BatchNotFound, Overloaded, RateLimited
from domain.events.batch import (
    BatchCancelRequested,
    BatchDeleted,
    BatchEvent,
    BatchStarted,
    BatchSubmitted,
)
from domain.log.codec import decode_recorded
from domain.log.folded_stream import again_after_conflicts
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource
from domain.shares import shortage
from domain.values import Digest, Owner, StreamName

#: Streams read at a time while a page is filled.
STREAMS_AT_ONCE: Final = 100
#: ``Retry-After`` of a batch that has no room, in seconds.
BATCH_RETRY_S: Final = 60

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page; ``has_more``: whether more rows follow in its direction."""

    rows: tuple[T, ...]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecords:
    """Accepts, loads, cancels, deletes and lists batches; one per process.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written: nothing is
    recorded then.
    """

    log: EventLog
    views: BatchViews
    ids: IdSource

    def load(self, batch_id: BatchId) -> Batch:
        """Fold a batch from the log.

        Raises:
            BatchNotFound: It has no events, or was deleted.
        """
        batch = self._load(batch_id)[0]
        if not batch.version or batch.deleted:
            raise BatchNotFound(batch_id)
        return batch

    def accept(
        self,
        batch_id: BatchId,
        submitted: BatchSubmitted,
        *,
        correlation_id: str,
        payloads: Mapping[Digest, bytes],
        is_checked: bool,
    ) -> Batch:
        """Record a batch; ``BatchDriver`` turns its lines into jobs.

        Args:
            batch_id: A fresh id.
            payloads: The lines, packed by ``domain.batch.jsonl``, unless they are stored already.
            is_checked: Whether the lines are checked as a whole, so that the batch starts at once.
        """
        events = (submitted, BatchStarted()) if is_checked else (submitted,)
        drafts = [
            Draft(event_id=self.ids.event_id(), event=event, correlation_id=correlation_id)
            for event in events
        ]
        recorded = self.log.append(
            StreamName(batch_id), drafts, expected_version=0, payloads=payloads
        )
        return fold(batch_id, map(_dated, recorded))

    def require_room(self, *, batches_max: int, owner: Owner | None = None) -> None:
        """Refuse a new batch if too many are open.

        Args:
            owner: The API key whose share counts; ``None`` where no other key is in need of one.

        Raises:
            Overloaded: Naming the limit.
            RateLimited: Naming the share of the key.
        """
        views = self.views
        mine = None if owner is None else len(views.unfinished(owner=owner))
        found = shortage(batches_max, held=len(views.unfinished()), mine=mine)
        if found is None:
            return
        then = "wait for one to end or cancel one"
        if found.of_holder:
            full = f"this key may have {found.limit} of the {batches_max} open batches; {then}"
            raise RateLimited(full, retry_after_s=BATCH_RETRY_S)
        full = f"{batches_max} batches are open already; {then}"
        raise Overloaded(full, retry_after_s=BATCH_RETRY_S)

    def commit(
        self,
        batch_id: BatchId,
        proposal: BatchEvent,
        *,
        payloads: Mapping[Digest, bytes] | None = None,
    ) -> Batch:
        """Decide on the present state and append; decide again after a concurrent append.

        Raises:
            BatchNotFound: It has no events, or was deleted.
            BatchNotEnded: From ``decide``.
        """

        def append() -> Batch:
            batch, last = self._load(batch_id)
            if last is None or batch.deleted:
                raise BatchNotFound(batch_id)
            events = decide(batch, proposal)
            if not events:
                return batch
            drafts = [
                Draft(
                    event_id=self.ids.event_id(),
                    event=event,
                    correlation_id=last.correlation_id,
                    causation_id=last.event_id,
                )
                for event in events
            ]
            recorded = self.log.append(
                StreamName(batch_id), drafts, expected_version=batch.version, payloads=payloads
            )
            for event, at in map(_dated, recorded):
                batch = evolve(batch, event, at)
            return batch

        return again_after_conflicts(append)

    def cancel(self, batch_id: BatchId) -> Batch:
        """Request the early end of a batch; one that is ending or has ended stays as it is.

        Raises:
            BatchNotFound: There is no such batch.
        """
        return self.commit(batch_id, BatchCancelRequested())

    def delete(self, batch_id: BatchId) -> None:
        """Delete a batch; its jobs stay in the log.

        Raises:
            BatchNotFound: There is no such batch.
            BatchNotEnded: The batch is open.
        """
        self.commit(batch_id, BatchDeleted())

    def page(
        self,
        protocols: Sequence[str],
        *,
        limit: int,
        after: BatchId | None = None,
        before: BatchId | None = None,
        owner: Owner | None = None,
    ) -> Page[Batch]:
        """Return batches of some protocols, newest first.

        Args:
            after: Only older ones than this.
            before: Only newer ones than this, nearest to it; goes before ``after``.
        """

        def shown(stream: StreamName) -> Batch | None:
            batch = self._load(BatchId(stream))[0]
            return batch if not batch.deleted and batch.facts.protocol in protocols else None

        found = fill_page(
            BatchSubmitted.__name__,
            shown,
            limit=limit,
            views=self.views,
            after=before or after,
            oldest_first=before is not None,
            owner=owner,
        )
        rows = found.rows[::-1] if before is not None else found.rows
        return Page(rows=rows, has_more=found.has_more)

    def _load(self, batch_id: BatchId) -> tuple[Batch, RecordedEvent | None]:
        recorded = self.log.load(StreamName(batch_id))
        return fold(batch_id, map(_dated, recorded)), recorded[-1] if recorded else None


def fill_page(
    type_name: str,
    load: Callable[[StreamName], T | None],
    *,
    limit: int,
    views: BatchViews,
    after: str | None,
    oldest_first: bool,
    owner: Owner | None = None,
) -> Page[T]:
    """Return a page of the rows that ``load`` returns, without those that are ``None``.

    Args:
        type_name: Type of the first event of such a stream.
        after: The stream before the first one.
    """

    def found() -> Iterator[T]:
        cursor = after
        while streams := views.streams(
            type_name,
            limit=STREAMS_AT_ONCE,
            after=cursor,
            oldest_first=oldest_first,
            owner=owner,
        ):
            for stream in streams:
                row = load(stream)
                if row is not None:
                    yield row
            cursor = streams[-1]

    rows = tuple(islice(found(), limit + 1))
    return Page(rows=rows[:limit], has_more=len(rows) > limit)


def _dated(recorded: RecordedEvent) -> tuple[BatchEvent, str]:
    event = decode_recorded(recorded)
    assert isinstance(event, BatchEvent)
    return event, recorded.recorded_at
