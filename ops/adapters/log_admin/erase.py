"""Erases the texts of an agent from every file of the log.

Events hold digests, so the chain verifies without the texts. Texts that other agents refer to stay.
SQLite overwrites deleted pages with zeros, and the write-ahead log, which holds earlier versions of
pages, is truncated. Earlier copies, and blocks that the disk keeps, are out of reach.
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

#: How long to wait for a reader that still needs the old pages.
WAL_WAIT_MAX_S = 2.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BLOCK = re.compile(r'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The result of an erasure; the caller erases the items and the blocks.

    Attributes:
        event: The event that was appended.
        jobs: Jobs whose items the broker may still have.
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

    A second call erases later texts, and completes a call whose process was killed.

    Raises:
        LogUnavailable: The log is not in a SQLite file or cannot be written. Or a reader keeps the
            write-ahead log from being truncated: call again.
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
    _truncate_wal(str(file))
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
    own_streams = frozenset((stream, *jobs))
    own_references, others = _references(connection, url, own_streams)
    payloads = sorted(own_references.digests - others.digests)
    sizes = _sizes(connection, payloads)
    for digest in payloads:
        connection.execute(delete(PAYLOADS).where(PAYLOADS.c.digest == digest))
    forgotten = AgentForgotten(
        agent=agent,
        jobs=len(jobs),
        payloads=len(sizes),
        payload_bytes=sum(sizes),
        shared=len(_sizes(connection, own_references.digests & others.digests)),
    )
    append_event(connection, stream, forgotten, clock=clock, ids=ids)
    return Erased(
        event=forgotten, jobs=jobs, blocks=frozenset(own_references.blocks - others.blocks)
    )


def _sizes(connection: Connection, digests: Iterable[Digest]) -> list[int]:
    """Return the sizes in bytes of the stored payloads; some digests are not of a payload."""
    sizes = (
        connection.execute(
            select(PAYLOADS.c.bytes).where(PAYLOADS.c.digest == digest)
        ).scalar_one_or_none()
        for digest in digests
    )
    return [size for size in sizes if size is not None]


#: A stream, the type of one of its events, and a text that holds digests.
_Reference = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _References:
    digests: set[Digest]
    blocks: set[str]


def _references(
    connection: Connection, url: str, own_streams: frozenset[str]
) -> tuple[_References, _References]:
    """Return the references of ``own_streams``, and those of all other streams."""
    own, others = _References(set(), set()), _References(set(), set())
    for stream, type_name, data in itertools.chain(
        _events(connection), _archived(connection, url), _listed(connection)
    ):
        found = own if stream in own_streams else others
        found.digests.update(Digest(one) for one in _DIGEST.findall(data))
        if type_name == AgentCacheSaved.__name__:
            found.blocks.update(_BLOCK.findall(data))
    return own, others


def _events(connection: Connection) -> Iterator[_Reference]:
    query = select(EVENTS.c.stream, EVENTS.c.type, EVENTS.c.data)
    yield from connection.execute(query)


def _archived(connection: Connection, url: str) -> Iterator[_Reference]:
    for archive in read_archives(connection):
        path = archive.path(url)
        for event in read_events(path) if path.exists() else ():
            yield event.stream, event.type, json.dumps(event.data)


def _listed(connection: Connection) -> Iterator[_Reference]:
    """Yield the references of the jobs table: the only ones of an archive whose file is missing."""
    query = select(JOBS.c.id, JOBS.c.request, JOBS.c.output)
    for job, request, output in connection.execute(query):
        yield job, "", f"{request} {output}"


def _truncate_wal(file: str) -> None:
    driver = driver_module()
    try:
        opened = driver.connect(file, isolation_level=None, timeout=WAL_WAIT_MAX_S)
        with closing(opened) as connection:
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except driver.Error as error:
        msg = f"the write-ahead log cannot be truncated: {error}"
        raise LogUnavailable(msg) from error
    if busy:
        msg = "a reader of the log keeps its write-ahead log, which holds the texts: repeat this"
        raise LogUnavailable(msg)


def _overwrite_deleted(connection: SqliteConnection, _record: object) -> None:
    connection.execute("PRAGMA secure_delete = ON").close()
