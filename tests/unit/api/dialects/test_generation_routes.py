"""A turn from its body to its bytes, in both foreign dialects, and every way it can end early."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic.types
import openai.types.chat
import pytest

from api.http.messages import Reply, StreamReply
from api.streaming import feed
from domain.chat.items import Body, Failed, Finished
from domain.chat.request import ChatRequest
from domain.values import JobStatus, StopReason, Usage
from tests.support.builders.api import (
    PATIENCE_S,
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


def test_stream_begins_before_the_first_item_and_ends_with_the_answer() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", f"{MESSAGES}?beta=true", STREAM)
            assert isinstance(reply, StreamReply)
            start = events_in(await first_piece(reply))
            assert [event.event for event in start] == ["message_start"]
            job_id = await api.only_job()
            assert reply.headers["x-semantic-job"] == job_id
            assert start[0].json["message"]["id"] == "msg_" + job_id.removeprefix("job-")
            assert start[0].json["message"]["model"] == "any-name"
            assert api.take() == job_id
            api.publish(job_id, *ANSWER)
            events = events_in(await pieces_of(reply))
            assert events[-1].event == "message_stop"
            assert events[-2].json["usage"]["cache_read_input_tokens"] == 2

    asyncio.run(scenario())


def test_accepted_job_records_the_request_and_its_client() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            headers = {"user-agent": "cli/1 " + "x" * 999, "x-claude-code-session-id": "s-1"}
            reply = await api.send("POST", MESSAGES, STREAM, headers=headers)
            (event,) = api.log.read_all()
            assert event.type == "JobSubmitted"
            assert event.correlation_id == "req-1"
            assert event.data["protocol"] == "anthropic"
            assert event.data["agent"] == "s-1"
            assert len(api.log.get(event.data["client_name"])) == 256
            stored = ChatRequest.from_bytes(api.log.get(event.data["request"]))
            assert stored.messages[0].content == "hi"
            assert stored.sampling.seed == event.data["sampling"]["seed"]
            await leave(reply)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "shape"),
    [(MESSAGES, anthropic.types.Message), (CHAT, openai.types.chat.ChatCompletion)],
)
def test_whole_answer_fits_the_clients_types(path: str, shape: Any) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.send("POST", path, BODY))
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER)
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == 200
            assert reply.headers["x-semantic-job"] == job_id
            shape.model_validate_json(reply.body)
            assert b"Hello" in reply.body

    asyncio.run(scenario())


def test_chat_stream_ends_with_usage_and_done() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = STREAM | {"stream_options": {"include_usage": True}}
            reply = await api.send("POST", CHAT, body)
            api.publish(await api.only_job(), *ANSWER)
            events = events_in(await pieces_of(reply))
            assert events[-1].data == "[DONE]"
            assert events[-2].json["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [BODY, STREAM])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_client_that_leaves_cancels_its_waiting_job(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            answering = asyncio.create_task(api.send("POST", path, body, request=request))
            job_id = await api.only_job()
            request.gone.set()
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)
            (asked,) = api.log.read_all(types=["JobCancelRequested"])
            assert asked.data == {"reason": "client_gone"}
            assert api.take() is None
            reply = await answering
            if isinstance(reply, StreamReply):
                assert events_in(await pieces_of(reply))[-1].event in {None, "message_start"}

    asyncio.run(scenario())


def test_client_that_leaves_in_mid_answer_nudges_the_worker() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            reply = await api.send("POST", MESSAGES, STREAM, request=request)
            job_id = await api.only_job()
            api.start(job_id)
            api.publish(job_id, *ANSWER[:2])
            await first_piece(reply)
            await first_piece(reply)
            request.gone.set()
            await eventually(lambda: api.broker.signals.cancelled == [job_id])
            assert api.log.views.rows[job_id].cancel_requested
            await leave(reply)

    asyncio.run(scenario())


def test_stream_that_was_closed_before_it_was_read_cancels_its_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            await leave(reply)
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_handler_that_is_cancelled_cancels_its_job(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:

            async def answer() -> None:
                reply = await api.send("POST", MESSAGES, body)
                await pieces_of(reply)

            answering = asyncio.create_task(answer())
            job_id = await api.only_job()
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_client_that_stays_to_the_end_cancels_nothing() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            reply = await api.send("POST", MESSAGES, STREAM, request=request)
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER)
            await pieces_of(reply)
            request.gone.set()
            await leave(reply)
            assert api.event_types() == ["JobSubmitted"]

    asyncio.run(scenario())


def test_end_of_the_process_is_a_retryable_last_event() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            reply = await api.send("POST", MESSAGES, STREAM, request=request)
            job_id = await api.only_job()
            await first_piece(reply)
            request.ending.set()
            (event,) = events_in(await pieces_of(reply))
            assert event.json["error"]["type"] == "overloaded_error"
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_end_of_the_process_answers_a_waiting_request_with_503() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            waiting = asyncio.create_task(api.send("POST", CHAT, BODY, request=request))
            await api.only_job()
            request.ending.set()
            reply = await waiting
            assert reply.status == 503
            assert reply.headers["x-should-retry"] == "true"

    asyncio.run(scenario())


def test_stored_answer_precedes_the_end_of_the_process() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            reply = await api.send("POST", MESSAGES, STREAM, request=request)
            api.publish(await api.only_job(), *ANSWER)
            await first_piece(reply)
            await first_piece(reply)
            request.ending.set()
            assert api.event_types() == ["JobSubmitted"]

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_unavailable_broker_is_reported_by_a_status(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.down = True
            reply = await api.send("POST", MESSAGES, body)
            assert isinstance(reply, Reply)
            assert reply.status == 503
            assert json.loads(reply.body)["error"]["type"] == "overloaded_error"
            assert await api.app.background.drain(1)
            # The queue would run the job without a reader.
            assert api.event_types() == ["JobSubmitted", "JobCancelRequested"]

    asyncio.run(scenario())


def test_broker_that_fails_in_mid_answer_ends_the_stream_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "UNREACHABLE_MAX_S", 0.2)

    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            await first_piece(reply)
            api.publish(job_id, ANSWER[0])
            api.broker.down = True
            assert events_in(await pieces_of(reply))[-1].json["error"]["type"] == "overloaded_error"
            assert await api.app.background.drain(1)
            assert api.log.views.rows[job_id].cancel_requested

    asyncio.run(scenario())


def test_log_that_cannot_be_written_accepts_nothing() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.log.unavailable = True
            reply = await api.send("POST", CHAT, BODY)
            assert reply.status == 503
            assert not api.log.views.rows

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("last", "status", "message"),
    [
        (
            Failed(
                error="prompt_too_long",
                message="prompt is too long: 9000 tokens > 2048 maximum",
                retryable=False,
            ),
            400,
            "prompt is too long: 9000 tokens > 2048 maximum",
        ),
        (Failed(error="engine_failure", message="it broke", retryable=True), 500, "it broke"),
        (
            Finished(stop_reason=StopReason.CANCELLED, usage=Usage()),
            409,
            "the generation was cancelled",
        ),
    ],
)
def test_job_that_never_started_has_its_own_status(last: Body, status: int, message: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.send("POST", MESSAGES, BODY))
            job_id = await api.only_job()
            api.publish(job_id, last)
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == status
            assert reply.headers["x-semantic-job"] == job_id
            assert json.loads(reply.body)["error"]["message"] == message

    asyncio.run(scenario())


def test_stream_that_fails_at_once_is_a_status_and_no_stream() -> None:
    message = "prompt is too long: 9000 tokens > 2048 maximum"

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(opening_s=PATIENCE_S)
            waiting = asyncio.create_task(api.send("POST", MESSAGES, STREAM))
            job_id = await api.only_job()
            api.publish(job_id, Failed(error="prompt_too_long", message=message, retryable=False))
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == 400
            assert reply.headers["x-semantic-job"] == job_id
            assert json.loads(reply.body)["error"] == {
                "type": "invalid_request_error",
                "message": message,
            }

    asyncio.run(scenario())


def test_stream_with_items_begins_at_once_and_loses_none() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(opening_s=PATIENCE_S)
            waiting = asyncio.create_task(api.send("POST", MESSAGES, STREAM))
            api.publish(await api.only_job(), *ANSWER)
            reply = await waiting
            assert isinstance(reply, StreamReply)
            names = [event.event for event in events_in(await pieces_of(reply))]
            assert names[0] == "message_start"
            assert names[-1] == "message_stop"

    asyncio.run(scenario())


def test_client_that_leaves_while_its_stream_opens_cancels_its_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(opening_s=PATIENCE_S)
            waiting = asyncio.create_task(api.send("POST", MESSAGES, STREAM))
            job_id = await api.only_job()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_count_of_tokens_comes_from_the_worker() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            turn = {"role": "user", "content": "twelve chars"}
            path = f"{MESSAGES}/count_tokens?beta=true"
            body = {"model": "any-name", "messages": [turn], "betas": ["x"]}
            assert await api.json("POST", path, body) == {"input_tokens": 12}
            bad = await api.json("POST", path, {"model": "m", "messages": []}, status=400)
            assert "messages" in bad["error"]["message"]

    asyncio.run(scenario())


def test_too_long_a_prompt_has_openais_code() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.send("POST", CHAT, BODY))
            message = "prompt is too long: 9 tokens > 8 maximum"
            api.publish(
                await api.only_job(),
                Failed(error="prompt_too_long", message=message, retryable=False),
            )
            reply = await waiting
            assert isinstance(reply, Reply)
            assert json.loads(reply.body)["error"]["code"] == "context_length_exceeded"

    asyncio.run(scenario())
