"""``domain.webhook.ports.WebhookStore`` on the database of the event log.

An index finds the due webhooks. ``claim`` takes them by a conditional update in a transaction that
holds the write lock, so two processes never start the same attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, insert, select, tuple_, update
from sqlalchemy import delete as delete_from
from sqlalchemy.exc import SQLAlchemyError

from domain.errors import LogUnavailable
from domain.values import Owner
from domain.webhook.delivery import DeliveryResult, DueHost, Webhook, WebhookId, WebhookState
from ops.adapters.event_log.database import reader_engine, reading, reason_of, writer_engine
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import row_digest
from ops.adapters.event_log.tables import CHECKPOINTS, WEBHOOKS

#: Name of the row of ``checkpoints`` with the last position read.
CHECKPOINT: Final = "webhooks"
_VERSION: Final = 1
_NAMES: Final = tuple(field.name for field in fields(Webhook))
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
        with reading(self._readers) as connection:
            return _position(connection)

    def add(self, webhooks: Sequence[Webhook], *, position: int) -> None:
        """See ``WebhookStore.add``."""
        with self._writing() as connection:
            before = _position(connection)
            if position <= before:
                return
            query = select(WEBHOOKS.c.id).where(
                WEBHOOKS.c.id.in_([webhook.id for webhook in webhooks])
            )
            known = {row.id for row in connection.execute(query)} if webhooks else set()
            rows = {webhook.id: _values(webhook) for webhook in webhooks if webhook.id not in known}
            if rows:
                connection.execute(insert(WEBHOOKS), list(rows.values()))
            mark = {"name": CHECKPOINT, "version": _VERSION, "position": position}
            mark["digest"] = row_digest(mark)
            moved = connection.execute(
                update(CHECKPOINTS).where(CHECKPOINTS.c.name == CHECKPOINT).values(mark)
            )
            if not moved.rowcount:
                connection.execute(insert(CHECKPOINTS).values(mark))

    def due_hosts(self, now: str, *, limit: int) -> tuple[DueHost, ...]:
        """See ``WebhookStore.due_hosts``."""
        with reading(self._readers) as connection:
            rows = _DUE_HOSTS.rows(connection, {"now": now, "rows": limit})
            return tuple(DueHost(str(host), owner) for host, owner in rows)

    def claim(self, due: DueHost, *, now: str, until: str, limit: int) -> tuple[Webhook, ...]:
        """See ``WebhookStore.claim``."""
        whose = (WEBHOOKS.c.host == due.host, WEBHOOKS.c.owner == due.owner)
        query = select(WEBHOOKS).where(_PENDING, *whose, WEBHOOKS.c.next_at <= now)
        oldest = (WEBHOOKS.c.next_at, WEBHOOKS.c.position, WEBHOOKS.c.id)
        query = query.order_by(*oldest).limit(limit).with_for_update(skip_locked=True)
        with self._writing() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            for row in rows:
                row |= {"next_at": until, "attempts": row["attempts"] + 1}
                _replace(connection, row)
        return tuple(_webhook(row) for row in rows)

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
        latest = (_PENDING, WEBHOOKS.c.id == webhook_id, WEBHOOKS.c.attempts == attempt)
        values = {"state": state.value, "status": answer.status, "error": answer.error}
        values |= {"last_at": at, "next_at": next_at}
        with self._writing() as connection:
            row = _mapping(connection, select(WEBHOOKS).where(*latest).with_for_update())
            if row is None:
                return False
            _replace(connection, row | values)
            return True

    def revive(self, webhook_id: WebhookId, *, at: str) -> Webhook | None:
        """See ``WebhookStore.revive``."""
        by_id = WEBHOOKS.c.id == webhook_id
        values = {"state": WebhookState.PENDING.value, "attempts": 0, "next_at": at}
        with self._writing() as connection:
            row = _mapping(connection, select(WEBHOOKS).where(by_id).with_for_update())
            if row is None:
                return None
            _replace(connection, row | values)
            return _webhook(row | values)

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        """See ``WebhookStore.get``."""
        with reading(self._readers) as connection:
            return _one(connection, select(WEBHOOKS).where(WEBHOOKS.c.id == webhook_id))

    def of_subject(self, subject: str, *, limit: int) -> tuple[Webhook, ...]:
        """See ``WebhookStore.of_subject``."""
        query = select(WEBHOOKS).where(WEBHOOKS.c.subject == subject)
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
        query = select(WEBHOOKS).where(*whose)
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
        with reading(self._readers) as connection:
            query = select(func.count()).select_from(WEBHOOKS).where(_PENDING)
            return int(connection.execute(query).scalar_one())

    def forget(self, *, before: str, limit: int) -> int:
        """See ``WebhookStore.forget``."""
        over = (WEBHOOKS.c.state != WebhookState.PENDING.value, WEBHOOKS.c.last_at < before)
        with reading(self._readers) as connection:
            found = connection.execute(select(WEBHOOKS.c.id).where(*over).limit(limit))
            ids = [row.id for row in found]
        if not ids:
            return 0  # without taking the write lock
        with self._writing() as connection:
            gone = connection.execute(delete_from(WEBHOOKS).where(WEBHOOKS.c.id.in_(ids), *over))
            return int(gone.rowcount)

    def _webhooks(self, query: Select[Any]) -> tuple[Webhook, ...]:
        with reading(self._readers) as connection:
            return tuple(_webhook(dict(row)) for row in connection.execute(query).mappings())

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self._writer.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            msg = f"the webhooks cannot be written: {reason_of(error)}"
            raise LogUnavailable(msg) from error


def _position(connection: Connection) -> int:
    query = select(CHECKPOINTS.c.position).where(CHECKPOINTS.c.name == CHECKPOINT)
    return int(connection.execute(query).scalar_one_or_none() or 0)


def _one(connection: Connection, query: Select[Any]) -> Webhook | None:
    row = _mapping(connection, query)
    return None if row is None else _webhook(row)


def _mapping(connection: Connection, query: Select[Any]) -> dict[str, Any] | None:
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def _replace(connection: Connection, row: dict[str, Any]) -> None:
    """Write all columns of a row, and their digest."""
    changed = update(WEBHOOKS).where(WEBHOOKS.c.id == row["id"])
    connection.execute(changed.values(row | {"digest": row_digest(row)}))


def _values(webhook: Webhook) -> dict[str, Any]:
    values = {name: getattr(webhook, name) for name in _NAMES}
    values |= {"state": webhook.state.value}
    return values | {"digest": row_digest(values)}


def _webhook(row: Mapping[str, Any]) -> Webhook:
    values = {name: row[name] for name in _NAMES}
    return Webhook(
        **values | {"state": WebhookState(values["state"]), "body": bytes(values["body"])}
    )
