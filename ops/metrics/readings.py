"""The samples of one scrape, checked against the table of families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ops.metrics.durations import INFINITE, SUM
from ops.metrics.families import FAMILIES
from ops.metrics.family import Family

_Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples of one family.

    Attributes:
        values: Of a counter or gauge, by the values of its labels.
        buckets: Of a histogram: cumulative counts by upper bound, and the sum, by the values of its
            labels.
    """

    family: Family
    values: Mapping[_Labels, float]
    buckets: Mapping[_Labels, Mapping[str, float]]


class Readings:
    """Collects samples; those with equal labels are added."""

    def __init__(self) -> None:
        self._values: dict[str, dict[_Labels, float]] = {}
        self._buckets: dict[str, dict[_Labels, dict[str, float]]] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        """Add a sample of a counter or a gauge."""
        samples = self._values.setdefault(name, {})
        key = _key(FAMILIES[name], labels)
        samples[key] = samples.get(key, 0.0) + value

    def add_histogram(self, name: str, buckets: Mapping[str, float], **labels: str) -> None:
        """Add a histogram; buckets of other bounds, of a worker of another version, are dropped."""
        family = FAMILIES[name]
        known = (*(str(float(bound)) for bound in family.bounds), INFINITE, SUM)
        sums = self._buckets.setdefault(name, {}).setdefault(
            _key(family, labels), dict.fromkeys(known, 0.0)
        )
        if buckets.keys() == sums.keys():
            for bound in known:
                sums[bound] += buckets[bound]

    def merge(self, other: Readings) -> None:
        """Add the samples of another one; both must not have the same."""
        for name, values in other._values.items():
            self._values.setdefault(name, {}).update(values)
        for name, buckets in other._buckets.items():
            self._buckets.setdefault(name, {}).update(buckets)

    def all(self) -> tuple[Reading, ...]:
        """Return the families that have a sample, in the order of the table."""
        return tuple(
            Reading(family, self._values.get(name, {}), self._buckets.get(name, {}))
            for name, family in FAMILIES.items()
            if name in self._values or name in self._buckets
        )


def _key(family: Family, labels: Mapping[str, str]) -> _Labels:
    if labels.keys() != set(family.labels):
        msg = f"{family.name} has the labels {family.labels}"
        raise ValueError(msg)
    return tuple(labels[name] for name in family.labels)
