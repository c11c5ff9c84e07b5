"""``/metrics`` on fake ports: what the log proves, and what is shown while a part is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from api.http.messages import Reply
from domain.events.model import ModelServed, ModelSwapAdvanced
from domain.model.swap import RequestSwap
from domain.model.swaps import ModelSwaps
from domain.model.wanted_model import SwapState
from domain.values import WorkerId
from domain.webhook.delivery import WebhookState
from ops.observe.counter_file import CounterFile
from tests.support.builders.api import FakeApi, fake_api

JOB = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.samples = [
            sample for metric in text_string_to_metric_families(text) for sample in metric.samples
        ]

    def value(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for sample in self.samples
            if sample.name == f"semantic_{name}" and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


def use(api: FakeApi, **changes: Any) -> None:
    api.use(metrics=replace(api.app.metrics, **changes))


async def scrape(api: FakeApi) -> Scrape:
    reply = await api.send("GET", "/metrics")
    assert isinstance(reply, Reply)
    assert reply.status == 200
    return Scrape(reply.body.decode())


async def answered(api: FakeApi) -> None:
    job = (await api.json("POST", "/v1/jobs", JOB, status=202))["id"]
    api.start(job)
    api.complete(job, "hi")


def played(scenario: Callable[[FakeApi], Awaitable[Any]]) -> None:
    async def play() -> None:
        async with fake_api() as api:
            await scenario(api)

    asyncio.run(play())


def test_ended_and_open_jobs_are_counted() -> None:
    async def scenario(api: FakeApi) -> None:
        api.worker_is("ready")
        await answered(api)
        await api.json("POST", "/v1/jobs", JOB, status=202)
        found = await scrape(api)
        assert found.value("request_total", model="demo", status="completed") == 1
        assert found.value("request_total", model="demo", status="failed") == 0
        assert found.value("prompt_tokens_total", model="demo") == 5
        assert found.value("prefix_cache_hits_total", model="demo") == 2
        assert found.value("tokens_generated_total", model="demo") == 1
        assert found.value("request_duration_seconds_count", model="demo") == 1
        assert found.value("request_queue_depth", priority="interactive") == 1
        assert found.value("request_queue_depth", priority="batch") == 0
        assert found.value("requests_running") == 0
        assert found.value("workers", state="ready") == 1
        assert found.value("scrape_source_up") == 2
        assert found.value("build_info", version="1.2.3") == 1

    played(scenario)


def test_swaps_are_those_of_the_log() -> None:
    async def scenario(api: FakeApi) -> None:
        swaps = ModelSwaps(log=api.log, ids=api.app.ids)
        swap = swaps.request("other")
        worker = WorkerId("w1")
        swaps.apply(ModelSwapAdvanced(swap=swap.id, worker=worker, phase=SwapState.LOADING))
        swaps.apply(ModelServed(worker=worker, model="other"))
        found = await scrape(api)
        assert found.value("model_swap_total", outcome="done") == 1
        assert found.value("model_swap_duration_seconds_count", model="other") == 1
        swaps.apply(RequestSwap(swap=f"{swap.id}-2", model="demo"))
        swaps.apply(RequestSwap(swap=f"{swap.id}-3", model="other"))
        found = await scrape(api)
        assert found.value("model_swap_total", outcome="superseded") == 1
        assert found.value("model_swap_total", outcome="done") == 1

    played(scenario)


def test_scrape_while_the_broker_is_away_has_what_the_log_proves() -> None:
    async def scenario(api: FakeApi) -> None:
        api.worker_is("ready")
        await answered(api)
        api.broker.down = True
        found = await scrape(api)
        api.broker.down = False
        assert found.value("scrape_source_up", source="broker") == 0
        assert found.value("scrape_source_up", source="log") == 1
        assert found.value("request_total", status="completed") == 1
        assert found.value("workers") is None

    played(scenario)


def test_counters_of_the_process_go_on_in_the_next_one(tmp_path: Path) -> None:
    async def first(api: FakeApi) -> None:
        use(api, counters=CounterFile(tmp_path / "api.counters.json"))
        api.app.metrics.requests.replies["/v1/jobs/{job_id}", 200] += 1
        api.app.metrics.tries[WebhookState.FAILED] += 1
        found = await scrape(api)
        assert found.value("http_requests_total", route="/v1/jobs/{job_id}", status="200") == 1

    async def second(api: FakeApi) -> None:
        use(api, counters=CounterFile(tmp_path / "api.counters.json"))
        api.app.metrics.requests.replies["/v1/jobs/{job_id}", 200] += 1
        found = await scrape(api)
        assert found.value("http_requests_total", route="/v1/jobs/{job_id}", status="200") == 2
        assert found.value("webhook_attempts_total", outcome="failed") == 1
        assert found.value("webhook_attempts_total", outcome="delivered") == 0

    played(first)
    played(second)


def test_aliases_are_shown_where_the_settings_want_them() -> None:
    async def scenario(api: FakeApi) -> None:
        await answered(api)
        reply = await api.send("GET", "/metrics")
        assert isinstance(reply, Reply)
        assert b"vllm:" not in reply.body
        use(api, aliases=True)
        reply = await api.send("GET", "/metrics")
        assert isinstance(reply, Reply)
        assert b'vllm:request_success_total{model_name="demo"} 1.0' in reply.body

    played(scenario)
