"""Verifies that the texts of the log are there and have the content that their digests name.

The hash chain covers digests only, so that texts can be erased. A text may be missing if the agent
of each event that refers to it was forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from sqlalchemy import Engine, select

from domain.errors import CorruptLog, PayloadDamaged
from domain.events.agent import AgentForgotten, AgentForked, AgentRegistered
from domain.events.batch import BatchFailed, BatchSubmitted, FileCreated
from domain.events.job import JobCancelled, JobCompleted, JobExpired, JobSubmitted
from domain.log.record import EventFilter
from domain.values import digest_of
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.tables import JOBS, PAYLOADS
from ops.adapters.log_admin.verify import Progress

#: Fields that name a payload, by type of event.
PAYLOAD_FIELDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        cls.__name__: fields
        for cls, fields in (
            (AgentRegistered, ("profile",)),
            (AgentForked, ("profile", "request", "output")),
            (BatchFailed, ("errors",)),
            (BatchSubmitted, ("content",)),
            (FileCreated, ("content",)),
            (JobCancelled, ("output",)),
            (JobCompleted, ("output",)),
            (JobExpired, ("output",)),
            (JobSubmitted, ("request", "wire")),
        )
    }
)
#: Payloads read at a time; each may have many megabytes.
_PAGE_PAYLOADS: Final = 16
_AGENT_STREAM: Final = "agent-"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPayloads:
    """What was verified.

    Attributes:
        payloads: Number of payloads.
        size_bytes: Their total size.
        erased: References to payloads of agents that were forgotten.
    """

    payloads: int
    size_bytes: int
    erased: int


@dataclass(frozen=True, slots=True)
class _Reference:
    position: int
    stream: str
    digest: str


@dataclass(slots=True)
class _References:
    """What the events refer to that is not stored, and when agents were forgotten."""

    missing: list[_Reference] = field(default_factory=list)
    forgotten_at: dict[str, int] = field(default_factory=dict)


def verify_payloads(engine: Engine, *, progress: Progress | None = None) -> VerifiedPayloads:
    """Read every payload of the log, and look for those that its events name.

    Events in archives are not searched: their files may be elsewhere.

    Args:
        engine: From ``reader_engine``.
        progress: Called with the payloads read and their number.

    Raises:
        CorruptLog: Naming the first event whose payload is damaged or missing without a reason.
        LogUnavailable: The database cannot be read.
    """
    stored = _stored(engine)
    damaged: set[str] = set()
    size_bytes = 0
    for number, (digest, content) in enumerate(_contents(engine, sorted(stored)), start=1):
        size_bytes += len(content)
        if digest_of(content) != digest:
            damaged.add(digest)
        if progress is not None:
            progress(number, len(stored))
    references = _references(engine, stored - damaged)
    erased = 0
    for one in sorted(references.missing, key=lambda one: one.position):
        if one.digest in damaged:
            raise CorruptLog(one.position, f"the text {one.digest} is not as it was written")
        if _is_erased(engine, one, references.forgotten_at):
            erased += 1
        elif not _is_stored(engine, one.digest):
            raise CorruptLog(one.position, f"the text {one.digest} is missing")
    if damaged:
        raise PayloadDamaged(min(damaged))
    return VerifiedPayloads(payloads=len(stored), size_bytes=size_bytes, erased=erased)


def _stored(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        return set(connection.scalars(select(PAYLOADS.c.digest)))


def _is_stored(engine: Engine, digest: str) -> bool:
    """Whether a text is there now: a running service stores more while others are read."""
    query = select(PAYLOADS.c.digest).where(PAYLOADS.c.digest == digest)
    with reading(engine) as connection:
        return connection.scalar(query) is not None


def _contents(engine: Engine, digests: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the payloads; those that are erased meanwhile are left out."""
    for at in range(0, len(digests), _PAGE_PAYLOADS):
        page = digests[at : at + _PAGE_PAYLOADS]
        query = select(PAYLOADS.c.digest, PAYLOADS.c.content).where(PAYLOADS.c.digest.in_(page))
        with reading(engine) as connection:
            rows = connection.execute(query).all()
        for digest, content in rows:
            yield digest, bytes(content)


def _references(engine: Engine, stored: set[str]) -> _References:
    found = _References()
    types = (*PAYLOAD_FIELDS, AgentForgotten.__name__)
    for event in EventQuery(engine, EventFilter(types=types)).each():
        if event.type == AgentForgotten.__name__:
            found.forgotten_at[event.data["agent"]] = event.position
            continue
        for name in PAYLOAD_FIELDS[event.type]:
            digest = event.data.get(name)
            if digest is not None and digest not in stored:
                found.missing.append(_Reference(event.position, event.stream, digest))
    return found


def _is_erased(engine: Engine, one: _Reference, forgotten_at: Mapping[str, int]) -> bool:
    agent = (
        one.stream.removeprefix(_AGENT_STREAM)
        if one.stream.startswith(_AGENT_STREAM)
        else _agent_of_job(engine, one.stream)
    )
    return agent is not None and forgotten_at.get(agent, 0) > one.position


def _agent_of_job(engine: Engine, stream: str) -> str | None:
    with reading(engine) as connection:
        return connection.scalar(select(JOBS.c.agent).where(JOBS.c.id == stream))
