"""The port through which the sums and histograms are read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from domain.usage.figures import UsageFigures
from domain.usage.histogram import Histogram, Measure
from domain.values import Owner


class UsageGroup(StrEnum):
    """What the sums of a report are grouped by."""

    HOUR = "hour"
    DAY = "day"
    AGENT = "agent"
    MODEL = "model"


class UsageViews(Protocol):
    """The usage projection. Each method raises ``LogUnavailable``."""

    def totals(self) -> Mapping[str, UsageFigures]:
        """Return the sums since the log began, by model; empty name: no attempt began.

        The cost does not grow with the log, and no figure ever decreases.
        """
        ...

    def histograms(self) -> Mapping[tuple[str, Measure], Histogram]:
        """Return the histograms since the log began, by model and measure; same cost."""
        ...

    def by_agent(
        self, *, since: str | None = None, until: str | None = None
    ) -> Mapping[tuple[str, str], UsageFigures]:
        """Return sums by model and agent; ``since`` and ``until`` as in ``grouped``."""
        ...

    def first_agents(self, limit: int) -> tuple[str, ...]:
        """Return the agents that were seen first, in order; a later agent changes none of them."""
        ...

    def grouped(
        self,
        group: UsageGroup,
        *,
        since: str | None = None,
        until: str | None = None,
        owner: Owner | None = None,
    ) -> Mapping[str, UsageFigures]:
        """Return sums by hour, day, agent or model, in order of the names.

        Args:
            group: What to group by; an empty name is a job without an agent or a model.
            since: First hour, e.g. ``2026-11-22T18``.
            until: The hour after the last one.
            owner: Only jobs of this API key.
        """
        ...
