"""The answer of a job read by the protocol of Durable Streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from api.dialects.jobs import durable
from api.dialects.jobs.durable import MessagesBeyond, Offset
from api.http.messages import Reply, Request, StreamReply
from domain.chat.items import Body, Finished, Started, StreamItem, Text
from domain.chat.stored_answer import ReaderPosition
from domain.job.commit import commit
from domain.values import JobId, StopReason, Usage
from tests.support.builders.api import FakeApi, fake_api, first_piece, pieces_of
from tests.support.builders.item_streams import item_streams, stored_of
from tests.support.builders.job_events import start_command
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

BEGUN = Started(prompt_tokens=5, cached_tokens=2)
HEL, LO = Text(text="Hel", ids=(1,)), Text(text="lo", ids=(2,))
END = Finished(
    stop_reason=StopReason.END_TURN,
    usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1),
)
EMPTY, HALF, WHOLE, OVER = (
    f"000000001-{units:012}-{end}" for units, end in ((0, 0), (3, 0), (5, 0), (5, 1))
)


async def new_job(api: FakeApi) -> JobId:
    job_id = JobId((await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202))["id"])
    api.start(job_id)
    return job_id


async def read(api: FakeApi, job_id: JobId, query: str, **headers: str) -> Reply:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await api.send("GET", f"/v1/jobs/{job_id}/stream?{query}", headers=sent)
    assert isinstance(reply, Reply)
    return reply


async def read_head(api: FakeApi, job_id: JobId) -> Reply:
    route, sent = api.prepared("GET", f"/v1/jobs/{job_id}/stream")
    reply = await route.handler(replace(sent, method="HEAD"))
    assert isinstance(reply, Reply)
    return reply


def next_of(reply: Reply | StreamReply) -> str:
    return reply.headers["stream-next-offset"]


def text_in(messages: Sequence[dict[str, Any]]) -> str:
    return "".join(one["text"] for one in messages if one["kind"] == "text")


def runs_of(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join messages of one kind, whose borders may differ between the items and the log."""
    runs: list[dict[str, Any]] = []
    for message in messages:
        key = {"text": "text", "thinking": "text", "tool_input": "fragment"}.get(message["kind"])
        if key is not None and runs and runs[-1]["kind"] == message["kind"]:
            runs[-1] = runs[-1] | {key: runs[-1][key] + message[key]}
        else:
            runs.append(message)
    return runs


@given(item_streams())
def test_every_offset_splits_an_answer_without_loss_and_without_repetition(
    items: list[StreamItem],
) -> None:
    reader = MessagesBeyond(Offset(1))
    read_so_far: list[dict[str, Any]] = []
    offsets = [(reader.offset, 0)]
    for item in items:
        read_so_far += reader.add([item])
        offsets.append((reader.offset, len(read_so_far)))
    names = [str(offset) for offset, _ in offsets]
    assert names == sorted(names)
    lost = [
        StreamItem(n=None, attempt=1, body=body)
        for body in (*stored_of(items).lacking(ReaderPosition()), items[-1].body)
    ]
    for offset, count in offsets:
        assert MessagesBeyond(offset).add(items) == read_so_far[count:]
        from_log = MessagesBeyond(offset)
        whole = runs_of([*read_so_far[:count], *from_log.add(lost)])
        assert whole == runs_of(read_so_far)
        assert from_log.offset == reader.offset


def test_catch_up_has_all_messages_and_the_next_offset() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            empty = await read(api, job_id, "offset=-1")
            assert (empty.body, next_of(empty)) == (b"[]", EMPTY)
            api.publish(job_id, BEGUN, HEL)
            half = await read(api, job_id, "offset=-1")
            assert json.loads(half.body) == [{"kind": "text", "text": "Hel"}]
            assert (next_of(half), half.headers["stream-up-to-date"]) == (HALF, "true")
            assert "stream-closed" not in half.headers
            assert next_of(await read_head(api, job_id)) == HALF
            api.publish(job_id, LO, END, first=2)
            api.complete(job_id, "Hello")
            rest = await read(api, job_id, f"offset={HALF}")
            text, end = json.loads(rest.body)
            assert (text["text"], end["kind"]) == ("lo", "finished")
            assert (next_of(rest), rest.headers["stream-closed"]) == (OVER, "true")
            tail = await read(api, job_id, f"offset={OVER}")
            assert (tail.body, tail.headers["stream-closed"]) == (b"[]", "true")
            now = await read(api, job_id, "offset=now")
            assert (now.body, next_of(now)) == (b"[]", OVER)

    asyncio.run(scenario())


def test_an_offset_is_valid_after_the_items_are_lost() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.publish(job_id, BEGUN, HEL)
            offset = next_of(await read(api, job_id, "offset=-1"))
            api.broker.items.forget(job_id)
            silent = await read(api, job_id, f"offset={offset}")
            assert (silent.body, next_of(silent)) == (b"[]", HALF)
            api.complete(job_id, "Hello")
            rest = await read(api, job_id, f"offset={offset}")
            assert text_in(json.loads(rest.body)) == "lo"
            assert next_of(rest) == OVER

    asyncio.run(scenario())


def test_an_etag_names_what_follows_an_offset() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.publish(job_id, BEGUN, HEL)
            etag = (await read(api, job_id, "offset=-1")).headers["etag"]
            same = await read(api, job_id, "offset=-1", if_none_match=f'"x", {etag}')
            assert (same.status, same.body, same.headers["etag"]) == (304, b"", etag)
            api.publish(job_id, LO, first=2)
            assert (await read(api, job_id, "offset=-1", if_none_match=etag)).status == 200

    asyncio.run(scenario())


def test_a_long_poll_waits_for_a_message() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.publish(job_id, BEGUN, HEL)
            poll = asyncio.create_task(read(api, job_id, f"offset={HALF}&live=long-poll"))
            await eventually(lambda: api.broker.items.followers)
            api.publish(job_id, LO, first=2)
            reply = await poll
            assert text_in(json.loads(reply.body)) == "lo"
            assert next_of(reply) == WHOLE
            cursor = int(reply.headers["stream-cursor"])
            again = await read(api, job_id, f"offset={HALF}&live=long-poll&cursor={cursor}")
            assert int(again.headers["stream-cursor"]) == cursor + 1
            api.publish(job_id, END, first=3)
            api.complete(job_id, "Hello")
            over = await read(api, job_id, f"offset={OVER}&live=long-poll")
            assert (over.status, over.headers["stream-closed"]) == (204, "true")

    asyncio.run(scenario())


def test_a_long_poll_without_a_message_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "LONG_POLL_S", 0.01)

    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            reply = await read(api, job_id, "offset=now&live=long-poll")
            assert (reply.status, next_of(reply)) == (204, EMPTY)
            assert reply.headers["stream-up-to-date"] == "true"

    asyncio.run(scenario())


def test_events_are_followed_by_their_control() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.publish(job_id, BEGUN, HEL)
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream?offset=-1&live=sse")
            begin = await first_piece(reply)
            api.publish(job_id, LO, END, first=2)
            api.complete(job_id, "Hello")
            events = events_in(begin + await pieces_of(reply))
            assert [one.event for one in events] == ["data", "control"] * 3
            messages = [one for event in events[::2] for one in json.loads(event.data)]
            assert text_in(messages) == "Hello"
            controls = [event.json for event in events[1::2]]
            assert [one["streamNextOffset"] for one in controls] == [HALF, WHOLE, OVER]
            assert "streamCursor" not in controls[-1]
            assert controls[-1]["streamClosed"] is True
            again = await api.send("GET", f"/v1/jobs/{job_id}/stream?offset={OVER}&live=sse")
            (last,) = events_in(await pieces_of(again))
            assert last.json["streamClosed"] is True

    asyncio.run(scenario())


def test_a_reader_of_an_answer_that_began_anew_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            api.publish(job_id, BEGUN, HEL)
            poll = asyncio.create_task(read(api, job_id, f"offset={HALF}&live=long-poll"))
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream?offset={HALF}&live=sse")
            await first_piece(reply)
            await eventually(lambda: api.broker.items.followers == 2)
            command = start_command(model="other", fingerprint="g")
            commit(job_id, command, log=api.log, ids=api.app.ids)
            anew: tuple[Body, ...] = (BEGUN, HEL)
            for n, body in enumerate(anew):
                item = StreamItem(n=n, attempt=2, body=body, epoch=2)
                api.broker.items.publish([(job_id, item)])
            assert (await poll).status == 410
            assert events_in(await pieces_of(reply)) == []
            refused = await read(api, job_id, f"offset={HALF}")
            assert (refused.status, json.loads(refused.body)["code"]) == (410, "offset_gone")
            whole = await read(api, job_id, "offset=-1")
            assert next_of(whole) == HALF.replace("1", "2", 1)

    asyncio.run(scenario())


def test_an_offset_behind_the_end_of_a_retried_job_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            api.publish(job_id, BEGUN, HEL)
            assert (await read(api, job_id, f"offset={OVER}")).status == 410

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "query",
    ["offset=", "offset=0,1", "offset=3", "live=sse", "live=long-poll", "offset=-1&live=x",
     "offset=-1&offset=-1", "offset=-1&after=1-1", "offset=-1&live=sse&cursor=x"],
)  # fmt: skip
def test_other_queries_are_refused(query: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            assert (await read(api, job_id, query)).status == 400

    asyncio.run(scenario())


def test_a_job_that_does_not_exist_has_no_stream() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for query in ("offset=-1", "offset=now&live=sse", "offset=now&live=long-poll"):
                assert (await read(api, JobId("job-" + "0" * 32), query)).status == 404

    asyncio.run(scenario())


def test_a_reader_that_leaves_ends_its_poll() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job_id = await new_job(api)
            request = Request(id="req-1", method="GET", path="")
            target = f"/v1/jobs/{job_id}/stream?offset=-1&live=long-poll"
            poll = asyncio.create_task(api.send("GET", target, request=request))
            await eventually(lambda: api.broker.items.followers)
            request.gone.set()
            assert isinstance(await poll, Reply)
            assert api.log.views.rows[job_id].status == "running"

    asyncio.run(scenario())
