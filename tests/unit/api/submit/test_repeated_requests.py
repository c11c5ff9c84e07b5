"""A request that comes again: by its key, as a retry, in its session; and two that are meant."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import Reply, Request, StreamReply
from domain.values import JobId, JobStatus
from tests.support.builders.api import (
    PATIENCE_S,
    FakeApi,
    fake_api,
    first_piece,
    leave,
    pieces_of,
)
from tests.support.builders.generation_requests import (
    ANSWER,
    BODY,
    CHAT,
    MESSAGES,
    STREAM,
    any_request,
    status_of,
)
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

SESSION = {"x-claude-code-session-id": "s-1"}
RETRY = {"x-stainless-retry-count": "1"}
KEY = {"idempotency-key": "k 1"}
ATTACHED = "x-semantic-attached"


def patient(api: FakeApi, *, dedup_grace_s: float = 0.05) -> None:
    """Let jobs whose client left wait for its next try, until the test ends the grace."""
    api.use_limits(disconnect_grace_s=1, dedup_grace_s=dedup_grace_s)


async def start_stream(
    api: FakeApi, headers: dict[str, str], *, body: dict[str, Any] = STREAM, path: str = MESSAGES
) -> tuple[StreamReply, JobId, Request]:
    request = any_request()
    reply = await api.send("POST", path, body, request=request, headers=headers)
    assert isinstance(reply, StreamReply)
    await first_piece(reply)
    return reply, JobId(reply.headers["x-semantic-job"]), request


async def lose(reply: StreamReply, request: Request) -> None:
    """Close a stream as the gate does when the client has gone."""
    request.gone.set()
    await leave(reply)


def attached(api: FakeApi) -> list[str]:
    return [event.data["reason"] for event in api.log.read_all(types=["JobAttached"])]


# --- the caller's key ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/jobs", {"prompt": "hi"}), (MESSAGES, STREAM), (CHAT, STREAM)]
)
def test_same_key_and_body_is_one_job_on_every_route(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            replies = [await api.send("POST", path, body, headers=KEY) for _ in range(2)]
            ids = {reply.headers["x-semantic-job"] for reply in replies}
            assert ids == {await api.only_job()}
            assert ATTACHED not in replies[0].headers
            assert replies[1].headers[ATTACHED] == "idempotency_key"
            for reply in replies:
                if isinstance(reply, StreamReply):
                    await leave(reply)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/jobs", {"prompt": "hi"}), (MESSAGES, STREAM), (CHAT, BODY)]
)
def test_same_key_with_another_body_is_409_and_not_to_be_retried(
    path: str, body: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.send("POST", "/v1/jobs", {"prompt": "other"}, headers=KEY)
            reply = await api.send("POST", path, body, headers=KEY)
            assert isinstance(reply, Reply)
            assert (reply.status, reply.headers["x-should-retry"]) == (409, "false")
            assert b"idempotency key was used" in reply.body
            assert len(api.log.views.rows) == 1

    asyncio.run(scenario())


def test_posts_of_one_key_at_once_are_one_job_and_both_get_the_answer() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = [
                asyncio.create_task(api.send("POST", MESSAGES, BODY, headers=KEY)) for _ in range(4)
            ]
            api.publish(await api.only_job(), *ANSWER)
            replies = await asyncio.gather(*waiting)
            assert {reply.status for reply in replies} == {200}
            assert len({reply.body for reply in replies if isinstance(reply, Reply)}) == 1
            assert len(api.log.views.rows) == 1

    asyncio.run(scenario())


def test_ended_job_answers_its_key_again_from_the_log_when_its_items_are_gone() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply, job_id, _ = await start_stream(api, KEY)
            api.start(job_id)
            api.publish(job_id, *ANSWER)
            api.complete(job_id, "Hello")
            await pieces_of(reply)
            api.broker.items.forget(job_id)
            again = await api.send("POST", MESSAGES, BODY, headers=KEY)
            assert isinstance(again, Reply)
            assert json.loads(again.body)["content"] == [{"type": "text", "text": "Hello"}]
            assert again.headers["x-semantic-job"] == job_id

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["", " k", "k" * 256, "é"])
def test_key_that_is_none_is_refused(key: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send(
                "POST", "/v1/jobs", {"prompt": "hi"}, headers={"idempotency-key": key}
            )
            assert reply.status == 400
            assert isinstance(reply, Reply)
            assert json.loads(reply.body)["field"] == "Idempotency-Key"

    asyncio.run(scenario())


# --- a lost client asks again --------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (SESSION, SESSION, "same_session"),
        ({}, RETRY, "retry"),
        (SESSION, SESSION | RETRY, "retry"),
    ],
)
def test_client_that_lost_its_stream_finds_its_job_and_all_of_the_answer(
    first: dict[str, str], second: dict[str, str], reason: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, first)
            api.publish(job_id, *ANSWER[:2])
            await lose(reply, request)
            again = await api.send("POST", MESSAGES, STREAM, headers=second)
            assert again.headers["x-semantic-job"] == job_id
            assert again.headers[ATTACHED] == reason
            api.publish(job_id, ANSWER[2], first=2)
            assert "Hello" in str([event.data for event in events_in(await pieces_of(again))])
            assert attached(api) == [reason]
            api.grace_over.set()
            assert await api.app.background.drain(PATIENCE_S)
            assert "JobCancelRequested" not in api.event_types()

    asyncio.run(scenario())


def test_fallback_without_streaming_gets_the_answer_that_the_stream_began() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, SESSION)
            api.publish(job_id, *ANSWER[:2])
            await lose(reply, request)
            waiting = asyncio.create_task(api.send("POST", MESSAGES, BODY, headers=SESSION))
            await eventually(lambda: attached(api) == ["same_session"])
            api.publish(job_id, ANSWER[2], first=2)
            whole = await waiting
            assert isinstance(whole, Reply)
            assert json.loads(whole.body)["content"] == [{"type": "text", "text": "Hello"}]

    asyncio.run(scenario())


def test_repeat_that_overtakes_the_end_of_its_first_connection_joins_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api, dedup_grace_s=PATIENCE_S)
            reply, job_id, request = await start_stream(api, SESSION)
            again = asyncio.create_task(api.send("POST", MESSAGES, STREAM, headers=SESSION))
            await eventually(lambda: bool(api.app.connections._departed))
            await lose(reply, request)
            second = await again
            assert second.headers["x-semantic-job"] == job_id
            await leave(second)

    asyncio.run(scenario())


def test_answer_that_was_ready_when_the_client_was_lost_is_given_to_its_retry() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, {})
            api.start(job_id)
            api.complete(job_id, "Hello")
            api.publish(job_id, *ANSWER)
            await first_piece(reply)
            await lose(reply, request)
            again = await api.send("POST", MESSAGES, BODY, headers=RETRY)
            assert again.headers["x-semantic-job"] == job_id
            assert again.status == 200

    asyncio.run(scenario())


def test_job_without_a_further_request_is_cancelled_after_its_grace() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, SESSION)
            await lose(reply, request)
            assert status_of(api, job_id) is JobStatus.QUEUED
            api.grace_over.set()
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)
            late = await api.send("POST", MESSAGES, STREAM, headers=SESSION | RETRY)
            assert late.headers["x-semantic-job"] != job_id
            await leave(late)

    asyncio.run(scenario())


def test_job_joined_again_is_cancelled_only_when_its_second_client_leaves_too() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, SESSION)
            await lose(reply, request)
            second, same, request = await start_stream(api, SESSION)
            assert same == job_id
            api.grace_over.set()
            assert await api.app.background.drain(PATIENCE_S)
            assert status_of(api, job_id) is JobStatus.QUEUED
            await lose(second, request)
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_client_of_a_stopped_api_finds_its_job_in_the_next_one() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, SESSION)
            request.ending.set()
            await pieces_of(reply)
            api.use(connections=type(api.app.connections)())
            again = await api.send("POST", MESSAGES, STREAM, headers=SESSION)
            assert again.headers["x-semantic-job"] == job_id
            await leave(again)

    asyncio.run(scenario())


# --- two requests that are meant as two ----------------------------------------------------


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize("headers", [SESSION, SESSION | RETRY, RETRY])
def test_equal_request_beside_one_that_is_read_is_a_second_job(
    path: str, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            first, job_id, _ = await start_stream(api, headers, path=path)
            second, other, _ = await start_stream(api, headers, path=path)
            assert other != job_id
            assert attached(api) == []
            await leave(first)
            await leave(second)

    asyncio.run(scenario())


def test_equal_request_after_the_answer_arrived_is_a_second_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, _ = await start_stream(api, SESSION)
            api.start(job_id)
            api.complete(job_id, "Hello")
            api.publish(job_id, *ANSWER)
            await pieces_of(reply)
            second, other, _ = await start_stream(api, SESSION)
            assert other != job_id
            await leave(second)

    asyncio.run(scenario())


def test_equal_requests_of_strangers_are_two_jobs() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, {})
            await lose(reply, request)
            second, other, _ = await start_stream(api, {})
            assert other != job_id
            await leave(second)

    asyncio.run(scenario())


@pytest.mark.parametrize("fixed", [{"temperature": 0}, {"seed": 7}])
def test_greedy_or_seeded_twin_in_a_session_shares_the_one_answer(fixed: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = STREAM | fixed
            first, job_id, _ = await start_stream(api, SESSION, body=body)
            second, same, _ = await start_stream(api, SESSION, body=body)
            assert same == job_id
            assert attached(api) == ["same_answer"]
            # One of two readers may leave; the job goes on for the other.
            await leave(first)
            api.publish(job_id, *ANSWER)
            assert events_in(await pieces_of(second))[-1].event == "message_stop"
            assert "JobCancelRequested" not in api.event_types()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "other",
    [
        ({"temperature": 0.5}, SESSION),
        ({"messages": [{"role": "user", "content": "else"}]}, SESSION),
        ({}, {"x-claude-code-session-id": "s-2"}),
    ],
)
def test_lost_job_is_not_joined_by_what_asks_something_else(
    other: tuple[dict[str, Any], dict[str, str]],
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            patient(api)
            reply, job_id, request = await start_stream(api, SESSION)
            await lose(reply, request)
            second, fresh, _ = await start_stream(api, other[1], body=STREAM | other[0])
            assert fresh != job_id
            await leave(second)

    asyncio.run(scenario())


# --- room ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        (MESSAGES, STREAM, "rate_limit_error"),
        (CHAT, BODY, "rate_limit_error"),
        ("/v1/jobs", {"prompt": "hi"}, None),
    ],
)
def test_full_queue_is_429_with_a_time_in_the_callers_words(
    path: str, body: dict[str, Any], kind: str | None
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(queue_limit=1)
            await api.send("POST", "/v1/jobs", {"prompt": "first"}, headers=KEY)
            reply = await api.send("POST", path, body)
            assert isinstance(reply, Reply)
            assert (reply.status, reply.headers["x-should-retry"]) == (429, "true")
            assert int(reply.headers["retry-after"]) >= 1
            told = json.loads(reply.body)
            assert told["code"] == "overloaded" if kind is None else told["error"]["type"] == kind
            # The batch queue has its own room, and a repeat needs none.
            await api.json("POST", "/v1/jobs", {"prompt": "b", "priority": "batch"}, status=202)
            again = await api.send("POST", "/v1/jobs", {"prompt": "first"}, headers=KEY)
            assert again.status == 202

    asyncio.run(scenario())
