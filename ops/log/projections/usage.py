"""Sums and histograms of usage: folded from events, read as ``domain.usage.figures.UsageViews``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    update,
)

from domain.usage.figures import (
    FIGURES,
    Histogram,
    Measure,
    UsageFigures,
    UsageGroup,
    bucket_of,
    histogram_of,
)
from domain.usage.fold import DAY_CHARACTERS, UsageChange
from domain.values import Owner
from ops.log.database import SqlViews
from ops.log.hot_statements import HotStatement
from ops.log.row_codec import storable
from ops.log.tables import AGENTS, USAGE_BUCKETS, USAGE_HOURS, USAGE_TOTALS


class SumTable:
    """Adds to the rows of a table, whose columns are keys and sums."""

    def __init__(self, table: Table) -> None:
        self._keys = [one.name for one in table.primary_key.columns]
        self._sums = [one.name for one in table.columns if not one.primary_key]
        where = and_(*(table.c[name] == bindparam(f"key_{name}") for name in self._keys))
        added = {table.c[name]: table.c[name] + bindparam(f"add_{name}") for name in self._sums}
        self._update = HotStatement(update(table).where(where).values(added))
        self._insert = HotStatement(insert(table).inline())

    def add(self, connection: Connection, key: tuple[Any, ...], values: Mapping[str, int]) -> None:
        """Add to the row of a key, which need not exist."""
        named = dict(zip(self._keys, key, strict=True))
        changed = {f"key_{name}": value for name, value in named.items()}
        changed |= {f"add_{name}": values[name] for name in self._sums}
        if not self._update.run(connection, changed):
            self._insert.run(connection, named | dict(values))


class UsageFold:
    """The additions of some events: summed in memory, written at the end.

    Args:
        tables: Sums by hour, model, agent and owner; sums by model; histograms by model.
    """

    def __init__(self, connection: Connection, tables: Sequence[SumTable]) -> None:
        self._connection = connection
        self._hour_sums, self._model_sums, self._bucket_sums = tables
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
            self._hour_sums.add(self._connection, key, figures.as_mapping())
            model = key[1]
            totals[model] = totals.get(model, UsageFigures()) + figures
        for model, figures in totals.items():
            self._model_sums.add(self._connection, (model,), figures.as_mapping())
        for bucket, (count, sum_us) in self._buckets.items():
            values = {"durations": count, "sum_us": sum_us}
            self._bucket_sums.add(self._connection, bucket, values)


_TOTALS = select(USAGE_TOTALS.c.model, *(USAGE_TOTALS.c[name] for name in FIGURES)).order_by(
    USAGE_TOTALS.c.model
)
_BUCKETS = select(USAGE_BUCKETS).order_by(*USAGE_BUCKETS.primary_key.columns)
_SUMS = tuple(func.sum(USAGE_HOURS.c[name]).label(name) for name in FIGURES)
_GROUPS = {
    UsageGroup.HOUR: USAGE_HOURS.c.hour,
    # As literals: PostgreSQL takes equal expressions with parameters for different ones.
    UsageGroup.DAY: func.substr(
        USAGE_HOURS.c.hour, literal_column("1"), literal_column(str(DAY_CHARACTERS))
    ),
    UsageGroup.AGENT: USAGE_HOURS.c.agent,
    UsageGroup.MODEL: USAGE_HOURS.c.model,
}


class SqlUsageViews(SqlViews):
    """Queries the usage projection."""

    def totals(self) -> Mapping[str, UsageFigures]:
        """See ``UsageViews.totals``."""
        return {model: _figures(values) for model, *values in self._all(_TOTALS)}

    def histograms(self) -> Mapping[tuple[str, Measure], Histogram]:
        """See ``UsageViews.histograms``."""
        found: dict[tuple[str, Measure], dict[int, tuple[int, int]]] = {}
        for model, name, bucket, count, sum_us in self._all(_BUCKETS):
            found.setdefault((model, Measure(name)), {})[bucket] = count, sum_us
        return {key: histogram_of(key[1], buckets) for key, buckets in found.items()}

    def by_agent(
        self, *, since: str | None = None, until: str | None = None
    ) -> Mapping[tuple[str, str], UsageFigures]:
        """See ``UsageViews.by_agent``."""
        keys = (USAGE_HOURS.c.model, USAGE_HOURS.c.agent)
        query = _within(select(*keys, *_SUMS).group_by(*keys), since, until)
        return {(model, agent): _figures(values) for model, agent, *values in self._all(query)}

    def first_agents(self, limit: int) -> tuple[str, ...]:
        """See ``UsageViews.first_agents``."""
        query = select(AGENTS.c.id).order_by(AGENTS.c.first_seen, AGENTS.c.id).limit(limit)
        return tuple(agent for (agent,) in self._all(query))

    def grouped(
        self,
        group: UsageGroup,
        *,
        since: str | None = None,
        until: str | None = None,
        owner: Owner | None = None,
    ) -> Mapping[str, UsageFigures]:
        """See ``UsageViews.grouped``."""
        name = _GROUPS[group]
        query = _within(select(name, *_SUMS).group_by(name).order_by(name), since, until)
        if owner is not None:
            query = query.where(USAGE_HOURS.c.owner == owner)
        return {str(key): _figures(values) for key, *values in self._all(query)}


def _within(query: Select[Any], since: str | None, until: str | None) -> Select[Any]:
    if since is not None:
        query = query.where(USAGE_HOURS.c.hour >= since)
    return query if until is None else query.where(USAGE_HOURS.c.hour < until)


def _figures(values: list[object]) -> UsageFigures:
    # PostgreSQL sums 64-bit integers to decimals.
    return UsageFigures(
        **{name: int(str(value)) for name, value in zip(FIGURES, values, strict=True)}
    )
