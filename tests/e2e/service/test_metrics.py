"""A live service is scraped before and after its worker and all of it are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from ops.observe.families import FAMILIES, Kind
from tests.support.polling import scaled, wait_until
from tests.support.processes.promtool import promtool, sample_names
from tests.support.processes.service import Service

KEY = "scraper-0123456789"
ASK = {
    "model": "semantic-demo",
    "max_tokens": 24,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Tell me a long story. " * 60}],
}
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
#: Families that have no sample before what they count has happened for the first time, and one of
#: a service with a swap.
RARE = {"model_swap_duration_seconds"}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    env = {
        "SEMANTIC_SERVER__API_KEYS": f'["{KEY}"]',
        "SEMANTIC_API_KEY": KEY,
        "SEMANTIC_METRICS__VLLM_NAMES": "true",
        "SEMANTIC_METRICS__AGENTS_MAX": "1",
    }
    service = Service(tmp_path_factory.mktemp("metrics") / "data", env=env).start()
    yield service
    assert service.stop() == 0, service.log()


def get(service: Service, path: str, **headers: str) -> httpx.Response:
    return httpx.get(
        service.base_url + path, headers={**service.headers, **headers}, timeout=scaled(30)
    )


def ask(service: Service, agent: str) -> None:
    headers = {**service.headers, "x-session-id": agent}
    answer = httpx.post(
        f"{service.base_url}/v1/messages", json=ASK, headers=headers, timeout=scaled(120)
    )
    assert answer.status_code == 200, answer.text


def samples(service: Service) -> Samples:
    text = get(service, "/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in parse_prometheus(text)
        for sample in metric.samples
    }


def totals(found: Samples) -> Samples:
    """Return the samples that may never decrease."""
    names = {
        name
        for family in FAMILIES.values()
        if family.kind is not Kind.GAUGE
        for name in sample_names(family)
    }
    return {key: value for key, value in found.items() if key[0] in names}


def value(found: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples that have these labels."""
    return sum(
        number
        for (sample, given), number in found.items()
        if sample == f"semantic_{name}" and labels.items() <= dict(given).items()
    )


def started(service: Service, workers: int) -> Samples:
    """Wait until so many workers have started, and return the samples that count them."""
    return wait_until(
        lambda: samples(service), lambda seen: value(seen, "worker_starts_total") == workers
    )


def decreased(before: Samples, after: Samples) -> Samples:
    return {
        key: after.get(key, -1.0)
        for key, number in totals(before).items()
        if after.get(key, -1.0) < number
    }


def worker_names(found: Samples) -> set[str]:
    return {
        dict(labels)["worker"] for (name, labels) in found if name == "semantic_worker_starts_total"
    }


def test_scrape_has_every_family_in_both_formats(service: Service) -> None:
    created = httpx.post(
        f"{service.base_url}/v1/subscriptions",
        json={"name": "audit"},
        headers=service.headers,
        timeout=scaled(30),
    )
    assert created.status_code == 201, created.text
    ask(service, "a")
    ask(service, "a")
    wait_until(lambda: value(samples(service), "engine_generated_tokens_total") >= 2)
    wait_until(
        lambda: value(samples(service), "disk_cache_operations_total", outcome="written") > 0
    )
    wait_until(lambda: value(samples(service), "cache_restore_duration_seconds_count") >= 1)
    plain = get(service, "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {sample for metric in parse_prometheus(plain.text) for sample in sampled(metric)}
    missing = [
        family.name
        for family in FAMILIES.values()
        if family.name not in RARE and not found >= set(sample_names(family))
    ]
    assert missing == []
    assert {family.alias for family in FAMILIES.values() if family.alias} <= {
        sample.removesuffix("_bucket") for sample in found
    }
    seen = samples(service)
    for name in ("process_resident_memory_bytes", "log_commit_duration_seconds_count"):
        assert all(value(seen, name, process=one) > 0 for one in ("api", *worker_names(seen)))
    preferred = get(service, "/metrics", accept=OPENMETRICS)
    assert preferred.headers["content-type"].startswith("application/openmetrics-text")
    families = openmetrics.text_string_to_metric_families(preferred.text)  # type: ignore[no-untyped-call]  # in it
    assert {sample for metric in families for sample in sampled(metric)} >= found
    # vLLM's own names break its rules, so only ours are checked.
    ours = "".join(line for line in plain.text.splitlines(keepends=True) if "vllm:" not in line)
    promtool("check", "metrics", given=ours.encode())


def sampled(metric: Any) -> set[str]:
    return {sample.name for sample in metric.samples}


def test_scrape_needs_a_key_and_a_known_host(service: Service) -> None:
    assert httpx.get(f"{service.base_url}/metrics", timeout=scaled(30)).status_code == 401
    assert get(service, "/metrics", host="evil.example").status_code == 403
    assert get(service, "/metrics", authorization=f"Bearer {KEY}").status_code == 200


def test_agents_are_told_apart_up_to_the_cap(service: Service) -> None:
    ask(service, "a")
    ask(service, "b")
    found = samples(service)
    assert value(found, "request_total", agent_id="a", status="completed") >= 1
    assert value(found, "request_total", agent_id="other", status="completed") == 1
    assert value(found, "request_total", agent_id="b") == 0


def test_totals_go_on_after_the_worker_and_the_service_are_killed(service: Service) -> None:
    ask(service, "a")
    before = started(service, 1)
    assert value(before, "request_total", status="completed") >= 1

    service.kill_part("worker")
    while_away = samples(service)
    assert decreased(before, while_away) == {}
    after_worker = started(service, 2)
    assert decreased(while_away, after_worker) == {}
    assert worker_names(after_worker) == worker_names(before)

    service.kill()
    service.start()
    after_all = started(service, 3)
    assert decreased(after_worker, after_all) == {}
    for name in ("request_total", "tokens_generated_total", "request_duration_seconds_count"):
        assert value(after_all, name) == value(before, name), "the log proves it"
    assert worker_names(after_all) == worker_names(before)

    ask(service, "a")
    assert value(samples(service), "request_total") == value(before, "request_total") + 1


def test_database_and_counters_are_in_the_data_directory(service: Service) -> None:
    files = {path.name for path in Path(service.data_dir).iterdir()}
    assert {"worker.counters.json", "api.counters.json"} <= files
