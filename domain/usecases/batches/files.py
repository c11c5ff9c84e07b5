"""Stores, loads, deletes and lists files."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from domain.batch.files import FileId, StoredFile, fold
from domain.batch.ports import BatchViews
from domain.errors import ConcurrencyConflict, FileNotFound
from domain.events.batch import FileCreated, FileDeleted, FileEvent
from domain.log.codec import decode_event
from domain.log.ports import EventLog
from domain.log.record import Draft, RecordedEvent
from domain.ports import IdSource
from domain.usecases.batches.batches import Page, fill_page
from domain.usecases.jobs.commit import COMMIT_TRIES_MAX
from domain.values import Digest, StreamName


def load_file(file_id: FileId, *, now: str, log: EventLog) -> StoredFile:
    """Fold a file from the log.

    Raises:
        FileNotFound: It was never created, was deleted, or has expired.
    """
    file = _load(file_id, log)
    if not file.is_shown(now):
        raise FileNotFound(file_id)
    return file


def keep_file(
    file_id: FileId,
    created: FileCreated,
    *,
    correlation_id: str,
    payloads: Mapping[Digest, bytes],
    log: EventLog,
    ids: IdSource,
) -> StoredFile:
    """Record a file with its content; an existing file of this id stays as it is.

    Raises:
        LogUnavailable: Nothing was recorded.
    """
    draft = Draft(event_id=ids.event_id(), event=created, correlation_id=correlation_id)
    try:
        log.append(StreamName(file_id), [draft], expected_version=0, payloads=payloads)
    except ConcurrencyConflict:
        # Files of answers have ids that follow from their batch; a crash came after the first try.
        return _load(file_id, log)
    return _load(file_id, log)


def delete_file(
    file_id: FileId, *, now: str, correlation_id: str, log: EventLog, ids: IdSource
) -> None:
    """Delete a file; batches of its lines go on.

    Raises:
        FileNotFound: There is no such file.
        LogUnavailable: Nothing was recorded.
    """
    for tries_left in reversed(range(COMMIT_TRIES_MAX)):
        file = load_file(file_id, now=now, log=log)
        draft = Draft(event_id=ids.event_id(), event=FileDeleted(), correlation_id=correlation_id)
        try:
            log.append(StreamName(file_id), [draft], expected_version=file.version)
        except ConcurrencyConflict:
            if not tries_left:
                raise
            continue
        return


def list_files(
    *,
    limit: int,
    now: str,
    log: EventLog,
    views: BatchViews,
    purposes: Collection[str] = (),
    after: FileId | None = None,
    oldest_first: bool = False,
) -> Page[StoredFile]:
    """Return files, newest first by default.

    Args:
        limit: Most rows.
        now: Those that have expired at this instant are left out.
        log: The events of the files.
        views: Lists the files.
        purposes: Only files of these purposes; all if empty.
        after: The file before the first one.
        oldest_first: The order.
    """

    def load(stream: StreamName) -> StoredFile | None:
        file = _load(FileId(stream), log)
        wanted = not purposes or file.facts.purpose in purposes
        return file if wanted and file.is_shown(now) else None

    return fill_page(
        FileCreated.__name__,
        load,
        limit=limit,
        views=views,
        after=after,
        oldest_first=oldest_first,
    )


def _load(file_id: FileId, log: EventLog) -> StoredFile:
    return fold(file_id, map(_dated, log.load(StreamName(file_id))))


def _dated(recorded: RecordedEvent) -> tuple[FileEvent, str]:
    event = decode_event(recorded.type, recorded.schema_version, recorded.data)
    assert isinstance(event, FileEvent)
    return event, recorded.recorded_at
