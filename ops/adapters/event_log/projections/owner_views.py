"""``domain.log.ports.Owners`` on the tables of jobs, agents and owned streams."""

from __future__ import annotations

from sqlalchemy import Engine, bindparam, select

from domain.log.record import AGENT_STREAM, Ownership
from domain.values import Owner, StreamName
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import storable
from ops.adapters.event_log.tables import AGENTS, JOBS, OWNED_STREAMS

_JOB = HotStatement(select(JOBS.c.owner).where(JOBS.c.id == bindparam("name")))
_AGENT = HotStatement(select(AGENTS.c.owner).where(AGENTS.c.id == bindparam("name")))
_STREAM = HotStatement(
    select(OWNED_STREAMS.c.owner).where(OWNED_STREAMS.c.stream == bindparam("name"))
)
_JOB_PREFIX = "job-"


class SqlOwners:
    """Looks up owners.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ownership_of(self, stream: StreamName) -> Ownership | None:
        """See ``Owners.ownership_of``."""
        statement, name = _STREAM, str(stream)
        if stream.startswith(_JOB_PREFIX):
            statement = _JOB
        elif stream.startswith(AGENT_STREAM):
            statement, name = _AGENT, stream.removeprefix(AGENT_STREAM)
        with reading(self._engine) as connection:
            row = statement.row(connection, {"name": storable(name)})
        return None if row is None else Ownership(owner=row[0] and Owner(row[0]))
