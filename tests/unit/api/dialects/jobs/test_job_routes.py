from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import Reply, Request, StreamReply
from domain.chat.items import Finished, Progress, Started, StreamItem, Text
from domain.log.codec import item_from_dict
from domain.values import JobId, StopReason, Usage
from tests.support.builders.api import FakeApi, fake_api, first_piece, leave, pieces_of
from tests.support.builders.generation_requests import ENDED_AT
from tests.support.clients.sse import events_in

USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1)
STARTED = Started(prompt_tokens=5, cached_tokens=2)
HELLO = Text(text="Hel", ids=(1,))
LO = Text(text="lo", ids=(2,))
DONE = Finished(stop_reason=StopReason.END_TURN, usage=USAGE, at=ENDED_AT)
ABSENT = "job-" + "0" * 32


async def _new_job(api: FakeApi, **body: Any) -> JobId:
    job = await api.json("POST", "/v1/jobs", {"prompt": "hi"} | body, status=202)
    return JobId(job["id"])


async def _ended_job(api: FakeApi) -> JobId:
    job_id = await _new_job(api)
    api.start(job_id)
    api.publish(job_id, STARTED, HELLO, LO)
    api.complete(job_id, "Hello")
    api.publish(job_id, DONE, first=3)
    return job_id


async def _items(api: FakeApi, target: str, **headers: str) -> list[StreamItem]:
    reply = await api.send(
        "GET", target, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    return [item_from_dict(event.json) for event in events_in(await pieces_of(reply))]


def test_new_job_is_accepted_with_its_location() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"prompt": "hi", "priority": "batch", "agent_id": "a-1"}
            reply = await api.send("POST", "/v1/jobs", body)
            assert isinstance(reply, Reply)
            assert reply.status == 202
            job = json.loads(reply.body)
            assert reply.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
            assert reply.headers["retry-after"] == "1"
            assert (job["object"], job["status"], job["queue_position"]) == ("job", "queued", 0)
            assert (job["priority"], job["agent_id"], job["model"]) == ("batch", "a-1", "demo")
            assert job["output"] is None

    asyncio.run(scenario())


def test_job_is_accepted_while_the_broker_is_unavailable() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.down = True
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            assert (job["status"], job["queue_position"]) == ("queued", None)
            assert api.event_types() == ["JobSubmitted"]

    asyncio.run(scenario())


def test_completed_job_has_its_answer_and_counts() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _ended_job(api)
            job = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (job["status"], job["attempt"]) == ("completed", 1)
            assert job["output"] == {"text": "Hello", "thinking": ""}
            assert job["usage"] == {
                "prompt_tokens": 5,
                "cached_tokens": 2,
                "completion_tokens": 1,
                "reasoning_tokens": 0,
                "total_tokens": 6,
            }
            assert job["timings"]["decode_ms"] == 1.5

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", f"/v1/jobs/{ABSENT}"),
        ("GET", "/v1/jobs/a b"),
        ("GET", f"/v1/jobs/{ABSENT}/stream"),
        ("POST", f"/v1/jobs/{ABSENT}/cancel"),
        ("POST", f"/v1/jobs/{ABSENT}/retry"),
    ],
)
def test_job_that_does_not_exist_is_404(method: str, target: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send(method, target)
            assert isinstance(reply, Reply)
            assert (reply.status, reply.content_type) == (404, "application/problem+json")
            assert json.loads(reply.body)["code"] == "job_not_found"

    asyncio.run(scenario())


def test_cancelling_twice_is_the_same_as_once() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            for _ in range(2):
                job = await api.json("POST", f"/v1/jobs/{job_id}/cancel")
                assert job["status"] == "cancelled"
            assert api.event_types() == ["JobSubmitted", "JobCancelRequested", "JobCancelled"]

    asyncio.run(scenario())


def test_cancelling_an_ended_job_changes_nothing() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _ended_job(api)
            job = await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            assert job["status"] == "completed"

    asyncio.run(scenario())


def test_pages_of_jobs_go_back_in_time() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            ids = [await _new_job(api, agent_id=f"a{n % 2}") for n in range(5)]
            page = await api.json("GET", "/v1/jobs?limit=3")
            assert [job["id"] for job in page["data"]] == ids[:1:-1]
            assert page["has_more"]
            rest = await api.json("GET", f"/v1/jobs?limit=3&before={ids[2]}")
            assert [job["id"] for job in rest["data"]] == [ids[1], ids[0]]
            assert not rest["has_more"]
            assert (page["next_before"], rest["next_before"]) == (ids[2], None)
            mine = await api.json("GET", "/v1/jobs?agent_id=a1&status=queued")
            assert [job["id"] for job in mine["data"]] == [ids[3], ids[1]]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "target",
    [
        "/v1/jobs?limit=0",
        "/v1/jobs?limit=101",
        "/v1/jobs?limit=",
        "/v1/jobs?limit=1&limit=2",
        "/v1/jobs?limit=99999999999999999999",
        "/v1/jobs?status=lost",
        "/v1/jobs?before=x",
        "/v1/jobs?agent_id=%20",
        "/v1/jobs?priority=high",
        "/v1/jobs?since=yesterday",
        "/v1/jobs?since=2026-01-01T00:00:00",
        "/v1/events?after=-1",
        "/v1/events?after=9223372036854775808",
        "/v1/events?limit=1001",
        "/v1/events?stream=%00",
        f"/v1/jobs/{ABSENT}/stream?after=x",
    ],
)
def test_wrong_query_names_its_parameter(target: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("GET", target)
            assert isinstance(reply, Reply)
            assert reply.status == 400
            assert json.loads(reply.body)["field"] in target

    asyncio.run(scenario())


def test_stream_has_every_item_with_an_id_at_once() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream")
            assert await first_piece(reply) == b": open\n"
            api.publish(job_id, STARTED, Progress(phase="prefill", done=1, total=2), HELLO, DONE)
            events = events_in(await pieces_of(reply))
            received = [(event.id, event.event) for event in events]
            assert [one for one in received if one[0] is not None] == [
                ("1-0", "started"),
                ("1-1", "text"),
                ("1-2", "finished"),
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("", {"last_event_id": "1-1"}),
        ("", {"last_event_id": "1"}),
        ("?after=1-1", {}),
        ("?after=0", {"last_event_id": "1-1"}),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_resumed_stream_continues_after_the_last_item(
    target: str,
    headers: dict[str, str],
    ended: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            api.start(job_id)
            api.publish(job_id, STARTED, HELLO, LO)
            if ended:
                api.complete(job_id, "Hello")
            api.publish(job_id, DONE, first=3)
            items = await _items(api, f"/v1/jobs/{job_id}/stream{target}", **headers)
            assert [(item.n, item.body) for item in items] == [(2, LO), (3, DONE)]

    asyncio.run(scenario())


def test_reader_that_has_all_items_of_an_ended_job_gets_204() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _ended_job(api)
            target = f"/v1/jobs/{job_id}/stream"
            reply = await api.send("GET", target, headers={"last-event-id": "1-3"})
            assert reply.status == 204

    asyncio.run(scenario())


def test_end_that_only_the_log_has_is_sent() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            api.start(job_id)
            api.publish(job_id, STARTED, HELLO)
            api.complete(job_id, "Hel")
            items = await _items(api, f"/v1/jobs/{job_id}/stream?after=1")
            assert [(item.n, item.body) for item in items] == [(2, DONE)]

    asyncio.run(scenario())


def test_items_lost_by_the_broker_come_from_the_log_without_numbers() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _ended_job(api)
            api.broker.items.forget(job_id)
            items = await _items(api, f"/v1/jobs/{job_id}/stream")
            assert [(item.n, item.body) for item in items] == [
                (None, Text(text="Hello", ids=())),
                (None, DONE),
            ]

    asyncio.run(scenario())


def test_reader_that_leaves_does_not_touch_the_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            request = Request(id="r", method="GET", path="/")
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream", request=request)
            await first_piece(reply)
            request.gone.set()
            assert await pieces_of(reply) == b""
            other = await api.send("GET", f"/v1/jobs/{job_id}/stream")
            await leave(other)
            assert api.event_types() == ["JobSubmitted"]

    asyncio.run(scenario())


def test_end_of_the_process_ends_the_stream_and_not_the_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await _new_job(api)
            request = Request(id="r", method="GET", path="/")
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream", request=request)
            request.ending.set()
            (event,) = events_in(await pieces_of(reply))
            assert (event.event, event.id) == ("failed", None)
            assert event.json["retryable"] is True
            assert api.event_types() == ["JobSubmitted"]

    asyncio.run(scenario())


def test_silent_job_stream_sends_comments() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.02) as api:
            job_id = await _new_job(api)
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream")
            assert isinstance(reply, StreamReply)
            pieces = [await first_piece(reply) for _ in range(3)][1:]
            assert all(piece.endswith(b": ping\n") for piece in pieces)
            await leave(reply)

    asyncio.run(scenario())


def test_events_are_paged_and_filtered() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            ids = [await _new_job(api) for _ in range(3)]
            await api.json("POST", f"/v1/jobs/{ids[0]}/cancel")
            page = await api.json("GET", "/v1/events?limit=3")
            assert [event["position"] for event in page["data"]] == [1, 2, 3]
            assert (page["has_more"], page["next_after"]) == (True, 3)
            rest = await api.json("GET", "/v1/events?after=3")
            assert (len(rest["data"]), rest["has_more"], rest["next_after"]) == (2, False, 5)
            none = await api.json("GET", "/v1/events?after=5")
            assert (none["data"], none["next_after"]) == ([], 5)
            some = await api.json(
                "GET", f"/v1/events?stream={ids[0]}&type=JobSubmitted&type=JobCancelled"
            )
            types = [event["type"] for event in some["data"]]
            assert types == ["JobSubmitted", "JobCancelled"]
            clock: Any = api.app.clock
            clock.advance(60)
            await _new_job(api, agent_id="ann")

            async def positions(query: str) -> list[int]:
                found = await api.json("GET", f"/v1/events?{query}")
                return [event["position"] for event in found["data"]]

            assert await positions("agent_id=ann") == [6]
            assert await positions("since=2026-01-01T00:01:00Z") == [6]
            assert await positions("until=2026-01-01T01:01:00%2B01:00") == [1, 2, 3, 4, 5]
            refused = await api.send("GET", "/v1/events?until=tomorrow")
            assert isinstance(refused, Reply)
            assert (refused.status, json.loads(refused.body)["field"]) == (400, "until")

    asyncio.run(scenario())
