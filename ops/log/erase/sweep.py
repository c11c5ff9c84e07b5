"""Erases what was deleted, and what a rule of retention overtakes; decides when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from sqlalchemy import Engine, func, select

from domain.events.agent import AgentDeleted
from domain.events.batch import BatchDeleted, FileDeleted
from domain.events.job import JobHidden
from domain.events.worker import ArchiveErased, LogArchived, TextsErased
from domain.log.record import AGENT_STREAM, EventFilter
from domain.log.text_owners import RetentionCut, cut_to_size
from domain.ports import Clock, IdSource
from domain.values import JobId, rfc3339
from ops.data_dir.permissions import sync_directory
from ops.log.archives import archive_path, archives_of, directory_of
from ops.log.database import (
    disposed,
    reader_engine,
    reading,
    unavailable,
    writer_engine,
    writing,
)
from ops.log.erase.erase import (
    FAILURE,
    LOG_STREAM,
    Doomed,
    erase_texts,
    find_doomed,
    own_blocks,
    remove_traces,
)
from ops.log.erase.text_map import (
    TextMap,
    erased_archives,
    last_erasure,
    read_text_map,
    stored_sizes,
)
from ops.log.reader import LogReader
from ops.log.tables import EVENTS
from ops.log.transaction import append_event
from ops.settings.service import RetentionSettings

_DELETIONS: Final = tuple(
    cls.__name__ for cls in (AgentDeleted, BatchDeleted, FileDeleted, JobHidden)
)


def last_deletion(reader: Engine) -> int:
    """Return the position of the last deletion, 0 if there is none."""
    query = select(func.max(EVENTS.c.position)).where(EVENTS.c.type.in_(_DELETIONS))
    with reading(reader) as connection:
        return int(connection.scalar(query) or 0)


def last_sweep(reader: Engine) -> tuple[int, int]:
    """Return up to where the last sweep that erased read the log, and what it left."""
    wanted = EventFilter(types=[TextsErased.__name__])
    last = LogReader(reader).select_before(wanted, limit=1)
    return (last[0].data.get("through", 0), last[0].data["waiting"]) if last else (0, 0)


#: Seconds between two sweeps for the rules of retention.
SWEEP_INTERVAL_S: Final = 3600.0
ItemsEraser = Callable[[Sequence[JobId]], object]
BlocksEraser = Callable[[frozenset[str]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep erases.

    Attributes:
        blocks: Names of blocks that only deleted agents used, 64 hex digits each.
        items: Jobs whose items the broker may still have.
        is_recorded: Whether an event is due although no text goes: something was deleted.
    """

    doomed: Doomed
    blocks: frozenset[str]
    items: tuple[JobId, ...]
    archives: tuple[LogArchived, ...]
    is_recorded: bool

    @property
    def erases_rows(self) -> bool:
        """Whether the database changes."""
        return self.is_recorded or bool(self.doomed.sizes)


@dataclass(slots=True, eq=False)
class TextSweeper:
    """Erases texts, items, blocks and archives.

    What a sweep reads of the log takes some kilobytes of memory for each job.
    """

    url: str
    rules: RetentionSettings
    clock: Clock
    ids: IdSource
    erase_items: ItemsEraser = lambda _: None
    erase_blocks: BlocksEraser = lambda _: None
    _reader: Engine = field(init=False)

    def __post_init__(self) -> None:
        self._reader = reader_engine(self.url)

    def close(self) -> None:
        """Close the connections."""
        self._reader.dispose()

    def plan(self) -> SweepPlan:
        """Return what a sweep would erase now."""
        now = self.clock.now()
        is_recorded = last_deletion(self._reader) > last_sweep(self._reader)[0]
        found, sizes = read_text_map(self._reader, self.url), stored_sizes(self._reader)
        cut = RetentionCut()
        days, gb = self.rules.text_days, self.rules.text_gb
        if days is not None or gb is not None:
            before = None if days is None else rfc3339(now - timedelta(days=days))
            cut = RetentionCut(ended_before=before, expired_by=rfc3339(now))
        if gb is not None:
            cut = cut_to_size(found.owners, sizes, int(gb * 1e9), cut, now=rfc3339(now))
        doomed, gone = find_doomed(found, sizes, cut), self._gone_agents(found)
        theirs = {job.id for job in found.owners.jobs.values() if job.agent in gone}
        ended = theirs.intersection(found.owners.released(cut))
        return SweepPlan(
            doomed=doomed,
            blocks=own_blocks(self._reader, self.url, gone),
            items=tuple(JobId(job) for job in sorted(ended.union(doomed.jobs))),
            archives=self._old_archives(),
            is_recorded=is_recorded,
        )

    def sweep(self) -> SweepPlan:
        """Erase everything that ``plan`` returns; return it.

        Raises:
            QueueUnavailable: The broker cannot be reached; nothing was erased from the log.
        """
        with unavailable("not all is erased", OSError):
            plan = self.plan()
            # The log comes last: a sweep that ends before is repeated.
            self.erase_items(plan.items)
            self.erase_blocks(plan.blocks)
            if plan.erases_rows:
                erase_texts(self.url, plan.doomed, clock=self.clock, ids=self.ids)
            for archive in plan.archives:
                self._erase_archive(archive)
        return plan

    def remove_traces(self, *, is_served: bool) -> None:
        """Remove what the files of the database still have of texts that any sweep deleted.

        Args:
            is_served: Whether a service runs on the log, which must not wait long.

        Raises:
            LogUnavailable: A reader keeps the write-ahead log: call again.
        """
        if last_erasure(self._reader)[1]:
            remove_traces(self.url, is_served=is_served)

    def _gone_agents(self, found: TextMap) -> Mapping[str, int]:
        """Return the agents deleted since the last sweep that left nothing, with a position.

        Contexts that an agent saved up to that position are its own: all so far, unless another
        agent has its name now.
        """
        settled, log = 0, LogReader(self._reader)
        for event in log.walk(EventFilter(types=(TextsErased.__name__,))):
            settled = settled if event.data["waiting"] else event.data.get("through", 0)
        gone: dict[str, int] = {}
        wanted = EventFilter(types=(AgentDeleted.__name__,))
        for event in log.walk(wanted, after=settled):
            agent = event.stream.removeprefix(AGENT_STREAM)
            exists = found.owners.has_agent(agent)
            gone[agent] = event.position if exists else found.through
        return gone

    def _old_archives(self) -> tuple[LogArchived, ...]:
        """Return archives to erase; also one that a killed sweep has not unlinked."""
        if self.rules.archive_days is None:
            return ()
        before = rfc3339(self.clock.now() - timedelta(days=self.rules.archive_days))
        made = {
            event.data["last_position"]
            for event in LogReader(self._reader).walk(
                EventFilter(types=(LogArchived.__name__,), until=before)
            )
        }
        return tuple(
            one
            for one in archives_of(self._reader)
            if one.last_position in made and archive_path(self.url, one).exists()
        )

    def _erase_archive(self, archive: LogArchived) -> None:
        """Record that an archive goes, then delete its file."""
        if archive.file not in erased_archives(self._reader):
            engine = writer_engine(self.url)
            with disposed(engine), writing(engine, FAILURE) as connection:
                event = ArchiveErased(file=archive.file, last_position=archive.last_position)
                append_event(connection, LOG_STREAM, event, clock=self.clock, ids=self.ids)
        archive_path(self.url, archive).unlink(missing_ok=True)
        sync_directory(directory_of(self.url))


#: A sweep reads the whole log: the next one comes after this many times what that took.
PACE: Final = 10
#: Time between two looks for deleted jobs that were still open, in seconds.
WAITING_S: Final = 30.0
#: Sweeps once; returns whether rows of the database were deleted.
Sweep = Callable[[ItemsEraser, BlocksEraser], bool]
_Given = TypeVar("_Given")


@dataclass(slots=True, eq=False)
class PacedSweeps:
    """Sweeps when something was deleted, or when a rule is due."""

    url: str
    rules: RetentionSettings
    clock: Clock
    sweep: Sweep
    erase_items: ItemsEraser
    erase_blocks: BlocksEraser
    _reader: Engine = field(init=False)
    _swept_at: float | None = field(default=None, init=False)
    _took_s: float = field(default=0.0, init=False)
    _waited_s: float = field(default=0.0, init=False)
    #: Whether files of the database may have what was deleted; a process before may have died.
    _has_traces: bool = field(init=False)

    def __post_init__(self) -> None:
        self._reader = reader_engine(self.url)
        self._has_traces = last_erasure(self._reader)[1] > 0

    def close(self) -> None:
        """Close the connections."""
        self._reader.dispose()

    def run(self) -> None:
        """Sweep if something was deleted or a rule is due; call it every few seconds.

        Raises:
            LogUnavailable: The log cannot be read or written, or a reader needs old pages.
            QueueUnavailable: The broker cannot be reached; nothing was erased from the log.
        """
        if self._is_due():
            self._run_sweep()
        if self._has_traces:
            self._remove_traces()

    def _run_sweep(self) -> None:
        started_s, self._waited_s = self.clock.monotonic(), 0.0
        try:
            is_erased = self.sweep(self._timed(self.erase_items), self._timed(self.erase_blocks))
            self._has_traces = self._has_traces or is_erased
        finally:
            self._swept_at = self.clock.monotonic()
            # Waits for the broker do not count: they cost the log nothing.
            self._took_s = self._swept_at - started_s - self._waited_s

    def _timed(self, erase: Callable[[_Given], object]) -> Callable[[_Given], object]:
        """Return an eraser whose time is not counted as that of the sweep."""

        def erase_timed(given: _Given) -> None:
            started_s = self.clock.monotonic()
            erase(given)
            self._waited_s += self.clock.monotonic() - started_s

        return erase_timed

    def _is_due(self) -> bool:
        position, waiting = last_sweep(self._reader)
        is_deleted = last_deletion(self._reader) > position
        if self._swept_at is None:
            return is_deleted or self.rules.is_on or waiting > 0
        passed_s = self.clock.monotonic() - self._swept_at
        if passed_s < PACE * self._took_s:
            return False
        if is_deleted:
            return True
        return (waiting > 0 and passed_s >= WAITING_S) or (
            self.rules.is_on and passed_s >= SWEEP_INTERVAL_S
        )

    def _remove_traces(self) -> None:
        started_s = self.clock.monotonic()
        remove_traces(self.url, is_served=True)
        self._took_s += self.clock.monotonic() - started_s
        self._has_traces = False
