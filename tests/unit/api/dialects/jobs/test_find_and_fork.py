"""Jobs that are found and changed together, unique jobs, urgency, and forks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import Reply
from domain.model.registry import ModelEntry, ModelRegistry
from domain.values import JobId
from tests.support.builders.api import FakeApi, fake_api


async def _new_job(api: FakeApi, **body: Any) -> JobId:
    job = await api.json("POST", "/v1/jobs", {"prompt": "hi"} | body, status=202)
    return JobId(job["id"])


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


async def _completed(api: FakeApi) -> JobId:
    job_id = await _new_job(api, seed=7, max_tokens=9, temperature=0.5)
    api.start(job_id)
    api.complete(job_id, "H")
    return job_id


def test_fork_is_a_new_job_with_the_request_of_its_parent() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            parent = await _completed(api)
            body = {"at": 1, "sampling": {"temperature": 0, "seed": 8}}
            fork = await api.json("POST", f"/v1/jobs/{parent}/fork", body, status=202)
            assert fork["forked_from"] == {"id": parent, "at": 1}
            assert (fork["model"], fork["bound_model"]) == ("demo", "demo")
            of_parent, of_fork = api.log.views.get(parent), api.log.views.get(fork["id"])
            assert of_parent is not None
            assert of_fork is not None
            asked = of_fork.submitted
            assert asked.sampling.given() == {"temperature": 0}
            assert (asked.sampling.seed, asked.max_tokens) == (8, 9)
            assert (asked.parent_output, asked.parent_fingerprint) == (of_parent.output, "f")
            plain = {"at": 0, "model": "claude-demo", "max_tokens": 3}
            anew = await api.json("POST", f"/v1/jobs/{parent}/fork", plain, status=202)
            assert (anew["model"], anew["forked_from"]) == ("claude-demo", {"id": parent, "at": 0})
            view = api.log.views.get(anew["id"])
            assert view is not None
            assert view.submitted.parent_output is None
            assert view.submitted.sampling == of_parent.submitted.sampling

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        ({"at": 2}, 400, "at"),
        ({"at": 1, "max_tokens": 1}, 400, "at"),
        ({"at": 1, "model": "claude-demo"}, 400, "model"),
        ({"at": 0, "model": "none"}, 404, None),
        ({"at": -1}, 400, "at"),
        ({"at": 0, "prompt": "x"}, 400, "prompt"),
    ],
)
def test_fork_refuses_what_the_answer_does_not_have(
    body: dict[str, Any], status: int, what: str | None
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(registry=lambda: ModelRegistry([ModelEntry(name="demo", source="d")]))
            parent = await _completed(api)
            problem = await api.json("POST", f"/v1/jobs/{parent}/fork", body, status=status)
            assert problem.get("field") == what

    asyncio.run(scenario())


def test_only_an_answer_can_be_forked() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            parent = await _new_job(api)
            fork = f"/v1/jobs/{parent}/fork"
            assert (await api.json("POST", fork, {"at": 0}, status=409))["code"] == "not_forkable"
            await api.json("POST", f"/v1/jobs/{parent}/cancel")
            assert (await api.json("POST", fork, {"at": 0}, status=409))["code"] == "not_forkable"
            absent = "/v1/jobs/job-" + "0" * 32 + "/fork"
            await api.json("POST", absent, {"at": 0}, status=404)

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


def test_held_jobs_of_a_filter_are_cancelled_too() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            held = await _new_job(api, tags=["night"], start_after=60)
            for facts in ({"status": "held"}, {"tags": ["night"]}):
                body = {"filter": facts, "dry_run": "tags" not in facts}
                report = await api.json("POST", "/v1/jobs:cancel", body)
                assert _results(report) == [(held, "cancelled" if "tags" in facts else "matched")]

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
