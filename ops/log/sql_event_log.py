"""The event log of one process: a writer thread, reader connections and the projections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from domain.errors import LogUnavailable
from domain.events.event import Event, is_new_work
from domain.log.record import Append, Draft, RecordedEvent
from domain.ports import Clock
from domain.values import Digest, StreamName
from ops.data_dir.free_space import Reserve
from ops.log.database import database_file, reader_engine, writer_engine
from ops.log.migrate import current, expected, refuse_newer_program
from ops.log.projections.agents import SqlAgentViews
from ops.log.projections.jobs import SqlJobViews
from ops.log.projections.owners import SqlBatchViews, SqlOwners
from ops.log.projections.rebuild import ensure_projections
from ops.log.projections.usage import SqlUsageViews
from ops.log.reader import LogReader
from ops.log.writer import LogWriter
from ops.observe.counter_file import Figures

AdmitWork = Callable[[Sequence[Event]], None]


class SqlEventLog(LogReader):
    """``EventLog`` and ``PayloadStore`` on one database; close it, or use it in a ``with``.

    Made by ``open_log``, which checks the version of the tables.
    """

    def __init__(self, url: str, *, clock: Clock) -> None:
        self._readers = reader_engine(url)
        super().__init__(self._readers)
        self.views = SqlJobViews(self._readers)
        self.batches = SqlBatchViews(self._readers)
        self.agents = SqlAgentViews(self._readers)
        self.usage = SqlUsageViews(self._readers)
        #: Called with new work before it is appended; may raise.
        self.admit_work: AdmitWork = lambda _events: None
        self.owners = SqlOwners(self._readers)
        file = database_file(url)
        self._writer = LogWriter(
            writer_engine(url), clock=clock, reserve=None if file is None else Reserve.beside(file)
        )

    def figures(self) -> Figures:
        """Return what the writer of this process has done so far, by metric family."""
        return self._writer.figures()

    def append(
        self,
        stream: StreamName,
        drafts: Sequence[Draft],
        *,
        expected_version: int,
        payloads: Mapping[Digest, bytes] | None = None,
        also: Append | None = None,
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.append``.

        Raises:
            SemanticError: A draft begins work, and ``admit_work`` refuses it.
            ValueError: From ``Append.check``.
        """
        if any(is_new_work(draft.event) for draft in drafts):
            self.admit_work([draft.event for draft in drafts])
        request = Append(
            stream=stream,
            drafts=tuple(drafts),
            expected_version=expected_version,
            payloads=payloads or {},
            also=also,
        )
        request.check()
        return self._writer.append(request)

    def check_writable(self) -> None:
        """See ``EventLog.check_writable``."""
        self.head()
        if (failure := self._writer.recent_failure()) is not None:
            raise LogUnavailable(failure)

    def close(self) -> None:
        """Write the accepted appends and close the connections; later appends are refused."""
        self._writer.close()
        self._readers.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_log(url: str, *, clock: Clock) -> SqlEventLog:
    """Open a log whose tables ``migrate.upgrade`` has created; bring its projections up to date.

    Raises:
        LogNewer: A newer program has upgraded the tables or written to the log.
        LogUnavailable: The tables are missing or of an earlier version, or cannot be written.
        CorruptLog: Events that the projections have read are missing.
    """
    refuse_newer_program(url)
    found = current(url)
    if found != expected():
        msg = (
            f"the event log is at schema {found}, this program needs {expected()}: "
            "run `semantic log upgrade`"
        )
        raise LogUnavailable(msg)
    ensure_projections(url)
    return SqlEventLog(url, clock=clock)
