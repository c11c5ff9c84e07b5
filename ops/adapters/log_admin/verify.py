"""Verifies the whole chain of the log and names the first position that does not fit.

The data column holds the text that was hashed, so a row is hashed without parsing it. Only a row
whose hash differs is parsed: to find the fault, or because it holds a lone surrogate, which is
stored as its escape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, bindparam, func, select
from sqlalchemy.exc import SQLAlchemyError

from domain.errors import CorruptLog
from domain.log.record import LogHead, chain_hash_of_text, verify_link
from ops.adapters.event_log.archives import read_anchor
from ops.adapters.event_log.database import reading, reason_of
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.projections.checkpoints import read_checkpoint
from ops.adapters.event_log.row_codec import data_text, event_of
from ops.adapters.event_log.tables import EVENTS, JOBS

#: Events read at a time.
PAGE_EVENTS = 1000
#: The highest position that a database can hold.
INT64_MAX = 2**63 - 1
#: Called with the position reached and the last position there is.
Progress = Callable[[int, int], None]

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

    Args:
        engine: From ``reader_engine``.
        progress: Called after each page.
        signed_hashes: By position, from signed checkpoints.

    Raises:
        CorruptLog: Naming the first position that does not verify.
        LogUnavailable: The database cannot be read.
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
    """Parse and verify a row.

    Raises:
        CorruptLog: Naming the fault.
    """
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
