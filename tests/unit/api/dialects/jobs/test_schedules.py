"""``/v1/schedules``, and the jobs that schedules submit through the routes' own code."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.dialects.jobs.schedules import schedule_runner
from api.http.messages import Caller, Reply, Request
from domain.errors import ScheduleNotFound
from domain.values import JobId, Priority, StreamName
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "job": {"prompt": "Sum up.", "max_tokens": 8, "priority": "batch", "agent_id": "writer"},
}


async def _add(api: FakeApi, **changes: Any) -> dict[str, Any]:
    return dict(await api.json("POST", "/v1/schedules", NIGHTLY | changes, status=201))


async def _fire(api: FakeApi) -> None:
    await api.app.call(api.app.once(schedule_runner).fire_due)


def test_a_schedule_submits_its_job_at_its_instant() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            added = await _add(api)
            assert (added["status"], added["missed"]) == ("active", "once")
            assert added["next_at"] == "2026-01-01T02:00:00.000000Z"
            api.app.clock.advance(2 * 3600)  # type: ignore[attr-defined]  # a fake clock
            await _fire(api)
            await _fire(api)
            job_id = await api.only_job()
            job = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (job["priority"], job["agent_id"], job["request_id"]) == (
                "batch",
                "writer",
                added["id"],
            )
            assert api.take(Priority.BATCH) == job_id
            (one,) = (await api.json("GET", "/v1/schedules"))["data"]
            assert one["last"] == {"due": "2026-01-01T02:00:00.000000Z", "job": job_id}
            assert (one["fired"], one["missed_count"], one["last_missed"]) == (1, 0, None)
            shown = await api.json("GET", f"/v1/schedules/{added['id']}")
            assert shown["job"] == NIGHTLY["job"]

    asyncio.run(scenario())


def test_a_schedule_is_paused_resumed_and_removed() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            added = await _add(api)
            path = f"/v1/schedules/{added['id']}"
            paused = await api.json("POST", f"{path}/pause")
            assert (paused["status"], paused["next_at"]) == ("paused", None)
            resumed = await api.json("POST", f"{path}/resume")
            assert (resumed["status"], resumed["next_at"]) == ("active", added["next_at"])
            removed = await api.json("DELETE", path)
            assert removed == {"id": added["id"], "object": "schedule", "deleted": True}
            assert (await api.json("GET", path, status=404))["code"] == "schedule_not_found"
            assert (await api.json("GET", "/v1/schedules"))["data"] == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "0 3 * *"}, "cron"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"cron": "0 25 * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"missed": "all"}, "missed"),
        ({"name": "a b"}, "name"),
        ({"job": {}}, "job"),
        ({"job": {"prompt": "hi", "start_after": "soon"}}, "job.start_after"),
        ({"job": {"prompt": "hi", "unique": {"by": ["prompt"], "for": "1h"}}}, "job.unique"),
        ({"job": {"prompt": "hi", "webhook": {"url": "ftp://x"}}}, "webhook.url"),
    ],
)
def test_what_would_never_give_a_job_is_refused(changes: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            refused = await api.json("POST", "/v1/schedules", NIGHTLY | changes, status=400)
            assert refused["field"] == field, refused
            assert api.event_types() == []

    asyncio.run(scenario())


def test_a_second_schedule_of_a_name_is_409() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await _add(api)
            refused = await api.json("POST", "/v1/schedules", NIGHTLY, status=409)
            assert refused["code"] == "schedule_exists"

    asyncio.run(scenario())


def test_the_jobs_belong_to_the_key_of_the_schedule() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            ann, bob = (
                Caller(name=name, scope=KeyScope.OWN, is_alone=False) for name in ("ann", "bob")
            )

            async def ask(method: str, path: str, caller: Caller, status: int) -> Any:
                request = Request(id="req-1", method=method, path=path, caller=caller)
                body = {**NIGHTLY, "job": {"prompt": "hi"}} if method == "POST" else None
                reply = await api.send(method, path, body, request=request)
                assert isinstance(reply, Reply)
                assert reply.status == status, reply.body
                return json.loads(reply.body)

            added = await ask("POST", "/v1/schedules", ann, 201)
            await ask("POST", "/v1/schedules", bob, 201)
            listed = await ask("GET", "/v1/schedules", ann, 200)
            assert [one["id"] for one in listed["data"]] == [added["id"]]
            with pytest.raises(ScheduleNotFound):
                api.app.ownership.require_named(bob, {"schedule_id": added["id"]})
            api.app.ownership.require_named(ann, {"schedule_id": added["id"]})
            api.app.clock.advance(2 * 3600)  # type: ignore[attr-defined]  # a fake clock
            await _fire(api)
            owners = [row.submitted.owner for row in api.log.views.rows.values()]
            assert owners == ["ann", "bob"]
            accepted = api.log.load(StreamName(JobId(next(iter(api.log.views.rows)))))[0]
            assert accepted.data["cache_owner"] == "ann"

    asyncio.run(scenario())
