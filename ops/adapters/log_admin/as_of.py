"""A log opened for reading only, with the events of its archives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from domain.errors import LogUnavailable
from domain.log.record import RecordedEvent
from domain.values import StreamName
from ops.adapters.event_log.archives import archived_stream, each_event
from ops.adapters.event_log.database import database_file, reader_engine
from ops.adapters.event_log.migrate import refuse_newer_program
from ops.adapters.event_log.reader import LogReader


class AsOfLog(LogReader):
    """A log reader that also finds archived streams; a service may write to the log meanwhile.

    Args:
        engine: From ``reader_engine``.
        url: Of the log, beside which its archives lie.
    """

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__(engine)
        self._url = url

    def each(self) -> Iterator[RecordedEvent]:
        """Yield every event from the first on, also those of the archives.

        Raises:
            LogUnavailable: A file or the database cannot be read.
            CorruptLog: An event cannot be read.
        """
        return each_event(self._engine, self._url)

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.load``; an archived stream is read from the archives that are present.

        Raises:
            LogUnavailable: A file or the database cannot be read.
            CorruptLog: An event cannot be read.
        """
        stored = super().load(stream, after_version=after_version)
        if stored:
            return stored
        archived = archived_stream(self._engine, self._url, stream)
        return tuple(event for event in archived if event.version > after_version)


@contextmanager
def open_as_of(url: str) -> Iterator[AsOfLog]:
    """Open an existing log.

    Raises:
        LogNewer: A newer program has written to the log.
        LogUnavailable: There is no log at ``url``.
    """
    file = database_file(url)
    if file is not None and not file.exists():
        msg = f"there is no event log at {file}"
        raise LogUnavailable(msg)
    refuse_newer_program(url)
    engine = reader_engine(url)
    try:
        yield AsOfLog(engine, url)
    finally:
        engine.dispose()
