"""Accepts, loads, cancels, deletes and lists batches and files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from domain.batch.ports import BatchViews, FileId, StoredFile, evolve_file
from domain.batch.state import (
    Batch,
    BatchId,
    decide,
    evolve,
)
from domain.errors import BatchNotFound, FileNotFound
from domain.events.batch import (
    BatchCancelRequested,
    BatchDeleted,
    BatchEvent,
    BatchStarted,
    BatchSubmitted,
    FileCreated,
    FileDeleted,
)
from domain.log.folded_stream import FoldedStream
from domain.log.ports import EventLog
from domain.ports import Clock, IdSource
from domain.shares import require_one_more
from domain.values import Digest, Owner, StreamName, rfc3339

#: Streams read at a time while a page is filled.
STREAMS_AT_ONCE: Final = 100

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
        batch = self._stream(batch_id).read()
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
        stream = self._stream(batch_id)
        stream.commit(lambda _: events, correlation_id=correlation_id, payloads=payloads)
        return stream.read()

    def require_room(self, *, batches_max: int, owner: Owner | None = None) -> None:
        """Refuse a new batch if too many are open.

        Args:
            owner: The API key whose share counts; ``None`` where no other key is in need of one.

        Raises:
            Overloaded: Naming the limit.
            RateLimited: Naming the share of the key.
        """
        require_one_more(
            batches_max,
            held=len(self.views.unfinished()),
            mine=None if owner is None else len(self.views.unfinished(owner=owner)),
            what="open batches",
            hint="wait for one to end or cancel one",
        )

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

        def events_on(batch: Batch) -> Sequence[BatchEvent]:
            if not batch.version or batch.deleted:
                raise BatchNotFound(batch_id)
            return decide(batch, proposal)

        stream = self._stream(batch_id)
        stream.commit(events_on, payloads=payloads, continues=True)
        return stream.read()

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
            batch = self._stream(BatchId(stream)).read()
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

    def _stream(self, batch_id: BatchId) -> FoldedStream[Batch]:
        return FoldedStream(
            StreamName(batch_id),
            log=self.log,
            ids=self.ids,
            initial=Batch(id=batch_id),
            evolve=evolve,
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecords:
    """Stores, loads, deletes and lists files; one per process.

    Its methods raise ``LogUnavailable`` where the log cannot be read, or written: nothing is
    recorded then.

    Attributes:
        clock: The present; a file that has expired is not found.
    """

    log: EventLog
    views: BatchViews
    ids: IdSource
    clock: Clock

    def load(self, file_id: FileId) -> StoredFile:
        """Fold a file from the log.

        Raises:
            FileNotFound: It was never created, was deleted, or has expired.
        """
        file = self._stream(file_id).read()
        self._require_shown(file)
        return file

    def keep(
        self,
        file_id: FileId,
        created: FileCreated,
        *,
        correlation_id: str,
        payloads: Mapping[Digest, bytes],
    ) -> StoredFile:
        """Record a file with its content; an existing file of this id stays as it is."""
        stream = self._stream(file_id)
        # The id of a result file follows from its batch: a try before a crash may have stored it.
        stream.commit(
            lambda file: () if file.version else (created,),
            correlation_id=correlation_id,
            payloads=payloads,
        )
        return stream.read()

    def delete(self, file_id: FileId, *, correlation_id: str) -> None:
        """Delete a file; batches of its lines go on.

        Raises:
            FileNotFound: There is no such file.
        """

        def events_on(file: StoredFile) -> Sequence[FileDeleted]:
            self._require_shown(file)
            return (FileDeleted(),)

        self._stream(file_id).commit(events_on, correlation_id=correlation_id)

    def page(
        self,
        *,
        limit: int,
        purposes: Collection[str] = (),
        after: FileId | None = None,
        oldest_first: bool = False,
        owner: Owner | None = None,
    ) -> Page[StoredFile]:
        """Return files that have not expired, newest first by default.

        Args:
            purposes: Only files of these purposes; all if empty.
        """
        now = self._now()

        def shown(stream: StreamName) -> StoredFile | None:
            file = self._stream(FileId(stream)).read()
            wanted = not purposes or file.facts.purpose in purposes
            return file if wanted and file.is_shown(now) else None

        return fill_page(
            FileCreated.__name__,
            shown,
            limit=limit,
            views=self.views,
            after=after,
            oldest_first=oldest_first,
            owner=owner,
        )

    def _require_shown(self, file: StoredFile) -> None:
        if not file.is_shown(self._now()):
            raise FileNotFound(file.id)

    def _stream(self, file_id: FileId) -> FoldedStream[StoredFile]:
        return FoldedStream(
            StreamName(file_id),
            log=self.log,
            ids=self.ids,
            initial=StoredFile(id=file_id),
            evolve=evolve_file,
        )

    def _now(self) -> str:
        return rfc3339(self.clock.now())
