"""What each API key has in the log: its open jobs, and the texts that are stored for it."""

from __future__ import annotations

import json

from sqlalchemy import Engine, bindparam, func, select, union

from domain.events.batch import FileCreated, FileDeleted
from domain.values import JobStatus, Owner
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.tables import EVENTS, JOBS, OWNED_STREAMS, PAYLOADS

_OWNED = JOBS.c.owner == bindparam("owner")
_OPEN = select(func.count()).where(
    _OWNED, JOBS.c.status.in_([status.value for status in JobStatus if not status.is_terminal])
)
_TEXTS = union(
    select(JOBS.c.request.label("digest")).where(_OWNED),
    select(JOBS.c.output.label("digest")).where(_OWNED, JOBS.c.output.is_not(None)),
).subquery()
#: ``length`` and not the column ``bytes``, which stands behind the content: SQLite knows the length
#: of a blob without reading it.
_TEXT_BYTES = select(func.sum(func.length(PAYLOADS.c.content))).where(
    PAYLOADS.c.digest.in_(select(_TEXTS.c.digest))
)
_LATER = EVENTS.alias()
_FILES = (
    select(EVENTS.c.data)
    .join(OWNED_STREAMS, OWNED_STREAMS.c.stream == EVENTS.c.stream)
    .where(
        OWNED_STREAMS.c.owner == bindparam("owner"),
        EVENTS.c.type == FileCreated.__name__,
        ~select(_LATER.c.position)
        .where(_LATER.c.stream == EVENTS.c.stream, _LATER.c.type == FileDeleted.__name__)
        .exists(),
    )
)


class SqlOwnerSums:
    """Queries the jobs, files and texts of one owner.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_jobs(self, owner: Owner) -> int:
        """Return how many jobs of an owner are queued or running."""
        with reading(self._engine) as connection:
            return int(connection.execute(_OPEN, {"owner": owner}).scalar_one())

    def stored_bytes(self, owner: Owner) -> int:
        """Return the bytes of an owner's requests, answers and files, a text once in each kind.

        Texts that were erased and files that were deleted do not count.
        """
        with reading(self._engine) as connection:
            texts = connection.execute(_TEXT_BYTES, {"owner": owner}).scalar_one()
            files = connection.execute(_FILES, {"owner": owner}).scalars().all()
        uploaded = (json.loads(data) for data in files)
        # The output of a batch is derived from answers and stored nowhere else.
        size_bytes = sum(one["bytes"] for one in uploaded if one.get("content") is not None)
        return int(texts or 0) + int(size_bytes)
