"""Finds the blocks on disk that only the contexts of certain agents used."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from sqlalchemy import Engine, select

from domain.events.cache import AgentCacheSaved
from domain.log.record import AGENT_STREAM
from ops.adapters.event_log.archives import read_archives
from ops.adapters.event_log.database import database_file, reading
from ops.adapters.event_log.event_file import read_events
from ops.adapters.event_log.tables import EVENTS

_BLOCK: Final = re.compile(r'"([0-9a-f]{64})"')
_PAGE_ROWS: Final = 500


def own_blocks(engine: Engine, url: str, gone_at: Mapping[str, int]) -> frozenset[str]:
    """Return the names of blocks that no other context has, 64 hex digits each.

    Args:
        engine: From ``reader_engine``.
        url: Of the log, for its archives.
        gone_at: Position by agent; contexts that it saved later count as another's.

    Raises:
        LogUnavailable: The database or an archive cannot be read.
    """
    if not gone_at:
        return frozenset()
    own, others = set[str](), set[str]()
    for position, stream, data in itertools.chain(_saved(engine), _archived(engine, url)):
        agent = stream.removeprefix(AGENT_STREAM)
        names = own if position <= gone_at.get(agent, -1) else others
        names.update(_BLOCK.findall(data))
    return frozenset(own - others)


def _saved(engine: Engine) -> Iterator[tuple[int, str, str]]:
    after = 0
    while True:
        query = select(EVENTS.c.position, EVENTS.c.stream, EVENTS.c.data).where(
            EVENTS.c.type == AgentCacheSaved.__name__, EVENTS.c.position > after
        )
        with reading(engine) as connection:
            rows = connection.execute(query.order_by(EVENTS.c.position).limit(_PAGE_ROWS)).all()
        yield from ((position, stream, data) for position, stream, data in rows)
        if len(rows) < _PAGE_ROWS:
            return
        after = rows[-1][0]


def _archived(engine: Engine, url: str) -> Iterator[tuple[int, str, str]]:
    if database_file(url) is None:
        return  # only a log in a file has archives
    with reading(engine) as connection:
        archives = read_archives(connection)
    for archive in archives:
        path = archive.path(url)
        for event in read_events(path) if path.exists() else ():
            if event.type == AgentCacheSaved.__name__:
                yield event.position, event.stream, json.dumps(event.data)
