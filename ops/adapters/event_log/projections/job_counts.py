"""Counts jobs by status."""

from __future__ import annotations

from sqlalchemy import Engine, func, select

from domain.values import JobStatus
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.tables import JOBS


def count_jobs(engine: Engine) -> dict[JobStatus, int]:
    """Return the number of jobs of every status, 0 included.

    Raises:
        LogUnavailable: The database cannot be read.
    """
    query = select(JOBS.c.status, func.count()).group_by(JOBS.c.status)
    with reading(engine) as connection:
        found = {str(row[0]): int(row[1]) for row in connection.execute(query)}
    return {status: found.get(status.value, 0) for status in JobStatus}
