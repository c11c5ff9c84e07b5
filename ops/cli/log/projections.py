"""Projections that commands read without a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ops.cli.options import operator_settings, overrides

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine


@contextmanager
def current_projections(data_dir: Path | None) -> Iterator[Engine | None]:
    """Yield an engine that reads the log; ``None`` if its projections do not hold every event.

    Args:
        data_dir: Directory of the log, if not that of the settings.
    """
    from ops.adapters.event_log.database import database_file, reader_engine  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.event_log.projections.fold import are_current  # noqa: PLC0415 - the same

    url = operator_settings(overrides(data_dir=data_dir)).log_url
    file = database_file(url)
    if file is not None and not file.exists():
        yield None
        return
    engine = reader_engine(url)
    try:
        yield engine if are_current(engine) else None
    finally:
        engine.dispose()
