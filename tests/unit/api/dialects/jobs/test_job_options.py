"""What a caller may ask of jobs beside submitting them: to list, wait, retry and be in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.dialects.jobs import routes
from api.dialects.jobs.objects import load_job
from api.http.messages import Caller, Reply, Request
from domain.chat.items import Finished, Started, Text
from domain.values import JobId, StopReason, Usage
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api

STARTED = Started(prompt_tokens=5, cached_tokens=2)
HELLO = Text(text="Hel", ids=(1,))
LO = Text(text="lo", ids=(2,))
DONE = Finished(
    stop_reason=StopReason.END_TURN,
    usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1),
)


async def _new_job(api: FakeApi, **body: Any) -> JobId:
    job = await api.json("POST", "/v1/jobs", {"prompt": "hi"} | body, status=202)
    return JobId(job["id"])


def test_jobs_are_listed_by_model_queue_and_time() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _new_job(api, model="a", priority="batch")
            second = await _new_job(api, model="b")

            async def ids(query: str) -> list[str]:
                return [job["id"] for job in (await api.json("GET", f"/v1/jobs?{query}"))["data"]]

            assert await ids("model=a") == [first]
            assert await ids("priority=interactive") == [second]
            assert await ids("since=2026-01-01T00:00:00Z") == [second, first]
            assert await ids("since=2026-01-01T01:00:00%2B00:30") == []

    asyncio.run(scenario())


def test_client_that_prefers_to_wait_gets_the_ended_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(
                api.send("POST", "/v1/jobs", {"prompt": "hi"}, headers={"prefer": "wait=30"})
            )
            job_id = await api.only_job()
            api.start(job_id)
            api.complete(job_id, "Hello")
            api.publish(job_id, STARTED, HELLO, LO, DONE)
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == 200
            assert reply.headers["preference-applied"] == "wait=30"
            assert "retry-after" not in reply.headers
            assert json.loads(reply.body)["output"]["text"] == "Hello"

    asyncio.run(scenario())


def test_job_that_ends_before_its_reply_is_accepted_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:

            def ended(*arguments: Any) -> Any:
                api.start(arguments[1])
                api.complete(arguments[1], "Hello")
                return load_job(*arguments)

            monkeypatch.setattr(routes, "load_job", ended)
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            assert job["status"] == "completed"

    asyncio.run(scenario())


def test_client_whose_wait_ends_first_gets_the_open_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            headers = {"prefer": "respond-async, wait=0"}
            reply = await api.send("POST", "/v1/jobs", {"prompt": "hi"}, headers=headers)
            assert reply.status == 202
            assert reply.headers["preference-applied"] == "wait=0"
            assert reply.headers["retry-after"] == "1"

    asyncio.run(scenario())


def test_client_that_leaves_while_it_waits_does_not_cancel_its_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = Request(id="req-1", method="POST", path="/v1/jobs")
            waiting = asyncio.create_task(
                api.send(
                    "POST",
                    "/v1/jobs",
                    {"prompt": "hi"},
                    request=request,
                    headers={"prefer": "wait=60"},
                )
            )
            await api.only_job()
            request.gone.set()
            assert (await waiting).status == 202
            assert api.event_types() == ["JobSubmitted"]

    asyncio.run(scenario())


@pytest.mark.parametrize("value", ["", "wait", "wait=x", "wait=-1", "respond-async", "wait=1e9"])
def test_invalid_preference_is_ignored(value: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            headers = {"prefer": value}
            reply = await api.send("POST", "/v1/jobs", {"prompt": "hi"}, headers=headers)
            assert reply.status == 202
            assert "preference-applied" not in reply.headers

    asyncio.run(scenario())


def test_cancelled_job_is_retried_and_an_open_one_is_409() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            refused = await api.json("POST", f"/v1/jobs/{job_id}/retry", status=409)
            assert refused["code"] == "not_retryable"
            await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            job = await api.json("POST", f"/v1/jobs/{job_id}/retry", status=202)
            assert (job["status"], job["links"]["retry"]) == ("queued", f"/v1/jobs/{job_id}/retry")
            assert api.take() == job_id

    asyncio.run(scenario())


def test_deadlines_are_instants() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api, start_within_s=5, finish_within_s=60)
            job = await api.json("GET", f"/v1/jobs/{job_id}")
            assert job["start_by"] == "2026-01-01T00:00:05.000000Z"
            assert job["finish_by"] == "2026-01-01T00:01:00.000000Z"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("start_after", "instant"),
    [
        (60, "2026-01-01T00:01:00.000000Z"),
        (0.5, "2026-01-01T00:00:00.500000Z"),
        ("2026-01-01T01:00:00+00:30", "2026-01-01T00:30:00.000000Z"),
        ("2026-01-01t00:00:01.25z", "2026-01-01T00:00:01.250000Z"),
    ],
)
def test_a_job_is_held_until_its_instant(start_after: object, instant: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api, start_after=start_after, start_within_s=5)
            job = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (job["status"], job["waiting_for"]) == ("held", "time")
            assert (job["start_after"], job["queue_position"]) == (instant, None)
            assert job["start_by"] > instant
            held = await api.json("GET", "/v1/jobs?status=held")
            assert [one["id"] for one in held["data"]] == [job_id]
            cancelled = await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            assert cancelled["status"] == "cancelled"

    asyncio.run(scenario())


@pytest.mark.parametrize("start_after", [0, 0.0, "2025-12-31T23:59:59Z"])
def test_a_start_that_has_come_holds_nothing(start_after: object) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api, start_after=start_after)
            assert (await api.json("GET", f"/v1/jobs/{job_id}"))["status"] == "queued"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "start_after",
    [
        -1,
        True,
        [],
        "",
        "tomorrow",
        "60",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00Z",
        "2026-13-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "2026-01-01T24:01:00Z",
        "9999-01-01T00:00:00Z",
        4e7,
    ],
)
def test_another_start_is_refused(start_after: object) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"prompt": "hi", "start_after": start_after}
            refused = await api.json("POST", "/v1/jobs", body, status=400)
            assert refused["field"] == "start_after"

    asyncio.run(scenario())


@pytest.mark.parametrize("form", ["list", "map", "objects"])
def test_a_job_waits_for_earlier_ones(form: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first, second = await _new_job(api), await _new_job(api)
            after: Any = {
                "list": [first, second],
                "map": {"0": first, "1": second},
                "objects": [{"job": first}, {"job": second, "condition": "completed"}],
            }[form]
            prompt = "{{after.0.text}}{{after.1.text}}"
            last = await _new_job(api, prompt=prompt, after=after, otherwise="skip")
            job = await api.json("GET", f"/v1/jobs/{last}")
            assert (job["status"], job["waiting_for"]) == ("held", "jobs")
            edges = [
                {"name": "0", "job": first, "condition": "completed"},
                {"name": "1", "job": second, "condition": "completed"},
            ]
            assert job["after"] == edges
            timeline = await api.json("GET", f"/v1/jobs/{last}/timeline")
            assert timeline["after"] == [one | {"status": "queued"} for one in edges]
            assert timeline["successors"] == []
            for one in edges:
                earlier = await api.json("GET", f"/v1/jobs/{one['job']}/timeline")
                assert earlier["successors"] == [one | {"job": last, "status": "held"}]
            assert [bar["kind"] for bar in timeline["bars"]] == ["held"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"after": ["job-" + "0" * 32]}, "after.0"),
        ({"after": {"a": "job-" + "0" * 32}}, "after.a"),
        ({"after": ["job-1"]}, "after"),
        ({"after": []}, "after"),
        ({"after": "job-1"}, "after"),
        ({"after": {"a.b": "job-" + "0" * 32}}, "after"),
        ({"after": {"a": {"job": "job-" + "0" * 32, "condition": "failed"}}}, "after"),
        ({"otherwise": "wait"}, "otherwise"),
        ({"after": ["job-" + "0" * 32], "prompt": "{{after.x.text}}"}, "prompt"),
    ],
)
def test_what_no_earlier_job_fulfils_is_refused(body: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            refused = await api.json("POST", "/v1/jobs", {"prompt": "hi"} | body, status=400)
            assert refused["field"].startswith(field), refused
            assert api.event_types() == []

    asyncio.run(scenario())


def test_a_job_cannot_wait_for_a_job_of_another_key() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _new_job(api)
            caller = Caller(name="bob", scope=KeyScope.OWN, is_alone=False)
            request = Request(id="req-2", method="POST", path="/v1/jobs", caller=caller)
            body = {"prompt": "{{after.0.text}}", "after": [first]}
            reply = await api.send("POST", "/v1/jobs", body, request=request)
            assert isinstance(reply, Reply)
            assert (reply.status, json.loads(reply.body)["field"]) == (400, "after.0")

    asyncio.run(scenario())
