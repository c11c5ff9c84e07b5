"""Erases texts that no owner needs from every file of the log, and finds the blocks of agents."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqlalchemy import Connection, Engine, delete, select, update

from domain.errors import LogUnavailable
from domain.events.agent import AgentForgotten
from domain.events.cache import AgentCacheSaved
from domain.events.job import JobCancelled, JobCancelRequested
from domain.events.worker import TextsErased
from domain.job.commit import commit
from domain.job.state import Job, without_text
from domain.log.record import AGENT_STREAM
from domain.log.text_owners import RetentionCut
from domain.ports import Clock, IdSource
from domain.values import AgentId, JobId, StreamName, Usage
from ops.data_dir.permissions import sync_directory, sync_file
from ops.log.archives import archive_path, archives_of, read_events
from ops.log.database import (
    database_file,
    disposed,
    read_pages,
    reader_engine,
    unavailable,
    writer_engine,
    writing,
)
from ops.log.erase.rewrite import RewriteFailed, rewrite
from ops.log.erase.text_map import (
    TextMap,
    read_text_map,
    stored_sizes,
    texts_named_since,
)
from ops.log.projections.jobs import job_columns, job_of
from ops.log.row_codec import PAYLOAD, storable
from ops.log.sql_event_log import open_log
from ops.log.sqlite_driver import driver_module
from ops.log.tables import EVENTS, JOBS, NEXT_JOBS, PAYLOADS
from ops.log.transaction import append_event

_BLOCK: Final = re.compile(r'"([0-9a-f]{64})"')
_PAGE_ROWS: Final = 500


def own_blocks(engine: Engine, url: str, gone_at: Mapping[str, int]) -> frozenset[str]:
    """Return the names of blocks that no other context has, 64 hex digits each.

    Args:
        gone_at: Position by agent; contexts that it saved later count as another's.
    """
    if not gone_at:
        return frozenset()
    own, others = set[str](), set[str]()
    for position, stream, data in _saved_contexts(engine, url):
        agent = stream.removeprefix(AGENT_STREAM)
        names = own if position <= gone_at.get(agent, -1) else others
        names.update(_BLOCK.findall(data))
    return frozenset(own - others)


def _saved_contexts(engine: Engine, url: str) -> Iterator[tuple[int, str, str]]:
    """Yield position, stream and data of each save, also of those that are archived."""
    position, kind = EVENTS.c.position, AgentCacheSaved.__name__
    query = select(position, EVENTS.c.stream, EVENTS.c.data).where(EVENTS.c.type == kind)
    for page in read_pages(engine, query, position, rows_max=_PAGE_ROWS, after=0):
        yield from page
    paths = (archive_path(url, archive) for archive in archives_of(engine))
    for event in (event for path in paths if path.exists() for event in read_events(path)):
        if event.type == kind:
            yield event.position, event.stream, json.dumps(event.data)


#: How long to wait for a reader that still needs the old pages.
WAL_WAIT_MAX_S = 2.0
#: Texts and bytes of one transaction: appends wait for it.
TEXTS_AT_ONCE: Final = 1000
BYTES_AT_ONCE: Final = 64 * 1024 * 1024
#: A larger database is not rewritten while a service runs, since appends wait meanwhile.
REWRITTEN_BYTES_MAX: Final = 256 * 1024 * 1024
LOG_STREAM: Final = StreamName("log")
FAILURE: Final = "the texts cannot be erased"


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The result of erasing an agent; the caller erases the items and the blocks.

    Attributes:
        jobs: Jobs whose items the broker may still have.
        blocks: Names of blocks on disk that only this agent's contexts used, 64 hex digits each.
    """

    event: AgentForgotten
    jobs: tuple[JobId, ...]
    blocks: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """Texts that no owner needs, as one read of the log found them.

    Attributes:
        sizes: Length in bytes of each text, by digest.
        kept_bytes: Length of all other texts together.
    """

    found: TextMap
    cut: RetentionCut
    sizes: Mapping[str, int]
    jobs: tuple[JobId, ...]
    kept_bytes: int


def agent_stream(agent: AgentId) -> StreamName:
    """Return the stream of an agent."""
    return StreamName(AGENT_STREAM + agent)


def find_doomed(found: TextMap, sizes: Mapping[str, int], cut: RetentionCut) -> Doomed:
    """Return the stored texts that no owner needs under a cut.

    Args:
        sizes: Of all stored texts, read after ``found``.
    """
    owners = found.owners
    kept = owners.kept(cut)
    # A text that no event names belongs to nothing, unless an archive is missing that names it.
    known = None if found.is_complete else set().union(*owners.texts.values())
    doomed = {
        digest: size
        for digest, size in sizes.items()
        if digest not in kept and (known is None or digest in known)
    }
    jobs = (job for job in owners.released(cut) if not doomed.keys().isdisjoint(owners.texts[job]))
    return Doomed(
        found=found,
        cut=cut,
        sizes=doomed,
        jobs=tuple(JobId(job) for job in jobs),
        kept_bytes=sum(sizes.values()) - sum(doomed.values()),
    )


def erase_texts(url: str, doomed: Doomed, *, clock: Clock, ids: IdSource) -> tuple[int, int]:
    """Delete texts, a limited number in each transaction, with the events that explain it.

    Returns:
        Number of deleted texts, and their length in bytes.

    Raises:
        LogUnavailable: The log cannot be written; what is left can be erased later.
    """
    waiting = doomed.found.owners.waiting()
    left = dict(doomed.sizes)
    texts = size_bytes = 0
    with disposed(writer_engine(url)) as engine:
        while True:
            chosen = _some(left)
            for digest in chosen:
                del left[digest]
            with writing(engine, FAILURE) as connection:
                gone = _delete(connection, chosen, doomed.found)
                event = TextsErased(
                    payloads=len(gone),
                    payload_bytes=sum(gone.values()),
                    jobs=len(doomed.jobs),
                    through=doomed.found.through,
                    waiting=waiting + len(left),
                    ended_before=doomed.cut.ended_before,
                    expired_by=doomed.cut.expired_by,
                )
                append_event(connection, LOG_STREAM, event, clock=clock, ids=ids)
            texts += event.payloads
            size_bytes += event.payload_bytes
            if not left:
                return texts, size_bytes


def erase_agent(
    url: str, agent: AgentId, *, clock: Clock, ids: IdSource, is_served: bool = False
) -> Erased:
    """Cancel the open jobs of an agent and erase all its texts; a service may run.

    A second call erases later texts, and completes a call whose process was killed.

    Args:
        is_served: Whether a service runs on the log, which must not wait long.

    Raises:
        LogUnavailable: The log cannot be written. Or a reader keeps the write-ahead log from being
            truncated: call again.
    """
    _cancel_open_jobs(url, agent, clock=clock, ids=ids)
    with disposed(reader_engine(url)) as reader, disposed(writer_engine(url)) as writer:
        found = read_text_map(reader, url)
        sizes = stored_sizes(reader)
        blocks = own_blocks(reader, url, {agent: found.through})
        own, shared, jobs = _texts_of(found, agent, sizes)
        with writing(writer, FAILURE) as connection:
            gone = _delete(connection, own, found)
            event = AgentForgotten(
                agent=agent,
                jobs=len(jobs),
                payloads=len(gone),
                payload_bytes=sum(gone.values()),
                shared=len(shared) + len(own) - len(gone),
            )
            append_event(connection, agent_stream(agent), event, clock=clock, ids=ids)
    remove_traces(url, is_served=is_served)
    return Erased(event=event, jobs=jobs, blocks=blocks)


def remove_traces(url: str, *, is_served: bool) -> None:
    """Remove what SQLite's files still have of deleted rows; does nothing on PostgreSQL.

    Rows that moved between pages leave bytes behind in the unused part of a page. Rewriting the
    database removes these; while a service runs, only a small database is rewritten.

    Raises:
        LogUnavailable: A reader keeps the write-ahead log: call again.
    """
    file = database_file(url)
    if file is None:
        return
    driver = driver_module()
    failure = "the write-ahead log cannot be truncated, repeat this"
    with unavailable(failure, driver.Error, RewriteFailed, OSError):
        if not is_served or file.stat().st_size <= REWRITTEN_BYTES_MAX:
            rewrite(file, driver=driver.__name__, wait_max_s=WAL_WAIT_MAX_S)
        opened = driver.connect(str(file), isolation_level=None, timeout=WAL_WAIT_MAX_S)
        with closing(opened) as connection:
            connection.execute("PRAGMA secure_delete = ON").fetchall()
            connection.execute("PRAGMA synchronous = FULL").fetchall()
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            # SQLite syncs neither this truncation nor the deletion of the file when the last
            # connection closes: a power cut could bring the texts back.
            sync_file(file.with_name(f"{file.name}-wal"))
        sync_directory(file.parent)
    if busy:
        msg = "a reader of the log keeps its write-ahead log, which holds the texts: repeat this"
        raise LogUnavailable(msg)


def _texts_of(
    found: TextMap, agent: AgentId, sizes: Mapping[str, int]
) -> tuple[dict[str, int], set[str], tuple[JobId, ...]]:
    """Return the texts that only an agent needs, its texts that others need, and its jobs."""
    owners = found.owners
    jobs = tuple(JobId(job.id) for job in owners.jobs.values() if job.agent == agent)
    streams = (agent_stream(agent), *jobs)
    own = set().union(*(owners.texts.get(stream, set()) for stream in streams)) & sizes.keys()
    owners.end_agent(agent, found.through + 1)
    kept = owners.kept(RetentionCut())
    return {digest: sizes[digest] for digest in own - kept}, own & kept, jobs


def _delete(connection: Connection, doomed: Mapping[str, int], found: TextMap) -> dict[str, int]:
    """Delete the texts that no event since the read of the log refers to; return them."""
    named = texts_named_since(connection, found)
    gone = {digest: size for digest, size in doomed.items() if digest not in named}
    for digest in sorted(gone):
        _clear_copies(connection, digest, found.copied.get(digest, set()))
        connection.execute(delete(PAYLOADS).where(PAYLOADS.c.digest == digest))
    return gone


def _clear_copies(connection: Connection, digest: str, jobs: Collection[str]) -> None:
    """Replace a text in the rows of jobs, as a rebuild without the text does."""
    row = PAYLOAD.row(connection, {"digest": digest}) if jobs else None
    if row is None:
        return
    text, names = storable(str(json.loads(row[0]))), sorted(jobs)
    for table in (JOBS, NEXT_JOBS):
        for first in range(0, len(names), TEXTS_AT_ONCE):
            page = names[first : first + TEXTS_AT_ONCE]
            stored = connection.execute(select(table.c.record).where(table.c.id.in_(page)))
            for (record,) in stored.all():
                before = job_of(record)
                after = without_text(before, text)
                if after != before:
                    changed = update(table).where(table.c.id == after.id)
                    connection.execute(changed.values(job_columns(after)))


def _some(left: Mapping[str, int]) -> dict[str, int]:
    """Return as many texts as one transaction deletes."""
    chosen: dict[str, int] = {}
    size_bytes = 0
    for digest, size in islice(left.items(), TEXTS_AT_ONCE):
        size_bytes += size
        if chosen and size_bytes > BYTES_AT_ONCE:
            break
        chosen[digest] = size
    return chosen


def _cancel_open_jobs(url: str, agent: AgentId, *, clock: Clock, ids: IdSource) -> None:
    with open_log(url, clock=clock) as log:
        for view in log.views.unfinished():
            if view.submitted.agent == agent:
                commit(view.id, JobCancelRequested(reason="operator"), log=log, ids=ids)
                commit(view.id, _confirm, log=log, ids=ids)


def _confirm(job: Job) -> JobCancelled | None:
    if job.status.is_terminal:
        return None
    return JobCancelled(attempt=job.attempt if job.active_attempt else 0, usage=Usage())
