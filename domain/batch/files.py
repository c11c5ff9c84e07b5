"""Stores, loads, deletes and lists files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from domain.batch.batches import Page, fill_page
from domain.batch.ports import BatchViews, FileId, StoredFile, fold
from domain.errors import ConcurrencyConflict, FileNotFound
from domain.events.batch import FileCreated, FileDeleted, FileEvent
from domain.log.codec import decode_recorded
from domain.log.folded_stream import again_after_conflicts
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import Clock, IdSource
from domain.values import Digest, Owner, StreamName, rfc3339


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
        file = self._load(file_id)
        if not file.is_shown(self._now()):
            raise FileNotFound(file_id)
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
        draft = Draft(event_id=self.ids.event_id(), event=created, correlation_id=correlation_id)
        # The id of a result file follows from its batch: a try before a crash may have stored it.
        with suppress(ConcurrencyConflict):
            self.log.append(StreamName(file_id), [draft], expected_version=0, payloads=payloads)
        return self._load(file_id)

    def delete(self, file_id: FileId, *, correlation_id: str) -> None:
        """Delete a file; batches of its lines go on.

        Raises:
            FileNotFound: There is no such file.
        """

        def append() -> None:
            file = self.load(file_id)
            draft = Draft(
                event_id=self.ids.event_id(), event=FileDeleted(), correlation_id=correlation_id
            )
            self.log.append(StreamName(file_id), [draft], expected_version=file.version)

        again_after_conflicts(append)

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
            file = self._load(FileId(stream))
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

    def _load(self, file_id: FileId) -> StoredFile:
        return fold(file_id, map(_dated, self.log.load(StreamName(file_id))))

    def _now(self) -> str:
        return rfc3339(self.clock.now())


def _dated(recorded: RecordedEvent) -> tuple[FileEvent, str]:
    event = decode_recorded(recorded)
    assert isinstance(event, FileEvent)
    return event, recorded.recorded_at
