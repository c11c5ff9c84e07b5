"""Readers whose items were lost with the broker: the log tells them the rest."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.messages import Reply
from domain.chat.items import Failed, Finished, Started, StreamItem, Text
from domain.chat.stored_answer import ReaderPosition
from domain.events.job import JobCancelled, JobCancelRequested
from domain.job.commit import commit
from domain.log.codec import item_from_dict
from domain.values import JobId, StopReason, Usage
from tests.support.builders.api import FakeApi, fake_api, first_piece, pieces_of
from tests.support.builders.generation_requests import CHAT, ENDED_AT, MESSAGES, STREAM
from tests.support.builders.item_streams import answer_of, item_streams, stored_of
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

STARTED = Started(prompt_tokens=5, cached_tokens=2)
HEL = Text(text="Hel", ids=(1,))
LO = Text(text="lo", ids=(2,))
DONE = Finished(
    stop_reason=StopReason.END_TURN,
    usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1),
    at=ENDED_AT,
)
LOOK_S = 0.01


async def begun(api: FakeApi) -> JobId:
    """Return the only job once it runs and has said its first half."""
    job_id = await api.only_job()
    api.start(job_id)
    api.publish(job_id, STARTED, HEL)
    return job_id


def text_of(path: str, body: bytes) -> str:
    """Return the text that a stream of some dialect adds up to."""
    events = [event.json for event in events_in(body) if event.data != "[DONE]"]
    if path == MESSAGES:
        return "".join(one["delta"].get("text", "") for one in events if "delta" in one)
    if path == CHAT:
        choices = [choice for one in events for choice in one["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)
    return "".join(one["text"] for one in events if one["kind"] == "text")


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_stream_whose_end_was_lost_is_ended_from_the_log(path: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            reply = await api.send("POST", path, STREAM)
            start = await first_piece(reply)
            job_id = await begun(api)
            api.complete(job_id, "Hello")
            whole = start + await pieces_of(reply)
            assert text_of(path, whole) == "Hello"
            last = events_in(whole)[-1]
            assert (last.event == "message_stop") if path == MESSAGES else (last.data == "[DONE]")

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_answer_whose_end_was_lost_is_whole(path: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            asking = asyncio.create_task(api.send("POST", path, STREAM | {"stream": False}))
            job_id = await begun(api)
            api.broker.items.forget(job_id)
            api.complete(job_id, "Hello")
            reply = await asking
            assert isinstance(reply, Reply)
            assert reply.status == 200
            assert "Hello" in json.dumps(json.loads(reply.body))

    asyncio.run(scenario())


async def native(api: FakeApi, job_id: JobId, after: int | None = None) -> list[StreamItem]:
    query = "" if after is None else f"?after={after}"
    reply = await api.send("GET", f"/v1/jobs/{job_id}/stream{query}")
    return [item_from_dict(event.json) for event in events_in(await pieces_of(reply))]


def bodies(items: list[StreamItem]) -> list[tuple[int | None, Any]]:
    return [(item.n, item.body) for item in items]


async def new_job(api: FakeApi) -> JobId:
    await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
    return await begun(api)


def test_reader_who_lacks_the_end_only_gets_it_under_its_number() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            job_id = await new_job(api)
            reading = asyncio.create_task(native(api, job_id))
            await eventually(lambda: api.broker.items.followers == 1)
            api.publish(job_id, LO, first=2)
            api.complete(job_id, "Hello")
            assert bodies(await reading) == [(0, STARTED), (1, HEL), (2, LO), (3, DONE)]

    asyncio.run(scenario())


def test_reader_who_lacks_more_gets_it_from_the_log() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            job_id = await new_job(api)
            reading = asyncio.create_task(native(api, job_id))
            await eventually(lambda: api.broker.items.followers == 1)
            api.complete(job_id, "Hello")
            rest = (None, Text(text="lo", ids=()))
            assert bodies(await reading) == [(0, STARTED), (1, HEL), rest, (None, DONE)]
            # So does one that comes later.
            assert bodies(await native(api, job_id, after=0)) == [(1, HEL), rest, (None, DONE)]

    asyncio.run(scenario())


def test_reader_whose_place_is_unknown_is_told_so_instead_of_a_part() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.broker.items.forget(job_id)
            api.complete(job_id, "Hello")
            (item,) = await native(api, job_id, after=1)
            assert isinstance(item.body, Failed)
            assert (item.n, item.body.error, item.body.retryable) == (None, "items_lost", False)
            assert f"/v1/jobs/{job_id}" in item.body.message

    asyncio.run(scenario())


def test_ended_job_is_told_while_the_broker_is_away() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.complete(job_id, "Hello")
            api.broker.down = True
            whole = (None, Text(text="Hello", ids=()))
            assert bodies(await native(api, job_id)) == [whole, (None, DONE)]
            api.broker.down = False

    asyncio.run(scenario())


def test_reader_of_a_silent_job_that_goes_on_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(look_s=LOOK_S)
            job_id = await new_job(api)
            looks = 0
            get = api.app.views.get

            def counted(asked: JobId) -> Any:
                nonlocal looks
                looks += 1
                return get(asked)

            monkeypatch.setattr(api.log.views, "get", counted)
            reading = asyncio.create_task(native(api, job_id))
            await eventually(lambda: looks >= 4)
            api.publish(job_id, LO, DONE, first=2)
            assert bodies(await reading) == [(0, STARTED), (1, HEL), (2, LO), (3, DONE)]

    asyncio.run(scenario())


@given(items=item_streams(), is_ordered=st.booleans(), data=st.data())
def test_what_was_told_and_what_lacks_are_the_whole_answer(
    items: list[StreamItem], data: st.DataObject, *, is_ordered: bool
) -> None:
    whole = answer_of(items)
    answer = stored_of(items, is_ordered=is_ordered)
    cut = data.draw(st.integers(0, len(items) - 1), label="cut")
    reader = ReaderPosition.after(items[:cut])
    rest = [StreamItem(n=None, attempt=1, body=body) for body in answer.lacking(reader)]
    both = answer_of([*items[:cut], *rest])
    for kind in ("text", "thinking"):
        assert both.joined(kind) == whole.joined(kind)
    assert both.logprobs == whole.logprobs
    if is_ordered:
        assert both.blocks == whole.blocks
    assert [(c.id, c.name, c.text) for c in both.tools] == [
        (c.id, c.name, c.text) for c in whole.tools
    ]


def test_end_that_was_said_under_a_number_that_the_reader_has_already_reaches_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            reader = ReaderPosition.after(api.broker.items.read(job_id))
            # The broker loses its data, and whoever ends the job then finds nothing said.
            api.broker.items.forget(job_id)
            ports: dict[str, Any] = {"log": api.log, "ids": api.app.ids}
            commit(job_id, JobCancelRequested(reason="api"), **ports)
            ended = commit(job_id, JobCancelled(attempt=0, usage=Usage()), **ports)
            assert ended.ending is not None
            api.publish(job_id, ended.ending, attempt=2)
            rest = api.app.records.rest_of(job_id, reader, api.broker.items)
            assert rest is not None
            assert [item.body for item in rest] == [ended.ending]
            # One who came later and has that end lacks nothing.
            (only,) = api.broker.items.read(job_id)
            late = ReaderPosition.after([only])
            assert api.app.records.rest_of(job_id, late, api.broker.items) == []

    asyncio.run(scenario())
