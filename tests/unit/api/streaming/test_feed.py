"""What a connection costs, and how it ends where announcements, the store or the client fail."""

from __future__ import annotations

import asyncio

from api.http.messages import Request
from domain.chat.items import Finished, Started, Text
from domain.job.request_dedup import Readership
from domain.values import JobId, StopReason, Usage
from tests.support.builders.api import FakeApi, fake_api, leave, pieces_of
from tests.support.builders.generation_requests import MESSAGES, STREAM
from tests.support.clients.sse import events_in
from tests.support.fakes.broker import PAGE_ITEMS
from tests.support.polling import eventually, let_tasks_run

BEGUN = Started(prompt_tokens=5, cached_tokens=2)
DONE = Finished(stop_reason=StopReason.END_TURN, usage=Usage(prompt_tokens=5))
LOOK_S = 0.01


def word(n: int) -> Text:
    return Text(text=f"{n} ", ids=(n,))


async def running_job(api: FakeApi) -> JobId:
    job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
    api.start(job["id"])
    return JobId(job["id"])


async def follow(api: FakeApi, job_id: JobId) -> asyncio.Task[bytes]:
    """Return what reads the stream of a job, once it waits for items."""
    reply = await api.send("GET", f"/v1/jobs/{job_id}/stream")
    reading = asyncio.create_task(pieces_of(reply))
    await eventually(lambda: api.broker.items.followers == 1)
    return reading


def kinds_in(body: bytes) -> list[str]:
    return [event.json["kind"] for event in events_in(body)]


def test_stream_has_at_most_one_task() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            before = len(asyncio.all_tasks())
            replies = [await api.send("POST", MESSAGES, STREAM) for _ in range(5)]
            await let_tasks_run()
            assert len(asyncio.all_tasks()) - before <= len(replies)
            for reply in replies:
                await leave(reply)

    asyncio.run(scenario())


def test_stream_of_a_job_that_ends_while_the_broker_is_away_is_ended_from_the_log() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            job_id = await running_job(api)
            reading = await follow(api, job_id)
            api.broker.down = True
            api.complete(job_id, "Hello")
            assert kinds_in(await reading) == ["text", "finished"]
            api.broker.down = False

    asyncio.run(scenario())


def test_items_that_were_stored_while_reads_failed_are_read_once_they_succeed() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            job_id = await running_job(api)
            api.publish(job_id, BEGUN, word(1))
            api.broker.down = True
            reading = await follow(api, job_id)
            api.broker.down = False
            api.publish(job_id, DONE, first=2)
            assert kinds_in(await reading) == ["started", "text", "finished"]

    asyncio.run(scenario())


def test_items_whose_announcements_were_lost_are_found_in_the_store() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            job_id = await running_job(api)
            reading = await follow(api, job_id)
            count = 2 * PAGE_ITEMS
            api.broker.items.is_mute = True
            api.publish(job_id, BEGUN, *map(word, range(count)), DONE)
            kinds = kinds_in(await reading)
            assert kinds == ["started", *["text"] * count, "finished"]

    asyncio.run(scenario())


def test_client_that_leaves_with_the_last_item_is_no_reader_any_more() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = Request(id="req-1", method="POST", path=MESSAGES)
            body = STREAM | {"stream": False}
            asking = asyncio.create_task(api.send("POST", MESSAGES, body, request=request))
            job_id = await api.only_job()
            api.start(job_id)
            await eventually(lambda: api.app.connections.state(job_id) is Readership.READING)
            api.publish(job_id, BEGUN, DONE)
            # Behind the announcements, and before the reader wakes.
            asyncio.get_running_loop().call_soon(request.gone.set)
            await asking
            assert api.app.connections.state(job_id) is not Readership.READING

    asyncio.run(scenario())
