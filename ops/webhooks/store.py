"""``domain.webhook.delivery.WebhookStore`` on the database of the event log.

An index finds the due webhooks. ``claim`` takes them by a conditional update in a transaction that
holds the write lock, so two processes never start the same attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import bindparam, func, tuple_
from sqlalchemy import delete as delete_from
from sqlmodel import Session, select
from sqlmodel.sql.expression import SelectOfScalar

from domain.values import Owner
from domain.webhook.delivery import DeliveryResult, DueHost, Webhook, WebhookId, WebhookState
from ops.log.database import (
    reader_engine,
    reading,
    reading_rows,
    writer_engine,
    writing,
)
from ops.log.hot_statements import HotStatement
from ops.log.row_codec import record_of, record_text, row_digest
from ops.log.tables import WEBHOOKS, CheckpointRow, WebhookRow

#: Name of the row of ``checkpoints`` with the last position read.
CHECKPOINT: Final = "webhooks"
_VERSION: Final = 1
#: Columns with the value of the webhook's field of that name.
_COPIED: Final = ("id", "subject", "host", "position", "next_at", "last_at", "owner")
_PENDING: Final = WEBHOOKS.c.state == WebhookState.PENDING.value
_NEWEST: Final = (WEBHOOKS.c.position.desc(), WEBHOOKS.c.id.desc())
_OLDEST: Final = (func.min(WEBHOOKS.c.next_at), WEBHOOKS.c.host)
# Owners take turns, so that the hosts of one cannot fill the rows.
_DUE_HOSTS = HotStatement(
    select(WEBHOOKS.c.host, WEBHOOKS.c.owner)
    .where(_PENDING, WEBHOOKS.c.next_at <= bindparam("now"))
    .group_by(WEBHOOKS.c.host, WEBHOOKS.c.owner)
    .order_by(
        func.row_number().over(partition_by=WEBHOOKS.c.owner, order_by=_OLDEST),
        *_OLDEST,
        func.coalesce(WEBHOOKS.c.owner, ""),
    )
    .limit(bindparam("rows"))
)


class SqlWebhookStore:
    """The webhooks of a database; close it.

    Args:
        url: SQLAlchemy URL of the event log, whose tables ``migrate.upgrade`` has created.
    """

    def __init__(self, url: str) -> None:
        self._readers = reader_engine(url)
        self._writer = writer_engine(url)

    def close(self) -> None:
        """Close the connections."""
        self._readers.dispose()
        self._writer.dispose()

    def position(self) -> int:
        """See ``WebhookStore.position``."""
        with reading_rows(self._readers) as session:
            found = session.get(CheckpointRow, CHECKPOINT)
            return 0 if found is None else found.position

    def add(self, webhooks: Sequence[Webhook], *, position: int) -> None:
        """See ``WebhookStore.add``."""
        with self._writing() as session:
            mark = session.get(CheckpointRow, CHECKPOINT)
            if mark is None:
                mark = CheckpointRow(name=CHECKPOINT, version=_VERSION, position=0)
                session.add(mark)
            if position <= mark.position:
                return
            mark.position = position
            mark.digest = row_digest(mark.model_dump())
            fresh = {webhook.id: webhook for webhook in webhooks}
            known = session.scalars(select(WebhookRow).where(WEBHOOKS.c.id.in_(fresh)))
            for webhook_id in [WebhookId(row.id) for row in known]:
                del fresh[webhook_id]
            session.add_all(WebhookRow(**_columns(webhook)) for webhook in fresh.values())

    def due_hosts(self, now: str, *, limit: int) -> tuple[DueHost, ...]:
        """See ``WebhookStore.due_hosts``."""
        with reading(self._readers) as connection:
            rows = _DUE_HOSTS.rows(connection, {"now": now, "rows": limit})
            return tuple(DueHost(str(host), owner) for host, owner in rows)

    def claim(self, due: DueHost, *, now: str, until: str, limit: int) -> tuple[Webhook, ...]:
        """See ``WebhookStore.claim``."""
        whose = (WEBHOOKS.c.host == due.host, WEBHOOKS.c.owner == due.owner)
        query = select(WebhookRow).where(_PENDING, *whose, WEBHOOKS.c.next_at <= now)
        oldest = (WEBHOOKS.c.next_at, WEBHOOKS.c.position, WEBHOOKS.c.id)
        query = query.order_by(*oldest).limit(limit).with_for_update(skip_locked=True)
        with self._writing() as session:
            rows = session.scalars(query).all()
            return tuple(_replaced(row, _webhook(row).begin_try(until=until)) for row in rows)

    def settle(
        self,
        webhook_id: WebhookId,
        *,
        attempt: int,
        state: WebhookState,
        answer: DeliveryResult,
        at: str,
        next_at: str | None,
    ) -> bool:
        """See ``WebhookStore.settle``."""
        with self._writing() as session:
            row = session.get(WebhookRow, webhook_id, with_for_update=True)
            before = None if row is None else _webhook(row)
            if row is None or before is None:
                return False
            if (before.state, before.attempts) != (WebhookState.PENDING, attempt):
                return False
            _replaced(row, before.end_try(answer, state=state, at=at, next_at=next_at))
            return True

    def revive(self, webhook_id: WebhookId, *, at: str) -> Webhook | None:
        """See ``WebhookStore.revive``."""
        with self._writing() as session:
            row = session.get(WebhookRow, webhook_id, with_for_update=True)
            return None if row is None else _replaced(row, _webhook(row).revive(at=at))

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        """See ``WebhookStore.get``."""
        with reading_rows(self._readers) as session:
            row = session.get(WebhookRow, webhook_id)
            return None if row is None else _webhook(row)

    def of_subject(self, subject: str, *, limit: int) -> tuple[Webhook, ...]:
        """See ``WebhookStore.of_subject``."""
        query = select(WebhookRow).where(WEBHOOKS.c.subject == subject)
        return self._webhooks(query.order_by(*_NEWEST).limit(limit))

    def page(
        self,
        *,
        limit: int,
        before: WebhookId | None = None,
        state: WebhookState | None = None,
        owner: Owner | None = None,
    ) -> tuple[Webhook, ...]:
        """See ``WebhookStore.page``."""
        whose = [] if owner is None else [WEBHOOKS.c.owner == owner]
        query = select(WebhookRow).where(*whose)
        if state is not None:
            query = query.where(WEBHOOKS.c.state == state.value)
        if before is not None:
            cursor = select(WEBHOOKS.c.position, WEBHOOKS.c.id).where(
                WEBHOOKS.c.id == before, *whose
            )
            place = tuple_(WEBHOOKS.c.position, WEBHOOKS.c.id)
            query = query.where(place < cursor.scalar_subquery())
        return self._webhooks(query.order_by(*_NEWEST).limit(limit))

    def count_pending(self) -> int:
        """See ``WebhookStore.count_pending``."""
        with reading_rows(self._readers) as session:
            return session.scalars(select(func.count()).select_from(WEBHOOKS).where(_PENDING)).one()

    def forget(self, *, before: str, limit: int) -> int:
        """See ``WebhookStore.forget``."""
        over = (WEBHOOKS.c.state != WebhookState.PENDING.value, WEBHOOKS.c.last_at < before)
        with reading_rows(self._readers) as session:
            ids = session.scalars(select(WEBHOOKS.c.id).where(*over).limit(limit)).all()
        if not ids:
            return 0  # without taking the write lock
        with self._writing() as session:
            gone = session.connection().execute(
                delete_from(WEBHOOKS).where(WEBHOOKS.c.id.in_(ids), *over)
            )
            return int(gone.rowcount)

    def _webhooks(self, query: SelectOfScalar[WebhookRow]) -> tuple[Webhook, ...]:
        with reading_rows(self._readers) as session:
            return tuple(_webhook(row) for row in session.scalars(query))

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        failure = "the webhooks cannot be written"
        with writing(self._writer, failure) as connection, Session(connection) as session:
            yield session
            session.flush()


def _webhook(row: WebhookRow) -> Webhook:
    return record_of(Webhook, row.record)


def _columns(webhook: Webhook) -> dict[str, Any]:
    values = {name: getattr(webhook, name) for name in _COPIED}
    values |= {"state": webhook.state.value, "record": record_text(webhook)}
    return values | {"digest": row_digest(values)}


def _replaced(row: WebhookRow, webhook: Webhook) -> Webhook:
    """Set all columns of a row; return the webhook."""
    for name, value in _columns(webhook).items():
        setattr(row, name, value)
    return webhook
