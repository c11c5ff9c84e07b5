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
from ops.adapters.erasing.text_map import PAYLOAD_FIELDS, last_erasure, read_text_map
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.tables import PAYLOADS
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
class _Payload:
    digest: str
    content: bytes
    size_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether all columns are as they were written."""
        is_sized = self.size_bytes == len(self.content)
        return is_sized and digest_of(self.content) == self.digest


@dataclass(frozen=True, slots=True)
class _Reference:
    position: int
    digest: str


def verify_payloads(
    engine: Engine, *, archives_of: str | None = None, progress: Progress | None = None
) -> VerifiedPayloads:
    """Read every payload of the log, and look for those that its events name.

    The texts of events in archives are not searched: their files may be elsewhere.

    Args:
        engine: From ``reader_engine``.
        archives_of: URL of the log beside which archives lie; they name the jobs that are hidden.
        progress: Called with the payloads read and their number.

    Raises:
        CorruptLog: Naming the first event whose payload is damaged or missing without a reason.
        LogUnavailable: The database cannot be read.
    """
    stored = _stored(engine)
    damaged: set[str] = set()
    size_bytes = 0
    for number, one in enumerate(_payloads(engine, sorted(stored)), start=1):
        size_bytes += len(one.content)
        if not one.is_whole:
            damaged.add(one.digest)
        if progress is not None:
            progress(number, len(stored))
    references, kept, erased_at = _missing(engine, archives_of, stored - damaged)
    erased = 0
    for named in references:
        if named.digest in damaged:
            raise CorruptLog(named.position, f"the text {named.digest} is not as it was written")
        if named.digest not in kept and named.position < erased_at:
            erased += 1
        elif not _is_stored(engine, named.digest):
            raise CorruptLog(named.position, f"the text {named.digest} is missing")
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


def _payloads(engine: Engine, digests: list[str]) -> Iterator[_Payload]:
    """Yield the payloads; those that are erased meanwhile are left out."""
    columns = (PAYLOADS.c.digest, PAYLOADS.c.content, PAYLOADS.c.bytes)
    for at in range(0, len(digests), _PAGE_PAYLOADS):
        page = digests[at : at + _PAGE_PAYLOADS]
        with reading(engine) as connection:
            rows = connection.execute(select(*columns).where(PAYLOADS.c.digest.in_(page))).all()
        for digest, content, size_bytes in rows:
            yield _Payload(digest, bytes(content), size_bytes)


def _missing(
    engine: Engine, archives_of: str | None, stored: set[str]
) -> tuple[list[_Reference], set[str], int]:
    """Return the references to other payloads, those that owners need, and the last erasure.

    Returns:
        In the order of the log; the digests; the position of the last event about erased texts.
    """
    found = read_text_map(engine, archives_of)
    cut, erased_at = last_erasure(engine)
    missing: list[_Reference] = []
    for event in EventQuery(engine, EventFilter(types=tuple(PAYLOAD_FIELDS))).each():
        for name in PAYLOAD_FIELDS[event.type]:
            digest = event.data.get(name)
            named = () if not digest else (digest, *sorted(found.parts.get(digest, ())))
            missing += (_Reference(event.position, one) for one in named if one not in stored)
    return missing, found.owners.kept(cut), erased_at
