"""Pings, piled-up items and counts, large and wrong bodies on the routes that generate."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from api.http.messages import Caller, Reply, Request, StreamReply
from domain.chat.items import Progress, Text
from domain.chat.request import ChatRequest
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import (
    PATIENCE_S,
    FakeApi,
    fake_api,
    first_piece,
    leave,
    pieces_of,
)
from tests.support.builders.generation_requests import ANSWER, BODY, CHAT, MESSAGES, STREAM
from tests.support.clients.sse import events_in
from tests.support.polling import eventually, pause_task, scaled

COUNT = f"{MESSAGES}/count_tokens"
COUNTED = {"model": "any-name", "messages": BODY["messages"]}


@contextmanager
def _counter_that_blocks(api: FakeApi) -> Iterator[list[ChatRequest]]:
    """Yield the prompts that the worker was asked to count; it replies on exit."""
    asked: list[ChatRequest] = []
    over = threading.Event()

    def count(request: ChatRequest) -> int:
        asked.append(request)
        over.wait()
        return 7

    api.broker.counter.count_of = count
    try:
        yield asked
    finally:
        over.set()


def test_silent_stream_pings_although_progress_comes() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.05) as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            await first_piece(reply)

            async def progress() -> None:
                while True:
                    api.publish(job_id, Progress(phase="queued", done=0, total=1))
                    await pause_task(0.01, reason="the pace of the noise")

            noise = asyncio.create_task(progress())
            for _ in range(3):
                assert [event.event for event in events_in(await first_piece(reply))] == ["ping"]
            noise.cancel()
            await asyncio.gather(noise, return_exceptions=True)
            api.publish(job_id, *ANSWER)
            assert events_in(await pieces_of(reply))[-1].event == "message_stop"

    asyncio.run(scenario())


def test_waiting_items_are_sent_in_one_piece_and_none_is_lost() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            await first_piece(reply)
            words = [Text(text=f"{n} ", ids=(n,)) for n in range(1000)]
            api.publish(job_id, ANSWER[0], *words, ANSWER[2])
            assert isinstance(reply, StreamReply)
            pieces = [piece async for piece in reply.pieces]
            assert len(pieces) < 20
            text = "".join(
                event.json["delta"]["text"]
                for event in events_in(b"".join(pieces))
                if event.event == "content_block_delta"
            )
            assert text == "".join(word.text for word in words)

    asyncio.run(scenario())


def test_large_body_is_parsed_off_the_event_loop() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            long = STREAM | {"messages": [{"role": "user", "content": "x" * 200_000}]}
            reply = await api.send("POST", MESSAGES, long)
            assert isinstance(reply, StreamReply)
            await leave(reply)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "message"),
    [(MESSAGES, "messages.0.role: Input"), (CHAT, "Input should be")],
)
def test_wrong_body_is_400_in_the_callers_dialect(path: str, message: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            bad = BODY | {"messages": [{"role": "robot", "content": "x"}]}
            reply = await api.send("POST", path, bad)
            assert isinstance(reply, Reply)
            assert reply.status == 400
            error = json.loads(reply.body)["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(message)
            assert not api.log.views.rows

    asyncio.run(scenario())


def test_counts_that_wait_for_a_worker_delay_no_other_request() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            with _counter_that_blocks(api) as asked:
                counting = [
                    asyncio.create_task(api.json("POST", COUNT, COUNTED)) for _ in range(40)
                ]
                await eventually(lambda: bool(asked))
                async with asyncio.timeout(scaled(PATIENCE_S)):
                    job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
                    page = await api.json("GET", "/v1/jobs")
                assert [one["id"] for one in page["data"]] == [job["id"]]
                assert not any(one.done() for one in counting)
            assert await asyncio.gather(*counting) == [{"input_tokens": 7}] * 40

    asyncio.run(scenario())


def test_one_count_too_many_is_429_with_a_time() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(counts=api.counts(most=3))
            with _counter_that_blocks(api) as asked:
                counting = [asyncio.create_task(api.json("POST", COUNT, COUNTED)) for _ in range(3)]
                await eventually(lambda: len(asked) == 2)
                reply = await api.send("POST", COUNT, COUNTED)
                assert isinstance(reply, Reply)
                assert (reply.status, reply.headers["retry-after"]) == (429, "1")
                assert b"3 token counts wait already" in reply.body
            assert await asyncio.gather(*counting) == [{"input_tokens": 7}] * 3
            assert await api.json("POST", COUNT, COUNTED) == {"input_tokens": 7}

    asyncio.run(scenario())


def test_counts_of_one_key_leave_room_for_other_keys() -> None:
    async def count(api: FakeApi, name: str) -> Reply:
        caller = Caller(name=name, scope=KeyScope.OWN, is_alone=False)
        request = Request(id="req-1", method="POST", path=COUNT, caller=caller)
        reply = await api.send("POST", COUNT, COUNTED, request=request)
        assert isinstance(reply, Reply)
        return reply

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(counts=api.counts(most=4))
            with _counter_that_blocks(api) as asked:
                counting = [asyncio.create_task(count(api, "ann")) for _ in range(2)]
                await eventually(lambda: len(asked) == 2)
                refused = await count(api, "ann")
                assert (refused.status, refused.headers["retry-after"]) == (429, "1")
                assert b"this key may have 2 token counts at once" in refused.body
                counting.append(asyncio.create_task(count(api, "bob")))
            assert [one.status for one in await asyncio.gather(*counting)] == [200] * 3

    asyncio.run(scenario())


def test_count_that_gets_no_thread_in_time_is_not_sent_to_the_worker() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            with _counter_that_blocks(api) as asked:
                counting = [asyncio.create_task(api.json("POST", COUNT, COUNTED)) for _ in range(2)]
                await eventually(lambda: len(asked) == 2)
                api.use(counts=api.counts(wait_s=0.01))
                reply = await api.send("POST", COUNT, COUNTED)
                assert isinstance(reply, Reply)
                assert (reply.status, reply.headers["x-should-retry"]) == (503, "true")
                assert b"no worker with a loaded model" in reply.body
            await asyncio.gather(*counting)
            api.use(counts=api.counts())
            assert await api.json("POST", COUNT, COUNTED) == {"input_tokens": 7}
            assert len(asked) == 3

    asyncio.run(scenario())
