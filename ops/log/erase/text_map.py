"""Reads which streams of the log refer to which texts, and which owners are still there.

What reads raises ``LogUnavailable`` where the database or an archive cannot be read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection, Engine, func, select

from domain.batch.state import BATCH_PREFIX
from domain.events.agent import (
    AgentChanged,
    AgentForgotten,
    AgentForked,
    AgentRegistered,
    AgentTurnAdded,
)
from domain.events.batch import BatchFailed, BatchSubmitted, FileCreated
from domain.events.job import (
    AttemptFailed,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobHidden,
    JobRelabelled,
    JobReleased,
    JobSubmitted,
)
from domain.events.schedule import ScheduleAdded
from domain.events.worker import ArchiveErased, LogArchived, TextsErased
from domain.log.codec import TEXT_FIELDS, text_digests
from domain.log.record import EventFilter, RecordedEvent
from domain.log.text_owners import (
    LIFE_TYPES,
    OwnedJob,
    RetentionCut,
    TextOwners,
)
from ops.log.archives import archive_path, archives_of, read_events
from ops.log.database import read_pages, reading
from ops.log.projections.jobs import job_of
from ops.log.reader import LogReader
from ops.log.row_codec import event_of
from ops.log.tables import EVENTS, JOBS, PAYLOADS

#: Fields that name a text, by type of event.
PAYLOAD_FIELDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        cls.__name__: (*fields, *TEXT_FIELDS.get(cls.__name__, ()))
        for cls, fields in (
            (AgentRegistered, ("profile",)),
            (AgentChanged, ("profile",)),
            (AgentForked, ("profile", "request", "output")),
            (AttemptFailed, ()),
            (BatchFailed, ("errors",)),
            (BatchSubmitted, ("content", "client_name")),
            (FileCreated, ("content",)),
            (JobCancelled, ("output",)),
            (JobCompleted, ("output",)),
            (JobExpired, ("output",)),
            (JobFailed, ()),
            (JobRelabelled, ("wire",)),
            (JobReleased, ("request",)),
            (JobSubmitted, ("request", "wire", "warning", "client_name", "parent_output")),
            (ScheduleAdded, ("job",)),
        )
    }
)
#: Types of events whose text is a manifest (``domain.batch.jsonl``).
_WITH_MANIFEST: Final = frozenset({BatchSubmitted.__name__, FileCreated.__name__})
_TYPES: Final = tuple(sorted({*PAYLOAD_FIELDS, *LIFE_TYPES}))
#: Rows read at a time; small statements keep no snapshot open for long.
_PAGE_ROWS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMap:
    """The owners of the texts of a log.

    Attributes:
        owners: They, with the digests that each refers to.
        parts: Digests of the chunks of each manifest, by its digest.
        copied: The jobs whose rows have a copy of a text, by its digest.
        through: Position up to which every event was read; some later ones may have been.
        is_complete: Whether every archive could be read. Texts that no known owner refers to may
            belong to a job of a missing archive.
    """

    owners: TextOwners
    parts: Mapping[str, set[str]]
    copied: Mapping[str, set[str]]
    through: int
    is_complete: bool


def read_text_map(engine: Engine, url: str | None = None) -> TextMap:
    """Read the owners of the texts; the log may be written to meanwhile.

    Args:
        url: Of the log; archives are read only with it.
    """
    with reading(engine) as connection:
        # First, so that whatever changes during the reads is at a later position.
        through = connection.scalar(select(func.max(EVENTS.c.position))) or 0
    texts: defaultdict[str, set[str]] = defaultdict(set)
    jobs = list(_jobs(engine, texts))
    parts: dict[str, set[str]] = {}
    copied: defaultdict[str, set[str]] = defaultdict(set)
    lives: list[RecordedEvent] = []
    present: set[str] = set()
    query = select(EVENTS).where(EVENTS.c.type.in_(_TYPES))
    for rows in read_pages(engine, query, EVENTS.c.position, rows_max=_PAGE_ROWS, after=0):
        page = [event_of(row) for row in rows]
        with reading(engine) as connection:
            for event in page:
                texts[event.stream] |= _named_texts(connection, event, parts, copied)
        present.update(event.stream for event in page if event.type == JobSubmitted.__name__)
        lives += (event for event in page if event.type in LIFE_TYPES)
    # After the table: an event that another process archives meanwhile is in one of the two.
    erased = erased_archives(engine)
    archives = () if url is None else archives_of(engine)
    is_complete = _add_archived(archives, url or "", erased, texts, copied, lives)
    gone = [one for one in archives if one.file in erased]
    if gone:
        last = max(one.last_position for one in gone)
        jobs = [
            replace(job, is_erased=job.position <= last and job.id not in present) for job in jobs
        ]
    owners = TextOwners(jobs, texts, lives, parts=parts)
    return TextMap(
        owners=owners, parts=parts, copied=copied, through=through, is_complete=is_complete
    )


def texts_named_since(connection: Connection, found: TextMap) -> set[str]:
    """Return the texts that events after ``found`` name, and all texts of the streams they are in.

    Args:
        connection: In a transaction that holds the write lock.
        found: Read before it.
    """
    named: set[str] = set()
    for row in connection.execute(select(EVENTS).where(EVENTS.c.position > found.through)).all():
        event = event_of(row)
        named |= found.owners.texts.get(event.stream, set())
        named |= _named_texts(connection, event, {}, {})
        if event.type == AgentTurnAdded.__name__:
            # The job has its texts from before the agent referred to it.
            named |= found.owners.texts.get(event.data["job"], set())
    return named


def _named_texts(
    connection: Connection,
    event: RecordedEvent,
    parts: dict[str, set[str]],
    copied: dict[str, set[str]],
) -> set[str]:
    """Return the digests in an event, with the chunks of a manifest.

    Args:
        parts: Gets the chunks of a manifest.
        copied: Gets the texts that the row of the job has too.
    """
    digests = _digests(event, copied)
    manifest = event.data.get("content") if event.type in _WITH_MANIFEST else None
    if manifest is not None:
        if manifest not in parts:
            parts[manifest] = _chunks(connection, manifest)
        digests |= parts[manifest]
    return digests


def _digests(event: RecordedEvent, copied: dict[str, set[str]]) -> set[str]:
    for digest in text_digests(event.type, event.data).values():
        copied.setdefault(digest, set()).add(event.stream)
    named = (event.data.get(name) for name in PAYLOAD_FIELDS.get(event.type, ()))
    return {digest for digest in named if digest}


def _chunks(connection: Connection, manifest: str) -> set[str]:
    query = select(PAYLOADS.c.content).where(PAYLOADS.c.digest == manifest)
    content = connection.scalar(query)
    if content is None:
        return set()
    with suppress(ValueError, KeyError, TypeError):  # of a damaged payload
        return {chunk["digest"] for chunk in json.loads(content)["chunks"]}
    return set()


def _jobs(engine: Engine, texts: defaultdict[str, set[str]]) -> Iterator[OwnedJob]:
    """Yield every job, and add its texts: those of an archived one are named only there."""
    position = JOBS.c.accepted_position
    query = select(position, JOBS.c.record)
    for page in read_pages(engine, query, position, rows_max=_PAGE_ROWS, after=0):
        for accepted, record in page:
            job = job_of(record)
            texts[job.id] |= {job.submitted.request}
            texts[job.id] |= set() if job.output is None else {job.output}
            cause = job.correlation_id
            yield OwnedJob(
                id=job.id,
                position=accepted,
                ended_at=job.finished_at,
                agent=job.submitted.agent,
                batch=cause if cause.startswith(BATCH_PREFIX) else None,
            )


def _add_archived(
    archives: Sequence[LogArchived],
    url: str,
    erased: frozenset[str],
    texts: defaultdict[str, set[str]],
    copied: dict[str, set[str]],
    lives: list[RecordedEvent],
) -> bool:
    """Add the texts that archived events name, and which archived jobs are hidden.

    Returns:
        Whether no archive was missing.
    """
    if not url:
        return False
    present = [one for one in archives if archive_path(url, one).exists()]
    for archive in present:
        for event in read_events(archive_path(url, archive)):
            if event.type == JobHidden.__name__:
                lives.append(event)
            if digests := _digests(event, copied):
                texts[event.stream] |= digests
    return all(one in present or one.file in erased for one in archives)


def last_erasure(engine: Engine) -> tuple[RetentionCut, int]:
    """Return what retention has overtaken so far, and the position of the last erasure."""
    query = (
        select(EVENTS.c.position, EVENTS.c.data)
        .where(EVENTS.c.type.in_((AgentForgotten.__name__, TextsErased.__name__)))
        .order_by(EVENTS.c.position)
    )
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    erasures = [json.loads(data) for _, data in rows]

    def latest(name: str) -> str | None:
        return max((one[name] for one in erasures if one.get(name)), default=None)

    cut = RetentionCut(ended_before=latest("ended_before"), expired_by=latest("expired_by"))
    return cut, rows[-1][0] if rows else 0


def stored_sizes(engine: Engine) -> dict[str, int]:
    """Return the length in bytes of each stored text, by digest."""
    digest = PAYLOADS.c.digest
    query = select(digest, PAYLOADS.c.bytes)
    pages = read_pages(engine, query, digest, rows_max=_PAGE_ROWS, after="")
    return {name: size for page in pages for name, size in page}


def erased_archives(engine: Engine) -> frozenset[str]:
    """Return the names of the archives that were erased."""
    wanted = EventFilter(types=(ArchiveErased.__name__,))
    return frozenset(event.data["file"] for event in LogReader(engine).walk(wanted))
