"""Erases the texts of an agent, so that no file of the log holds a byte of them any more.

Events hold digests, so the chain verifies without the texts. What others refer to stays. Deleted
pages are overwritten with zeros, and the write-ahead log, which holds pages as they were, is cut
off. Copies that were made before, and what the disk itself keeps, are out of our hands.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, select
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import SQLAlchemyError

from domain.errors import LogUnavailable
from domain.events.agent import AgentForgotten
from domain.events.cache import AgentCacheSaved
from domain.job.commands import ConfirmCancel, RequestCancel
from domain.job.state import Job
from domain.ports import Clock, IdSource
from domain.usecases.jobs.commit import commit
from domain.values import AgentId, Digest, JobId, StreamName, Usage
from ops.adapters.event_log.archives import read_archives
from ops.adapters.event_log.database import database_file, reason_of, writer_engine
from ops.adapters.event_log.event_file import read_events
from ops.adapters.event_log.sql_event_log import open_log
from ops.adapters.event_log.sqlite_driver import driver_module
from ops.adapters.event_log.tables import EVENTS, JOBS, PAYLOADS
from ops.adapters.event_log.transaction import append_event

if TYPE_CHECKING:
    from sqlite3 import Connection as SqliteConnection

#: How long a reader is waited for that still needs the old pages.
WAL_WAIT_MAX_S = 2.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BLOCK = re.compile(r'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What was erased, and what the caller has to see to.

    Attributes:
        event: As it stands in the log.
        jobs: Whose items may still lie in the broker.
        blocks: Names of blocks on disk that only this agent's contexts used, 64 hex digits each.
    """

    event: AgentForgotten
    jobs: tuple[JobId, ...]
    blocks: frozenset[str]


def agent_stream(agent: AgentId) -> StreamName:
    """Return the stream of an agent."""
    return StreamName(f"agent-{agent}")


def erase_agent(url: str, agent: AgentId, *, clock: Clock, ids: IdSource) -> Erased:
    """Cancel the open jobs of an agent and erase all its texts; no service may run meanwhile.

    Repeating it erases what came since, and finishes one that was killed.

    Raises:
        LogUnavailable: The log is no SQLite file, or cannot be written, or a reader kept the
            write-ahead log from being cut off: repeat it then.
        CorruptLog: An event cannot be read.
    """
    file = database_file(url)
    if file is None:
        msg = (
            "texts are erased for good from a log in a SQLite file only: PostgreSQL keeps them in "
            "its own log, replicas and backups; see docs/several-machines.md"
        )
        raise LogUnavailable(msg)
    _cancel_open_jobs(url, agent, clock=clock, ids=ids)
    engine = writer_engine(url)
    # Of no effect inside a transaction, so it is set when the connection opens.
    sqlalchemy_event.listen(engine, "connect", _overwrite_deleted)
    try:
        with engine.begin() as connection:
            erased = _erase(connection, url, agent, clock=clock, ids=ids)
    except SQLAlchemyError as error:
        msg = f"the texts cannot be erased: {reason_of(error)}"
        raise LogUnavailable(msg) from error
    finally:
        engine.dispose()
    _cut_off_wal(str(file))
    return erased


def _cancel_open_jobs(url: str, agent: AgentId, *, clock: Clock, ids: IdSource) -> None:
    with open_log(url, clock=clock) as log:
        for view in log.views.unfinished():
            if view.agent == agent:
                commit(view.id, RequestCancel(reason="operator"), log=log, ids=ids)
                commit(view.id, _confirm, log=log, ids=ids)


def _confirm(job: Job) -> ConfirmCancel | None:
    if job.status.is_terminal:
        return None
    return ConfirmCancel(attempt=job.attempt if job.speaking else 0, usage=Usage())


def _erase(
    connection: Connection, url: str, agent: AgentId, *, clock: Clock, ids: IdSource
) -> Erased:
    query = select(JOBS.c.id).where(JOBS.c.agent == agent).order_by(JOBS.c.accepted_position)
    jobs = tuple(JobId(row[0]) for row in connection.execute(query))
    stream = agent_stream(agent)
    own = frozenset((stream, *jobs))
    mine, others = _references(connection, url, own)
    payloads = sorted(mine.digests - others.digests)
    sizes = _sizes(connection, payloads)
    for digest in payloads:
        connection.execute(delete(PAYLOADS).where(PAYLOADS.c.digest == digest))
    forgotten = AgentForgotten(
        agent=agent,
        jobs=len(jobs),
        payloads=len(sizes),
        payload_bytes=sum(sizes),
        shared=len(_sizes(connection, mine.digests & others.digests)),
    )
    append_event(connection, stream, forgotten, clock=clock, ids=ids)
    return Erased(event=forgotten, jobs=jobs, blocks=frozenset(mine.blocks - others.blocks))


def _sizes(connection: Connection, digests: Iterable[Digest]) -> list[int]:
    """Return the sizes in bytes of the stored payloads; some digests are not of a payload."""
    sizes = (
        connection.execute(
            select(PAYLOADS.c.bytes).where(PAYLOADS.c.digest == digest)
        ).scalar_one_or_none()
        for digest in digests
    )
    return [size for size in sizes if size is not None]


#: A stream, the type of an event of it, and a text that holds digests.
_Reference = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _References:
    digests: set[Digest]
    blocks: set[str]


def _references(
    connection: Connection, url: str, own: frozenset[str]
) -> tuple[_References, _References]:
    """Return what the streams of ``own`` refer to, and what all others do."""
    mine, others = _References(set(), set()), _References(set(), set())
    for stream, type_name, data in itertools.chain(
        _events(connection), _archived(connection, url), _listed(connection)
    ):
        found = mine if stream in own else others
        found.digests.update(Digest(one) for one in _DIGEST.findall(data))
        if type_name == AgentCacheSaved.__name__:
            found.blocks.update(_BLOCK.findall(data))
    return mine, others


def _events(connection: Connection) -> Iterator[_Reference]:
    query = select(EVENTS.c.stream, EVENTS.c.type, EVENTS.c.data)
    yield from connection.execute(query)


def _archived(connection: Connection, url: str) -> Iterator[_Reference]:
    for archive in read_archives(connection):
        path = archive.path(url)
        for event in read_events(path) if path.exists() else ():
            yield event.stream, event.type, json.dumps(event.data)


def _listed(connection: Connection) -> Iterator[_Reference]:
    """Yield what the list of jobs tells, which is all there is where an archive is elsewhere."""
    query = select(JOBS.c.id, JOBS.c.request, JOBS.c.output)
    for job, request, output in connection.execute(query):
        yield job, "", f"{request} {output}"


def _cut_off_wal(file: str) -> None:
    driver = driver_module()
    try:
        opened = driver.connect(file, isolation_level=None, timeout=WAL_WAIT_MAX_S)
        with closing(opened) as connection:
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except driver.Error as error:
        msg = f"the write-ahead log cannot be cut off: {error}"
        raise LogUnavailable(msg) from error
    if busy:
        msg = "a reader of the log keeps its write-ahead log, which holds the texts: repeat this"
        raise LogUnavailable(msg)


def _overwrite_deleted(connection: SqliteConnection, _record: object) -> None:
    connection.execute("PRAGMA secure_delete = ON").close()
