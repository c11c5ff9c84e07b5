"""Renders the samples of a scrape as Prometheus or OpenMetrics text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

from ops.metrics.durations import INFINITE, SUM
from ops.metrics.family import ALIAS_LABELS, Family, Kind
from ops.metrics.readings import Reading

#: Units that OpenMetrics names; a family of such a unit ends with it.
_UNITS = ("seconds", "bytes", "ratio")
_TOTAL = "_total"


def render(
    readings: Iterable[Reading], *, accept: str | None, aliases: bool = False
) -> tuple[bytes, str]:
    """Return the text, and its content type.

    Args:
        readings: The samples.
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
    metric = Metric(base, family.help, family.kind.value, _unit_of(family, base))
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


def _unit_of(family: Family, base: str) -> str:
    return family.unit if family.unit in _UNITS and base.endswith("_" + family.unit) else ""
