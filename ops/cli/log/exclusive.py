"""Exclusive access to the data directory, for commands that need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from domain.errors import LogUnavailable
from ops.adapters.data_dir.lock import DataLock
from ops.settings import Settings
from ops.supervisor.serve_record import CannotServe, serve_lock


@contextmanager
def nothing_runs(settings: Settings) -> Iterator[None]:
    """Hold the locks of a service and its parts.

    Raises:
        LogUnavailable: A service, or one of its parts, runs.
        DataDirLocked: A worker runs on its own.
    """
    try:
        with (
            serve_lock(settings.data_dir) as leftovers,
            DataLock(settings.data_dir / "worker.lock"),
        ):
            if leftovers is not None and leftovers.has_living_parts():
                msg = "parts of a service are still ending; try again in a moment"
                raise LogUnavailable(msg)
            yield
    except CannotServe as error:
        msg = f"{error}; stop it first"
        raise LogUnavailable(msg) from error
