"""What a caller may ask of jobs beside submitting them: to list, wait, retry and be in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.dialects.jobs import routes
from api.dialects.jobs.objects import load_job
from api.http.messages import Reply, Request
from domain.chat.items import Finished, Started, Text
from domain.values import JobId, StopReason, Usage
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


def test_jobs_are_listed_by_tags_and_metadata() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _new_job(api, tags=["night", "b", "b"], metadata={"project": "x=1"})
            second = await _new_job(api, tags=["night"], metadata={"project": ""})
            job = await api.json("GET", f"/v1/jobs/{first}")
            assert (job["tags"], job["metadata"]) == (["b", "night"], {"project": "x=1"})

            async def ids(query: str) -> list[str]:
                return [job["id"] for job in (await api.json("GET", f"/v1/jobs?{query}"))["data"]]

            assert await ids("tag=night") == [second, first]
            assert await ids("tag=night&tag=b&tag=b") == [first]
            assert await ids("tag=b&status=running") == []
            assert await ids("metadata.project=x%3D1") == [first]
            assert await ids("metadata[project]=x%3D1&tag=b") == [first]
            assert await ids("metadata.project=") == [second]
            assert await ids("metadata.project=x%3D1&metadata.other=1") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        {"tags": ["a b"]},
        {"tags": ["project=x"]},
        {"tags": ["x"] * 17},
        {"metadata": {"": "x"}},
        {"metadata": {"a=b": "x"}},
        {"metadata": {"a": "x" * 513}},
        {"metadata": {"a": 1}},
    ],
)
def test_tags_and_metadata_have_bounds(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            problem = await api.json("POST", "/v1/jobs", {"prompt": "hi"} | body, status=400)
            assert problem["field"].startswith(next(iter(body)))
            assert not api.event_types()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("/v1/jobs?state=failed", "state"),
        ("/v1/jobs?limit=1&Tag=a", "Tag"),
        ("/v1/jobs?metadata=a", "metadata"),
        ("/v1/jobs?metadatax.a=b", "metadatax.a"),
        ("/v1/jobs?tag=a%3Db", "tag"),
        ("/v1/webhooks?status=failed", "status"),
        ("/v1/agents?tag=a", "tag"),
        ("/v1/events?kind=JobFailed", "kind"),
        ("/admin/usage?group=day", "group"),
    ],
)
def test_list_refuses_a_parameter_that_it_does_not_know(target: str, field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            problem = await api.json("GET", target, status=400)
            assert (problem["code"], problem["field"]) == ("invalid_request", field)

    asyncio.run(scenario())


@pytest.mark.parametrize("target", ["/v1/batches?x=1", "/v1/models?x=1", "/health/live?x=1"])
def test_routes_of_other_services_and_probes_ignore_unknown_parameters(target: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("GET", target)

    asyncio.run(scenario())


def test_second_submission_of_a_unique_job_gets_the_first_one() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            unique = {"by": ["tags", "prompt"], "for": "1h"}
            body = {"prompt": "hi", "tags": ["night"], "unique": unique}
            first = await api.json("POST", "/v1/jobs", body, status=202)
            again = body | {"max_tokens": 3, "unique": unique | {"by": ["prompt", "tags"]}}
            reply = await api.send("POST", "/v1/jobs", again)
            assert isinstance(reply, Reply)
            assert (reply.status, reply.headers["x-semantic-attached"]) == (200, "unique")
            assert json.loads(reply.body)["id"] == first["id"]
            assert api.event_types() == ["JobSubmitted", "JobAttached"]
            for other in ({"tags": ["day"]}, {"prompt": "ho"}, {"unique": unique | {"for": 60}}):
                await api.json("POST", "/v1/jobs", body | other, status=202)
            await api.json("POST", f"/v1/jobs/{first['id']}/cancel")
            new = await api.json("POST", "/v1/jobs", body, status=202)
            assert new["id"] != first["id"]
            api.app.clock.advance(3600)  # type: ignore[attr-defined]  # the clock of a test
            latest = await api.json("POST", "/v1/jobs", body, status=202)
            assert latest["id"] not in {first["id"], new["id"]}

    asyncio.run(scenario())


def test_unique_job_has_no_idempotency_key() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"prompt": "hi", "unique": {"by": ["prompt"], "for": "1h"}}
            reply = await api.send("POST", "/v1/jobs", body, headers={"idempotency-key": "k"})
            assert isinstance(reply, Reply)
            assert (reply.status, json.loads(reply.body)["field"]) == (400, "unique")

    asyncio.run(scenario())


def test_repeat_of_a_unique_job_needs_no_place_in_the_queue() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(queue_limit=1)
            body = {"prompt": "hi", "unique": {"by": ["model", "agent_id", "metadata"], "for": 9}}
            first = await api.json("POST", "/v1/jobs", body, status=202)
            assert (await api.json("POST", "/v1/jobs", body))["id"] == first["id"]
            await api.json("POST", "/v1/jobs", {"prompt": "ho"}, status=429)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("unique", "field"),
    [
        ({"by": [], "for": "1h"}, "unique.by"),
        ({"by": ["seed"], "for": "1h"}, "unique.by.0"),
        ({"by": ["tags"]}, "unique.for"),
        ({"by": ["tags"], "for": "31d"}, "unique.for"),
        ({"by": ["tags"], "for": "1w"}, "unique.for"),
        ({"by": ["tags"], "for": 0}, "unique.for"),
        ({"by": ["tags"], "for": "1h", "states": []}, "unique.states"),
    ],
)
def test_unique_has_bounds(unique: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"prompt": "hi", "unique": unique}
            assert (await api.json("POST", "/v1/jobs", body, status=400))["field"] == field

    asyncio.run(scenario())


def test_job_has_an_urgency_and_a_time_to_start() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _new_job(api, agent_id="a", reject_after=9)
            urgent = await _new_job(api, agent_id="a", urgency=9, start_within_s=60, reject_after=5)
            job = await api.json("GET", f"/v1/jobs/{urgent}")
            assert (job["urgency"], job["start_by"]) == (9, "2026-01-01T00:00:05.000000Z")
            assert [api.take(), api.take()] == [urgent, first]
            for wrong in ({"urgency": 10}, {"urgency": -1}, {"reject_after": 0}):
                problem = await api.json("POST", "/v1/jobs", {"prompt": "x"} | wrong, status=400)
                assert problem["field"] == next(iter(wrong))

    asyncio.run(scenario())


def _results(report: Any) -> list[tuple[str, str]]:
    return [(row["id"], row["result"]) for row in report["data"]]


def test_jobs_of_a_filter_are_cancelled_and_retried_together() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            running = await _new_job(api, tags=["night"], metadata={"p": "x"})
            api.start(running)
            waiting = await _new_job(api, tags=["night"], metadata={"p": "x"})
            other = await _new_job(api, tags=["night"])
            body = {"filter": {"tags": ["night"], "metadata": {"p": "x"}}}
            events = len(api.event_types())
            dry = await api.json("POST", "/v1/jobs:cancel", body | {"dry_run": True})
            assert _results(dry) == [(waiting, "matched"), (running, "matched")]
            assert len(api.event_types()) == events
            first = await api.json("POST", "/v1/jobs:cancel", body | {"limit": 1})
            assert (_results(first), first["has_more"]) == ([(waiting, "cancelled")], True)
            rest = await api.json("POST", "/v1/jobs:cancel", body)
            assert (_results(rest), rest["has_more"]) == ([(running, "requested")], False)
            count = len(api.event_types())
            assert _results(await api.json("POST", "/v1/jobs:cancel", body)) == _results(rest)
            assert len(api.event_types()) == count
            assert (await api.json("GET", f"/v1/jobs/{other}"))["status"] == "queued"
            again = await api.json("POST", "/v1/jobs:retry", {"filter": {"status": "cancelled"}})
            assert _results(again) == [(waiting, "retried")]
            assert again["data"][0]["status"] == "queued"
            assert _results(await api.json("POST", "/v1/jobs:retry", body)) == []

    asyncio.run(scenario())


def test_job_that_cannot_be_retried_is_refused_beside_the_others() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            lost, kept = await _new_job(api), await _new_job(api, prompt="other")
            for job_id in (lost, kept):
                await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            view = api.log.views.get(lost)
            assert view is not None
            api.log.lose_payload(view.submitted.request)
            body = {"filter": {"priority": "interactive"}}
            report = await api.json("POST", "/v1/jobs:retry", body)
            assert _results(report) == [(kept, "retried"), (lost, "refused")]
            assert report["data"][1]["error"]["code"] == "payload_missing"

    asyncio.run(scenario())


def test_retries_of_a_filter_stop_where_the_broker_goes_away() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            api.broker.down = True
            body = {"filter": {"status": "cancelled"}}
            problem = await api.json("POST", "/v1/jobs:retry", body, status=503)
            assert problem["code"] == "queue_unavailable"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"filter": {"state": "failed"}}, "filter.state"),
        ({"filter": {"status": "completed"}}, "filter.status"),
        ({"filter": {}}, "filter"),
        ({"filter": {"tags": []}}, "filter"),
        ({"filter": {"since": "yesterday"}}, "filter.since"),
        ({"filter": {"model": "m"}, "dryrun": True}, "dryrun"),
        ({"filter": {"model": "m"}, "limit": 501}, "limit"),
        ({"limit": 1}, "filter"),
    ],
)
def test_bulk_refuses_what_it_does_not_know(body: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await _new_job(api)
            for action in ("cancel", "retry"):
                problem = await api.json("POST", f"/v1/jobs:{action}", body, status=400)
                assert problem["field"] == field
            assert api.event_types() == ["JobSubmitted"]

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
