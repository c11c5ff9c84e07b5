"""The text of a scrape, read back by the parsers of both formats."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from ops.observe.exposition import HistogramRecorder, Readings, render
from ops.observe.families import FAMILIES

OPENMETRICS = "text/html;q=0.1,application/openmetrics-text;version=1.0.0"
HOSTILE = 'a"b\\c\n{d}é'


def readings() -> Readings:
    found = Readings()
    found.add("request_total", 3, model="m", agent_id="", status="completed")
    found.add("request_total", 1, model=HOSTILE, agent_id="", status="failed")
    found.add("request_queue_depth", 2, priority="interactive")
    found.add("request_queue_depth", 5, priority="batch")
    found.add("pool_utilization_ratio", 0.5, worker="w")
    durations = HistogramRecorder(FAMILIES["cache_persist_duration_seconds"].bounds)
    for seconds in (0.0005, 0.2, 99.0):
        durations.record(seconds)
    found.add_histogram("cache_persist_duration_seconds", durations.read(), worker="w")
    return found


def samples(metrics: Iterable[Metric]) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for metric in metrics:
        for sample in metric.samples:
            key = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[key] = sample.value
    return found


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/html", "nonsense;;=,,", "text/plain"])
def test_text_is_that_of_prometheus_unless_the_scraper_prefers_openmetrics(
    accept: str | None,
) -> None:
    body, content_type = render(readings().all(), accept=accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    found = samples(parse_prometheus(body.decode()))
    assert found["semantic_request_total"]["", "m", "completed"] == 3
    assert found["semantic_request_total"]["", HOSTILE, "failed"] == 1


def test_openmetrics_has_types_units_and_an_end() -> None:
    body, content_type = render(readings().all(), accept=OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    text = body.decode()
    assert text.endswith("# EOF\n")
    assert "# UNIT semantic_cache_persist_duration_seconds seconds" in text
    families = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # in it
    found = samples(families)
    buckets = found["semantic_cache_persist_duration_seconds_bucket"]
    assert buckets["0.001", "w"] == 1
    assert buckets["0.25", "w"] == 2
    assert buckets["+Inf", "w"] == 3
    assert found["semantic_cache_persist_duration_seconds_count"]["w",] == 3
    assert found["semantic_request_total"]["", HOSTILE, "failed"] == 1


def test_aliases_have_the_names_and_labels_of_vllm() -> None:
    plain, _ = render(readings().all(), accept=None)
    assert b"vllm" not in plain
    body, _ = render(readings().all(), accept=None, aliases=True)
    found = samples(parse_prometheus(body.decode()))
    assert found["vllm:num_requests_waiting"] == {(): 7}
    assert found["vllm:kv_cache_usage_perc"] == {("w",): 0.5}
    assert samples(parse_prometheus(plain.decode())).items() <= found.items()
    for escaping in ("", ";escaping=underscores", ";escaping=allow-utf-8"):
        body, _ = render(readings().all(), accept=OPENMETRICS + escaping, aliases=True)
        assert b"\nvllm:num_requests_waiting 7.0\n" in body


def test_labels_of_a_sample_are_those_of_its_family() -> None:
    with pytest.raises(ValueError, match="priority"):
        Readings().add("request_queue_depth", 1, queue="x")


def test_parts_of_a_family_come_together() -> None:
    found, more = Readings(), Readings()
    durations = HistogramRecorder(FAMILIES["log_commit_duration_seconds"].bounds).read()
    for readings_of, process in ((found, "api"), (more, "engine-1")):
        readings_of.add("log_write_failures_total", 1, process=process)
        readings_of.add_histogram("log_commit_duration_seconds", durations, process=process)
    found.merge(more)
    values, buckets = ({*one.values, *one.buckets} for one in found.all())
    assert values == buckets == {("api",), ("engine-1",)}


def test_histogram_with_other_bounds_is_dropped() -> None:
    found = Readings()
    found.add_histogram("cache_persist_duration_seconds", {"7.0": 1.0, "sum": 7.0}, worker="w")
    (reading,) = found.all()
    assert set(reading.buckets["w",].values()) == {0.0}
