"""Verifies all that a log holds: its database, archives, chain, texts, projections and webhooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, bindparam, func, select
from sqlalchemy.exc import SQLAlchemyError

from domain.errors import CorruptLog, PayloadDamaged
from domain.log.record import EventFilter, LogHead, chain_hash_of_text, verify_link
from domain.values import digest_of
from ops.log.admin.projections_check import ProjectionState, verify_projections
from ops.log.admin.structure import verify_structure
from ops.log.archives import ArchiveReport, read_anchor, verify_archives
from ops.log.database import reading, reason_of
from ops.log.erase.text_map import (
    PAYLOAD_FIELDS,
    last_erasure,
    read_text_map,
    stored_sizes,
)
from ops.log.hot_statements import HotStatement
from ops.log.projections.fold import read_checkpoint
from ops.log.projections.rebuild import Progress
from ops.log.reader import LogReader
from ops.log.row_codec import data_text, event_of
from ops.log.tables import EVENTS, JOBS, PAYLOADS

#: Events read at a time.
PAGE_EVENTS = 1000
#: The highest position that a database can hold.
INT64_MAX = 2**63 - 1

_Row = Sequence[Any]
_DATA = [column.name for column in EVENTS.columns].index("data")
_PAGE = HotStatement(
    select(EVENTS)
    .where(EVENTS.c.position > bindparam("after"), EVENTS.c.position <= bindparam("last"))
    .order_by(EVENTS.c.position)
    .limit(bindparam("rows_max"))
)


def verify_log(
    engine: Engine,
    *,
    progress: Progress | None = None,
    signed_hashes: Mapping[int, str] | None = None,
) -> LogHead:
    """Verify the position, link and hash of every event, and that none is missing at the end.

    Events missing at the end are detected if a projection has read them or ``signed_hashes``
    covers them. The chain begins where the archives end; events that the log keeps of an archived
    stretch are verified one by one.

    Raises:
        CorruptLog: Naming the first position that does not verify.
    """
    signed = dict(signed_hashes or {})
    with reading(engine) as connection:
        anchor = read_anchor(connection)
    while True:
        try:
            return _verify_from(engine, anchor, signed, progress)
        except CorruptLog:
            with reading(engine) as connection:
                now = read_anchor(connection)
            if now == anchor:
                raise
            anchor = now  # another process archived these events meanwhile


def _verify_from(
    engine: Engine, anchor: LogHead, signed: Mapping[int, str], progress: Progress | None
) -> LogHead:
    with reading(engine) as connection:
        first, last = connection.execute(
            select(func.min(EVENTS.c.position), func.max(EVENTS.c.position))
        ).one()
        seen = read_checkpoint(connection, JOBS).position
    if first is not None and first < 1:
        raise CorruptLog(first, "positions begin at 1")
    for page in _pages(engine, after=0, last=anchor.position):
        _verify_alone(page)
    head = anchor
    for page in _pages(engine, after=anchor.position):
        head = _verified(page, head, signed)
        if progress is not None:
            progress(head.position, max(last, head.position))
    if head.position < seen:
        raise CorruptLog(head.position + 1, f"the events up to {seen} are missing")
    if signed and head.position < max(signed):
        raise CorruptLog(
            head.position + 1, f"the log has lost the events up to its signed head {max(signed)}"
        )
    return head


def _verified(page: Sequence[_Row], before: LogHead, signed: Mapping[int, str]) -> LogHead:
    position, hash_ = before.position, before.hash
    for row in page:
        if row[0] == position + 1 and row[-2] == hash_ and _is_as_hashed(row):
            position, hash_ = row[0], row[-1]
        else:
            head = _verified_closely(row, LogHead(position=position, hash=hash_))
            position, hash_ = head.position, head.hash
        if position in signed and signed[position] != hash_:
            raise CorruptLog(position, "another event stood here when the head was signed")
    return LogHead(position=position, hash=hash_)


def _verify_alone(page: Sequence[_Row]) -> None:
    """Verify events whose neighbours are archived."""
    for row in page:
        if not _is_as_hashed(row):
            _verified_closely(row, LogHead(position=row[0] - 1, hash=row[-2]))


def _is_as_hashed(row: _Row) -> bool:
    try:
        return bool(chain_hash_of_text(row[:-1]) == row[-1])
    except (TypeError, ValueError):
        return False


def _verified_closely(row: _Row, before: LogHead) -> LogHead:
    """Parse and verify a row."""
    try:
        event = event_of(row)
        head = verify_link(event, before)
        if data_text(event) != row[_DATA]:
            raise CorruptLog(event.position, "the data is not as it was written")
    except (TypeError, ValueError, RecursionError) as error:
        # A column holds a value that no event can have.
        raise CorruptLog(row[0], f"the content cannot be hashed: {error}") from error
    return head


def _pages(engine: Engine, *, after: int, last: int = INT64_MAX) -> Iterator[Sequence[_Row]]:
    """Yield pages of rows; small statements keep no snapshot open for long."""
    limit = PAGE_EVENTS
    while True:
        try:
            with engine.connect() as connection:
                values = {"after": after, "last": last, "rows_max": limit}
                rows = _PAGE.rows(connection, values)
        except SQLAlchemyError as error:
            if limit == 1:
                raise CorruptLog(after + 1, f"it cannot be read: {reason_of(error)}") from error
            # A row of this page cannot be read; read one at a time to find its position.
            limit = 1
            continue
        if not rows:
            return
        yield rows
        after = rows[-1][0]


#: Payloads read at a time; each may have many megabytes.
_PAGE_PAYLOADS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPayloads:
    """What was verified.

    Attributes:
        erased: References to payloads that were erased.
    """

    payloads: int
    size_bytes: int
    erased: int


def verify_payloads(
    engine: Engine, *, archives_of: str | None = None, progress: Progress | None = None
) -> VerifiedPayloads:
    """Read every payload of the log, and look for those that its events name.

    The texts of events in archives are not searched: their files may be elsewhere.

    Args:
        archives_of: URL of the log beside which archives lie; they name the jobs that are hidden.
        progress: Called with the payloads read and their number.

    Raises:
        CorruptLog: Naming the first event whose payload is damaged or missing without a reason.
    """
    sizes = stored_sizes(engine)
    damaged: set[str] = set()
    size_bytes = 0
    for number, (digest, content) in enumerate(_payloads(engine, sorted(sizes)), start=1):
        size_bytes += len(content)
        if len(content) != sizes[digest] or digest_of(content) != digest:
            damaged.add(digest)
        if progress is not None:
            progress(number, len(sizes))
    references, kept, erased_at = _missing(engine, archives_of, sizes.keys() - damaged)
    erased = 0
    for position, digest in references:
        if digest in damaged:
            raise CorruptLog(position, f"the text {digest} is not as it was written")
        if digest not in kept and position < erased_at:
            erased += 1
        elif not list(_payloads(engine, [digest])):  # a service stores more while others are read
            raise CorruptLog(position, f"the text {digest} is missing")
    if damaged:
        raise PayloadDamaged(min(damaged))
    return VerifiedPayloads(payloads=len(sizes), size_bytes=size_bytes, erased=erased)


def _payloads(engine: Engine, digests: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield digests and contents; those that are erased meanwhile are left out."""
    columns = (PAYLOADS.c.digest, PAYLOADS.c.content)
    for at in range(0, len(digests), _PAGE_PAYLOADS):
        page = digests[at : at + _PAGE_PAYLOADS]
        with reading(engine) as connection:
            rows = connection.execute(select(*columns).where(PAYLOADS.c.digest.in_(page))).all()
        for digest, content in rows:
            yield digest, bytes(content)


def _missing(
    engine: Engine, archives_of: str | None, stored: set[str]
) -> tuple[list[tuple[int, str]], set[str], int]:
    """Return the references to other payloads, those that owners need, and the last erasure.

    Returns:
        Position and digest in the order of the log; digests; the position of the last event about
        erased texts.
    """
    found = read_text_map(engine, archives_of)
    cut, erased_at = last_erasure(engine)
    missing: list[tuple[int, str]] = []
    for event in LogReader(engine).walk(EventFilter(types=tuple(PAYLOAD_FIELDS))):
        for name in PAYLOAD_FIELDS[event.type]:
            digest = event.data.get(name)
            named = () if not digest else (digest, *sorted(found.parts.get(digest, ())))
            missing += ((event.position, one) for one in named if one not in stored)
    return missing, found.owners.kept(cut), erased_at


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """What was verified.

    Attributes:
        archives: The archives whose files are there, and those that are missing.
        projections: Whether the projections were compared with the events.
    """

    head: LogHead
    archives: ArchiveReport
    texts: VerifiedPayloads
    projections: ProjectionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Called with how far each of the long steps is, and its end."""

    chain: Progress | None = None
    texts: Progress | None = None
    projections: Progress | None = None


def verify_whole_log(
    engine: Engine,
    url: str,
    *,
    archives_of: str | None = None,
    signed_hashes: dict[int, str],
    watchers: Watchers | None = None,
) -> VerifiedLog:
    """Verify a log; a service may append to it meanwhile.

    Args:
        archives_of: URL of the log beside which the archives lie, if not that of the log.

    Raises:
        CorruptLog: Naming the first position that does not verify.
        PayloadDamaged: A text is damaged that no event names.
    """
    watchers, beside = watchers or Watchers(), archives_of or url
    archives = verify_archives(engine, beside, signed_hashes=signed_hashes)
    head = verify_log(engine, progress=watchers.chain, signed_hashes=signed_hashes)
    verify_structure(engine, url, archives)
    texts = verify_payloads(engine, archives_of=beside, progress=watchers.texts)
    projections = verify_projections(engine, beside, progress=watchers.projections)
    return VerifiedLog(head=head, archives=archives, texts=texts, projections=projections)
