"""Readers of a job whose answer begins anew under another model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import Reply, Request, StreamReply
from domain.chat.items import Body, Finished, Started, StreamItem, Text
from domain.job.commit import commit
from domain.values import JobId, StopReason, Usage
from tests.support.builders.api import FakeApi, fake_api, first_piece, pieces_of
from tests.support.builders.job_events import start_command
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

BEGUN = Started(prompt_tokens=5, cached_tokens=2)
USER = {"role": "user", "content": "hi"}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "claude-x", "max_tokens": 9, "messages": [USER]},
    "/v1/chat/completions": {"model": "gpt-x", "messages": [USER]},
    "/v1/responses": {"model": "gpt-x", "input": "hi"},
}
END = Finished(stop_reason=StopReason.END_TURN, usage=Usage(prompt_tokens=5, completion_tokens=3))


def word(text: str) -> Text:
    return Text(text=text, ids=tuple(map(ord, text)))


def publish(api: FakeApi, job_id: JobId, *bodies: Body, epoch: int, first: int = 0) -> None:
    """Publish items of the attempt with which an epoch began."""
    items = [
        StreamItem(n=n, attempt=epoch, body=body, epoch=epoch)
        for n, body in enumerate(bodies, start=first)
    ]
    api.broker.items.publish([(job_id, item) for item in items])


def take_over(api: FakeApi, job_id: JobId) -> None:
    """Start an attempt under another fingerprint."""
    command = start_command(model="other", fingerprint="g")
    commit(job_id, command, log=api.log, ids=api.app.ids)


async def half_read(api: FakeApi, path: str) -> tuple[JobId, StreamReply, bytes]:
    """Open a stream and read a word of the first model."""
    reply = await api.send("POST", path, PATHS[path] | {"stream": True})
    assert isinstance(reply, StreamReply)
    job_id = await api.only_job()
    api.start(job_id)
    publish(api, job_id, BEGUN, word("old"), epoch=1)
    read = b""
    while b"old" not in read:
        read += await first_piece(reply)
    return job_id, reply, read


@pytest.mark.parametrize("path", PATHS)
def test_half_read_stream_ends_with_model_changed(path: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id, reply, _ = await half_read(api, path)
            take_over(api, job_id)
            publish(api, job_id, BEGUN, word("new"), END, epoch=2)
            rest = await pieces_of(reply)
            assert b"new" not in rest
            assert b"the model of this answer left" in rest
            assert b'"end_turn"' not in rest

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_stream_without_output_begins_anew(path: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", path, PATHS[path] | {"stream": True})
            job_id = await api.only_job()
            api.start(job_id)
            publish(api, job_id, BEGUN, epoch=1)
            take_over(api, job_id)
            publish(api, job_id, BEGUN, word("new"), END, epoch=2)
            text = await pieces_of(reply)
            assert b"new" in text
            assert b"model of this answer" not in text

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_whole_reply_has_the_text_of_the_last_model_only(path: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = Request(id="req-1", method="POST", path=path)
            waiting = asyncio.create_task(api.send("POST", path, PATHS[path], request=request))
            job_id = await api.only_job()
            api.start(job_id)
            publish(api, job_id, BEGUN, word("old"), epoch=1)
            await eventually(lambda: request.marks.output_ns is not None)
            take_over(api, job_id)
            publish(api, job_id, BEGUN, word("new"), END, epoch=2)
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == 200, reply.body
            assert b"new" in reply.body
            assert b"old" not in reply.body
            assert reply.headers["x-semantic-model"] == "other"

    asyncio.run(scenario())


@pytest.mark.parametrize(("last", "is_half_read"), [("1-1", True), ("1-0", False), ("1", True)])
def test_reader_that_resumes_after_output_of_another_model_ends(
    last: str, *, is_half_read: bool
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            job_id = JobId(job["id"])
            api.start(job_id)
            publish(api, job_id, BEGUN, word("old"), epoch=1)
            take_over(api, job_id)
            publish(api, job_id, BEGUN, word("new"), END, epoch=2)
            path = f"/v1/jobs/{job_id}/stream"
            reply = await api.send("GET", path, headers={"last-event-id": last})
            events = [event.json for event in events_in(await pieces_of(reply))]
            if is_half_read:
                assert [event["error"] for event in events] == ["model_changed"]
                assert events[0]["retryable"]
            else:
                assert [event["kind"] for event in events] == ["started", "text", "finished"]
            resumed = await api.send("GET", path, headers={"last-event-id": "2-1"})
            events = [event.json for event in events_in(await pieces_of(resumed))]
            assert [event["kind"] for event in events] == ["finished"]

    asyncio.run(scenario())


def test_resumed_reader_of_an_ended_job_ends_too_where_the_items_are_lost() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            job_id = JobId(job["id"])
            api.start(job_id)
            take_over(api, job_id)
            api.complete(job_id, "new", attempt=2)
            path = f"/v1/jobs/{job_id}/stream"
            reply = await api.send("GET", path, headers={"last-event-id": "1-3"})
            (event,) = events_in(await pieces_of(reply))
            assert event.json["error"] == "model_changed"
            whole = await api.send("GET", path)
            texts = [event.json.get("text") for event in events_in(await pieces_of(whole))]
            assert texts == ["new", None]
            shown = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (shown["answered_by"], shown["output"]["text"]) == ("other", "new")

    asyncio.run(scenario())


def test_background_response_cannot_be_resumed_from_another_model() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = PATHS["/v1/responses"] | {"background": True}
            made = await api.json("POST", "/v1/responses", body)
            job_id = await api.only_job()
            api.start(job_id)
            publish(api, job_id, BEGUN, word("old"), epoch=1)
            path = f"/v1/responses/{made['id']}?stream=true"
            reading = await api.send("GET", path)
            events: list[Any] = []
            while not any("old" in json.dumps(event) for event in events):
                events += [event.json for event in events_in(await first_piece(reading))]
            take_over(api, job_id)
            publish(api, job_id, BEGUN, word("new"), END, epoch=2)
            assert b"send the request again" in await pieces_of(reading)
            last = events[-1]["sequence_number"]
            resumed = await api.send("GET", f"{path}&starting_after={last}")
            (error,) = (event.json for event in events_in(await pieces_of(resumed)))
            assert error["type"] == "error"
            fresh = await api.send("GET", path)
            whole = [event.json for event in events_in(await pieces_of(fresh))]
            numbers = [event["sequence_number"] for event in whole]
            assert numbers == sorted(set(numbers))
            for place, event in enumerate(whole[:-1]):
                after = event["sequence_number"]
                again = await api.send("GET", f"{path}&starting_after={after}")
                rest = [event.json for event in events_in(await pieces_of(again))]
                assert rest == whole[place + 1 :]

    asyncio.run(scenario())


def test_stream_of_several_answers_ends_where_one_of_them_changes_its_model() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.grace_over.set()
            body = PATHS["/v1/chat/completions"] | {"n": 2, "stream": True}
            asking = asyncio.create_task(api.send("POST", "/v1/chat/completions", body))
            first, second = await eventually(
                lambda: list(api.log.views.rows), lambda jobs: len(jobs) == 2
            )
            for job_id in (first, second):
                publish(api, job_id, BEGUN, word("old"), epoch=1)
            reply = await asking
            read = b""
            while read.count(b"old") < 2:
                read += await first_piece(reply)
            publish(api, second, BEGUN, word("new"), epoch=2)
            rest = await pieces_of(reply)
            assert b"new" not in rest
            assert b"the model of this answer left" in rest

    asyncio.run(scenario())
