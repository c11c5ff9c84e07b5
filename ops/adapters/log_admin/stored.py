"""Measures how much a data directory stores, by kind."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from ops.adapters.event_log.archives import DIRECTORY
from ops.adapters.event_log.database import database_file, reader_engine, reading
from ops.adapters.event_log.tables import PAYLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """Sizes in bytes.

    Attributes:
        texts: Requests, answers and files in the log.
        log: The database with them; 0 for PostgreSQL.
        archives: Files of old events.
        broker: Files of the private broker.
        cache: Blocks of contexts.
    """

    texts: int
    log: int
    archives: int
    broker: int
    cache: int


def measure_stored(data_dir: Path, cache_dir: Path, url: str) -> StoredBytes:
    """Measure what is stored.

    Raises:
        LogUnavailable: The database cannot be read.
    """
    engine = reader_engine(url)
    try:
        with reading(engine) as connection:
            texts = int(connection.scalar(select(func.sum(PAYLOADS.c.bytes))) or 0)
    finally:
        engine.dispose()
    file = database_file(url)
    parts = [] if file is None else [file, file.with_name(f"{file.name}-wal")]
    return StoredBytes(
        texts=texts,
        log=sum(part.stat().st_size for part in parts if part.exists()),
        archives=0 if file is None else _size_of(file.parent / DIRECTORY),
        broker=_size_of(data_dir / "broker"),
        cache=_size_of(cache_dir),
    )


def _size_of(directory: Path) -> int:
    """Return the size of all files below a directory; files that disappear count as empty."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - of many files
            except FileNotFoundError:
                continue
    return total
