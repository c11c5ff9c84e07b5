"""Adds what events change to the sums and histograms of usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, insert, update

from domain.usage.figures import FIGURES, UsageFigures
from domain.usage.fold import UsageChange
from domain.usage.histogram import bucket_of
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import storable


class UsageWriter:
    """Writes additions to a table of sums with the columns ``keys``, and to no other rows.

    Args:
        table: Whose other columns are ``figures``.
        keys: Columns of its primary key.
        figures: Columns to add to.
    """

    def __init__(self, table: Table, keys: tuple[str, ...], figures: tuple[str, ...]) -> None:
        self._keys, self._figures = keys, figures
        where = and_(*(table.c[name] == bindparam(f"key_{name}") for name in keys))
        added = {table.c[name]: table.c[name] + bindparam(f"add_{name}") for name in figures}
        self._update = HotStatement(update(table).where(where).values(added))
        self._insert = HotStatement(insert(table).inline())

    def add(self, connection: Connection, key: tuple[Any, ...], values: Mapping[str, int]) -> None:
        """Add to the row of a key, which need not exist."""
        named = dict(zip(self._keys, key, strict=True))
        changed = {f"key_{name}": value for name, value in named.items()}
        changed |= {f"add_{name}": values[name] for name in self._figures}
        if not self._update.run(connection, changed):
            self._insert.run(connection, named | dict(values))


class UsageTables:
    """The writers of the three tables of one set of projections.

    Args:
        hours: Sums by hour, model, agent and owner.
        totals: Sums by model.
        buckets: Histograms by model.
    """

    def __init__(self, *, hours: Table, totals: Table, buckets: Table) -> None:
        self.hours = UsageWriter(hours, ("hour", "model", "agent", "owner"), FIGURES)
        self.totals = UsageWriter(totals, ("model",), FIGURES)
        self.buckets = UsageWriter(buckets, ("model", "measure", "bucket"), ("durations", "sum_us"))


class UsageFold:
    """The additions of some events: summed in memory, written at the end.

    Args:
        connection: In the transaction that appends or reads the events.
        tables: Where to add them.
    """

    def __init__(self, connection: Connection, tables: UsageTables) -> None:
        self._connection = connection
        self._tables = tables
        self._hours: dict[tuple[str, str, str, str], UsageFigures] = {}
        self._buckets: dict[tuple[str, str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))

    def fold(self, changes: Iterable[UsageChange]) -> None:
        """Sum what events change."""
        for change in changes:
            hour, model, agent, owner = change.key
            key = hour, storable(model), storable(agent), storable(owner)
            before = self._hours.get(key)
            self._hours[key] = change.figures if before is None else before + change.figures
            for measure, us in change.durations:
                bucket = key[1], measure.value, bucket_of(measure, us)
                count, sum_us = self._buckets[bucket]
                self._buckets[bucket] = count + 1, sum_us + us

    def write(self) -> None:
        """Write the additions."""
        totals: dict[str, UsageFigures] = {}
        for key, figures in self._hours.items():
            self._tables.hours.add(self._connection, key, figures.as_mapping())
            model = key[1]
            totals[model] = totals.get(model, UsageFigures()) + figures
        for model, figures in totals.items():
            self._tables.totals.add(self._connection, (model,), figures.as_mapping())
        for bucket, (count, sum_us) in self._buckets.items():
            values = {"durations": count, "sum_us": sum_us}
            self._tables.buckets.add(self._connection, bucket, values)
