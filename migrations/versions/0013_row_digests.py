"""Digests of the rows that no event can verify: webhooks and how far they were collected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.row_codec import row_digest
from ops.adapters.event_log.tables import TEXT

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    connection = op.get_bind()
    for name, key in (("webhooks", "id"), ("checkpoints", "name")):
        op.add_column(name, sa.Column("digest", TEXT, nullable=True))
        table = sa.Table(name, sa.MetaData(), autoload_with=connection)
        query = sa.select(table)
        if name == "checkpoints":
            query = query.where(table.c.name == "webhooks")
        for row in connection.execute(query).mappings().all():
            change = sa.update(table).where(table.c[key] == row[key])
            connection.execute(change.values(digest=row_digest(dict(row))))
