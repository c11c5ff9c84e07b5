"""``/admin/engine``: values, limits, pause and drain, as clients see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.http.messages import Reply
from domain.engine.control import ENGINE_STREAM, AdmissionState, EngineValues
from domain.engine.workers import ControlTopic, TurnState, WorkerPulse
from domain.values import JobId, WorkerId
from tests.support.builders.api import CARD, FakeApi, fake_api

SETTINGS = {"batch_window_ms": 10, "max_batch_size": 8, "gap_max_ms": 100}


def _run(scenario: Any) -> None:
    async def main() -> None:
        async with fake_api() as api:
            await scenario(api)

    asyncio.run(main())


def test_engine_without_changes_has_the_values_of_the_settings() -> None:
    async def scenario(api: FakeApi) -> None:
        assert await api.json("GET", "/admin/engine") == {
            "object": "engine",
            "admission": "open",
            "reason": None,
            "since": None,
            "values": SETTINGS,
            "tuned": [],
            "settings": SETTINGS,
            "running": 0,
            "waiting": 0,
            "workers": [],
        }

    _run(scenario)


def test_named_values_change_and_null_returns_to_the_setting() -> None:
    async def scenario(api: FakeApi) -> None:
        body: dict[str, float | None] = {"batch_window_ms": 0, "max_batch_size": 2.0}
        changed = await api.json("PATCH", "/admin/engine", body)
        assert changed["values"] == {**SETTINGS, "batch_window_ms": 0, "max_batch_size": 2}
        assert changed["tuned"] == ["batch_window_ms", "max_batch_size"]
        assert changed["settings"] == SETTINGS
        body = {"max_batch_size": None, "gap_max_ms": 40}
        changed = await api.json("PATCH", "/admin/engine", body)
        assert changed["values"] == {**SETTINGS, "batch_window_ms": 0, "gap_max_ms": 40}
        assert api.broker.signals.topics == [ControlTopic.ENGINE] * 2
        (first, _) = api.log.load(ENGINE_STREAM)
        assert (first.type, first.correlation_id) == ("EngineTuned", "req-1")

    _run(scenario)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"batch_window_ms": -1}, "batch_window_ms"),
        ({"batch_window_ms": 1001}, "batch_window_ms"),
        ({"batch_window_ms": "10"}, "batch_window_ms"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": 257}, "max_batch_size"),
        ({"max_batch_size": 1.5}, "max_batch_size"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"gap_max_ms": 60_001}, "gap_max_ms"),
        ({"batch_window": 5}, "batch_window"),
        ({}, None),
        (b"", None),
    ],
)
def test_bad_values_are_refused_and_change_nothing(body: Any, field: str | None) -> None:
    async def scenario(api: FakeApi) -> None:
        error = await api.json("PATCH", "/admin/engine", body, status=400)
        assert (error["code"], error.get("field")) == ("invalid_request", field)
        assert api.log.load(ENGINE_STREAM) == ()

    _run(scenario)


def test_paused_jobs_are_accepted_and_wait_for_the_operator() -> None:
    async def scenario(api: FakeApi) -> None:
        api.worker_is("ready")
        before = await api.json("POST", "/v1/jobs", {"prompt": "a"}, status=202)
        api.start(JobId(before["id"]))
        paused = await api.json("POST", "/admin/pause", {"reason": "backup"})
        assert (paused["admission"], paused["reason"]) == ("paused", "backup")
        waiting = await api.json("POST", "/v1/jobs", {"prompt": "b"}, status=202)
        shown = await api.json("GET", f"/v1/jobs/{waiting['id']}")
        assert (shown["status"], shown["waiting_for"]) == ("queued", "paused")
        assert shown["estimate"] is None
        running = await api.json("GET", f"/v1/jobs/{before['id']}")
        assert (running["status"], running["waiting_for"]) == ("running", None)
        ready = await api.json("GET", "/health/ready")
        assert ready["checks"]["admission"] == "paused: backup"
        await api.json("POST", "/admin/resume")
        assert (await api.json("GET", "/health/ready"))["checks"]["admission"] == "ok"
        assert api.event_types()[-1] == "AdmissionResumed"

    _run(scenario)


def test_paused_queue_is_full_at_its_limit() -> None:
    async def scenario(api: FakeApi) -> None:
        api.use_limits(queue_limit=1)
        await api.json("POST", "/admin/pause")
        await api.json("POST", "/v1/jobs", {"prompt": "a"}, status=202)
        refused = await api.send("POST", "/v1/jobs", {"prompt": "b"})
        assert isinstance(refused, Reply)
        assert (refused.status, int(refused.headers["retry-after"]) >= 1) == (429, True)

    _run(scenario)


MESSAGES = [{"role": "user", "content": "a"}]
NEW_WORK = [
    ("/v1/jobs", {"prompt": "a"}),
    ("/v1/messages", {"model": "m", "max_tokens": 5, "messages": MESSAGES}),
    ("/v1/chat/completions", {"model": "m", "messages": MESSAGES, "stream": True}),
    ("/v1/messages/batches", {"requests": []}),
    ("/v1/batches", {"input_file_id": "file-x"}),
]


@pytest.mark.parametrize(("path", "body"), NEW_WORK, ids=[path for path, _ in NEW_WORK])
def test_drain_refuses_new_work_and_keeps_the_accepted(path: str, body: dict[str, Any]) -> None:
    async def scenario(api: FakeApi) -> None:
        api.worker_is("ready")
        kept = await api.json("POST", "/v1/jobs", {"prompt": "kept"}, status=202)
        assert (await api.json("POST", "/admin/drain"))["admission"] == "draining"
        api.app.clock.advance(1)  # type: ignore[attr-defined]  # a fake
        refused = await api.send("POST", path, body)
        assert isinstance(refused, Reply)
        assert refused.status == 503
        assert refused.headers["retry-after"]
        assert refused.headers["x-should-retry"] == "true"
        shown = await api.json("GET", f"/v1/jobs/{kept['id']}")
        assert (shown["status"], shown["waiting_for"]) == ("queued", "paused")
        await api.json("GET", "/health/ready", status=503)
        await api.json("POST", "/admin/resume")
        await api.json("POST", "/v1/jobs", {"prompt": "new"}, status=202)

    _run(scenario)


def test_repeat_of_an_accepted_request_is_no_new_work() -> None:
    async def scenario(api: FakeApi) -> None:
        headers = {"idempotency-key": "one"}
        first = await api.send("POST", "/v1/jobs", {"prompt": "a"}, headers=headers)
        await api.json("POST", "/admin/drain")
        again = await api.send("POST", "/v1/jobs", {"prompt": "a"}, headers=headers)
        assert isinstance(first, Reply)
        assert isinstance(again, Reply)
        assert again.headers["location"] == first.headers["location"]

    _run(scenario)


def test_workers_show_what_they_have_applied() -> None:
    async def scenario(api: FakeApi) -> None:
        api.broker.pulses.beat(
            WorkerPulse(
                worker=WorkerId("w1"),
                pid=1,
                state="ready",
                model=CARD,
                turns=TurnState(slots=2, interactive_reserved=0, running=(JobId("job-1"),)),
                values=EngineValues(batch_window_ms=10, max_batch_size=2, gap_max_ms=100),
                admission=AdmissionState.PAUSED,
            )
        )
        shown = await api.json("GET", "/admin/engine")
        assert shown["running"] == 1
        assert shown["workers"] == [
            {
                "id": "w1",
                "place": None,
                "model": "demo",
                "state": "ready",
                "admission": "paused",
                "running": 1,
                "values": {**SETTINGS, "max_batch_size": 2},
            }
        ]
        api.broker.down = True
        assert (await api.json("GET", "/admin/engine"))["workers"] == []

    _run(scenario)


@pytest.mark.parametrize("reason", ["", "x" * 201, 7])
def test_reason_is_short_text(reason: Any) -> None:
    async def scenario(api: FakeApi) -> None:
        error = await api.json("POST", "/admin/pause", {"reason": reason}, status=400)
        assert error["field"] == "reason"

    _run(scenario)
