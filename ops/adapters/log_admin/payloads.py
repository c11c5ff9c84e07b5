"""Verifies that the texts of the log are there and have the content that their digests name.

The hash chain covers digests only, so that texts can be erased. A text may be missing if no owner
needs it (``domain.log.text_owners``) and an event about erased texts follows those that name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Engine, select

from domain.errors import CorruptLog, PayloadDamaged
from domain.log.record import EventFilter
from domain.values import digest_of
from ops.adapters.event_log.archives import read_archives
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.event_file import read_events
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.tables import EVENTS, PAYLOADS
from ops.adapters.log_admin.text_map import PAYLOAD_FIELDS, last_erasure, read_text_map
from ops.adapters.log_admin.verify import Progress

#: Payloads read at a time; each may have many megabytes.
_PAGE_PAYLOADS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPayloads:
    """What was verified.

    Attributes:
        payloads: Number of payloads.
        size_bytes: Their total size.
        erased: References to payloads that were erased.
    """

    payloads: int
    size_bytes: int
    erased: int


@dataclass(frozen=True, slots=True)
class _Reference:
    position: int
    digest: str


def verify_payloads(
    engine: Engine, archives_of: str | None = None, *, progress: Progress | None = None
) -> VerifiedPayloads:
    """Read every payload of the log, and look for those that its events name.

    Events in archives are not searched: their files may be elsewhere.

    Args:
        engine: From ``reader_engine``.
        archives_of: URL of the log beside which the archives lie.
        progress: Called with the payloads read and their number.

    Raises:
        CorruptLog: Naming the first event whose payload is damaged or missing without a reason.
        LogUnavailable: The database cannot be read.
    """
    stored = _stored(engine)
    damaged: set[str] = set()
    size_bytes = 0
    for number, (digest, content, named_bytes) in enumerate(
        _contents(engine, sorted(stored)), start=1
    ):
        size_bytes += len(content)
        if digest_of(content) != digest or named_bytes != len(content):
            damaged.add(digest)
        if progress is not None:
            progress(number, len(stored))
    references, kept, erased_at = _missing(engine, stored - damaged)
    erased = 0
    for one in references:
        if one.digest in damaged:
            raise CorruptLog(one.position, f"the text {one.digest} is not as it was written")
        if one.digest not in kept and one.position < erased_at:
            erased += 1
        elif not _is_stored(engine, one.digest):
            raise CorruptLog(one.position, f"the text {one.digest} is missing")
    if damaged:
        raise PayloadDamaged(min(damaged))
    _verify_instants(engine, archives_of)
    return VerifiedPayloads(payloads=len(stored), size_bytes=size_bytes, erased=erased)


def _verify_instants(engine: Engine, archives_of: str | None) -> None:
    """Verify that each text was stored with an event: its instant is that of an event."""
    events = PAYLOADS.outerjoin(EVENTS, EVENTS.c.recorded_at == PAYLOADS.c.stored_at)
    alone = select(PAYLOADS.c.stored_at, PAYLOADS.c.digest).select_from(events)
    with reading(engine) as connection:
        rows = connection.execute(alone.where(EVENTS.c.position.is_(None))).all()
        archives = read_archives(connection)
    left: dict[str, str] = dict(rows)
    if left and archives:
        paths = [archive.path(archives_of) for archive in archives if archives_of is not None]
        if not all(path.exists() for path in paths) or not paths:
            return  # the events of these texts may be in a file that is not here
        for path in paths:
            for event in read_events(path):
                left.pop(event.recorded_at, None)
    if left:
        raise CorruptLog(1, f"the text {min(left.values())} was stored with no event")


def _stored(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        return set(connection.scalars(select(PAYLOADS.c.digest)))


def _is_stored(engine: Engine, digest: str) -> bool:
    """Whether a text is there now: a running service stores more while others are read."""
    query = select(PAYLOADS.c.digest).where(PAYLOADS.c.digest == digest)
    with reading(engine) as connection:
        return connection.scalar(query) is not None


def _contents(engine: Engine, digests: list[str]) -> Iterator[tuple[str, bytes, int]]:
    """Yield digest, content and recorded size; texts that are erased meanwhile are left out."""
    for at in range(0, len(digests), _PAGE_PAYLOADS):
        page = digests[at : at + _PAGE_PAYLOADS]
        query = select(PAYLOADS.c.digest, PAYLOADS.c.content, PAYLOADS.c.bytes)
        with reading(engine) as connection:
            rows = connection.execute(query.where(PAYLOADS.c.digest.in_(page))).all()
        for digest, content, named_bytes in rows:
            yield digest, bytes(content), named_bytes


def _missing(engine: Engine, stored: set[str]) -> tuple[list[_Reference], set[str], int]:
    """Return the references to other payloads, those that owners need, and the last erasure.

    Returns:
        In the order of the log; the digests; the position of the last event about erased texts.
    """
    found = read_text_map(engine)
    cut, erased_at = last_erasure(engine)
    missing: list[_Reference] = []
    for event in EventQuery(engine, EventFilter(types=tuple(PAYLOAD_FIELDS))).each():
        for name in PAYLOAD_FIELDS[event.type]:
            digest = event.data.get(name)
            named = () if digest is None else (digest, *sorted(found.parts.get(digest, ())))
            missing += (_Reference(event.position, one) for one in named if one not in stored)
    return missing, found.owners.kept(cut), erased_at
