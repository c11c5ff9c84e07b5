"""The samples of one scrape, and their text for Prometheus and OpenMetrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from ops.observe.families import ALIAS_LABELS, FAMILIES, Family, Kind

#: Key of the bucket without an upper bound, and of the sum of all values.
INFINITE = "+Inf"
SUM = "sum"


class HistogramRecorder:
    """Counts values by buckets; any thread may use it.

    Args:
        bounds: Upper bounds of the buckets in the family's unit, inclusive and ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def record(self, value: float) -> None:
        """Count a value."""
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def read(self) -> Mapping[str, float]:
        """Return the cumulative counts by upper bound, and the sum; none of them decreases."""
        with self._lock:
            counts, total = tuple(self._counts), self._sum
        return cumulated(self._bounds, counts, total)


def cumulated(bounds: Sequence[float], counts: Sequence[int], total: float) -> Mapping[str, float]:
    """Return counts per bucket as cumulative counts by upper bound, and the sum.

    Args:
        bounds: Upper bounds without infinity.
        counts: Values per bucket; the last bucket has no bound.
        total: The sum of the values.
    """
    names = (*(str(float(bound)) for bound in bounds), INFINITE)
    return {**dict(zip(names, map(float, accumulate(counts)), strict=True)), SUM: total}


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
        raise ValueError(f"{family.name} has the labels {family.labels}")
    return tuple(labels[name] for name in family.labels)


#: Units that OpenMetrics names; a family of such a unit ends with it.
_UNITS = ("seconds", "bytes", "ratio")
_TOTAL = "_total"


def render(
    readings: Iterable[Reading], *, accept: str | None, aliases: bool = False
) -> tuple[bytes, str]:
    """Return the text, and its content type.

    Args:
        accept: The header of the request; without one the text is that of Prometheus.
        aliases: Whether families with a vLLM metric of the same meaning are repeated under its
            name.
    """
    found, content_type = choose_encoder(accept or "")
    encode = cast("Callable[..., bytes]", found)
    families = _Families(readings, aliases=aliases)
    # Every name is valid in every format. The library would turn the colon of an alias into an
    # underscore for scrapers that ask for OpenMetrics and name no escaping.
    return encode(families, escaping=ALLOWUTF8), content_type


class _Families(Collector):
    def __init__(self, readings: Iterable[Reading], *, aliases: bool) -> None:
        self._readings = tuple(readings)
        self._aliases = aliases

    def collect(self) -> Iterator[Metric]:
        for reading in self._readings:
            yield _metric(reading, reading.family.full_name, reading.family.labels)
        for reading in self._readings if self._aliases else ():
            if reading.family.alias:
                yield _alias(reading)


def _alias(reading: Reading) -> Metric:
    """Return a family under its vLLM name, summed over the labels that vLLM does not have."""
    family = reading.family
    kept = [number for number, name in enumerate(family.labels) if name in ALIAS_LABELS]
    values: dict[tuple[str, ...], float] = {}
    for labels, value in reading.values.items():
        key = tuple(labels[number] for number in kept)
        values[key] = values.get(key, 0.0) + value
    buckets: dict[tuple[str, ...], Mapping[str, float]] = {
        tuple(labels[number] for number in kept): counts
        for labels, counts in reading.buckets.items()
    }
    names = tuple(ALIAS_LABELS[family.labels[number]] for number in kept)
    return _metric(Reading(family, values, buckets), family.alias, names)


def _metric(reading: Reading, name: str, labels: tuple[str, ...]) -> Metric:
    family = reading.family
    base = name.removesuffix(_TOTAL) if family.kind is Kind.COUNTER else name
    has_unit = family.unit in _UNITS and base.endswith("_" + family.unit)
    metric = Metric(base, family.help, family.kind.value, family.unit if has_unit else "")
    for key, value in reading.values.items():
        metric.add_sample(name, dict(zip(labels, key, strict=True)), value)
    for key, counts in reading.buckets.items():
        given = dict(zip(labels, key, strict=True))
        for bound, count in counts.items():
            if bound != SUM:
                metric.add_sample(f"{name}_bucket", {**given, "le": bound}, count)
        metric.add_sample(f"{name}_count", given, counts[INFINITE])
        metric.add_sample(f"{name}_sum", given, counts[SUM])
    return metric
