"""``domain.usage.ports.UsageViews`` on the tables of usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, Select, func, literal_column, select

from domain.usage.figures import FIGURES, UsageFigures
from domain.usage.fold import DAY_CHARACTERS
from domain.usage.histogram import Histogram, Measure, histogram_of
from domain.usage.ports import UsageGroup
from domain.values import Owner
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.tables import AGENTS, USAGE_BUCKETS, USAGE_HOURS, USAGE_TOTALS

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


class SqlUsageViews:
    """Queries the usage projection.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def totals(self) -> Mapping[str, UsageFigures]:
        """See ``UsageViews.totals``."""
        with reading(self._engine) as connection:
            rows = connection.execute(_TOTALS).all()
        return {model: _figures(values) for model, *values in rows}

    def histograms(self) -> Mapping[tuple[str, Measure], Histogram]:
        """See ``UsageViews.histograms``."""
        with reading(self._engine) as connection:
            rows = connection.execute(_BUCKETS).all()
        found: dict[tuple[str, Measure], dict[int, tuple[int, int]]] = {}
        for model, name, bucket, count, sum_us in rows:
            found.setdefault((model, Measure(name)), {})[bucket] = count, sum_us
        return {key: histogram_of(key[1], buckets) for key, buckets in found.items()}

    def by_agent(
        self, *, since: str | None = None, until: str | None = None
    ) -> Mapping[tuple[str, str], UsageFigures]:
        """See ``UsageViews.by_agent``."""
        keys = (USAGE_HOURS.c.model, USAGE_HOURS.c.agent)
        query = _within(select(*keys, *_SUMS).group_by(*keys), since, until)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        return {(model, agent): _figures(values) for model, agent, *values in rows}

    def first_agents(self, limit: int) -> tuple[str, ...]:
        """See ``UsageViews.first_agents``."""
        query = select(AGENTS.c.id).order_by(AGENTS.c.first_seen, AGENTS.c.id).limit(limit)
        with reading(self._engine) as connection:
            return tuple(row.id for row in connection.execute(query))

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
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        return {str(key): _figures(values) for key, *values in rows}


def _within(query: Select[Any], since: str | None, until: str | None) -> Select[Any]:
    if since is not None:
        query = query.where(USAGE_HOURS.c.hour >= since)
    return query if until is None else query.where(USAGE_HOURS.c.hour < until)


def _figures(values: list[object]) -> UsageFigures:
    # PostgreSQL sums 64-bit integers to decimals.
    return UsageFigures(
        **{name: int(str(value)) for name, value in zip(FIGURES, values, strict=True)}
    )
