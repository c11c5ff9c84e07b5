"""``GET /v1/events`` as a stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import Reply
from api.operate.events import WRITER_LAG_S
from domain.errors import LogUnavailable
from domain.values import StreamName
from tests.support.builders.api import FakeApi, fake_api, first_piece, leave, pieces_of
from tests.support.builders.job_events import draft, worker_event

STREAM = {"accept": "text/event-stream"}


def _append(api: FakeApi, *names: str) -> None:
    for name in names:
        stream = StreamName(name)
        api.log.append(
            stream, [draft(worker_event(name))], expected_version=len(api.log.load(stream))
        )


def _ids(piece: bytes) -> list[int]:
    return [int(line[4:]) for line in piece.decode().splitlines() if line.startswith("id: ")]


def test_a_stream_has_recorded_events_and_then_each_new_one() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "w-1", "w-2")
            reply = await api.send("GET", "/v1/events", headers=STREAM)
            assert await first_piece(reply) == b": open\n"
            past = await first_piece(reply)
            assert _ids(past) == [1, 2]
            assert b"event: WorkerDraining\n" in past
            data = json.loads(past.decode().split("data: ")[1].splitlines()[0])
            assert data == (await api.json("GET", "/v1/events"))["data"][0]
            _append(api, "w-1")
            assert _ids(await first_piece(reply)) == [3]
            await leave(reply)

    asyncio.run(scenario())


def test_a_client_that_reconnects_gets_only_the_events_it_missed() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "w-1", "w-2", "w-1")
            known = STREAM | {"last-event-id": "2"}
            reply = await api.send("GET", "/v1/events?after=0", headers=known)
            await first_piece(reply)
            assert _ids(await first_piece(reply)) == [3]
            await leave(reply)

    asyncio.run(scenario())


def test_a_stream_has_only_events_of_its_filters() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "w-1", "w-2")
            reply = await api.send("GET", "/v1/events?stream=w-2", headers=STREAM)
            await first_piece(reply)
            assert _ids(await first_piece(reply)) == [2]
            _append(api, "w-1", "w-2")
            assert _ids(await first_piece(reply)) == [4]
            await leave(reply)

    asyncio.run(scenario())


def test_a_stream_without_events_has_pings() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.01) as api:
            reply = await api.send("GET", "/v1/events", headers=STREAM)
            assert [await first_piece(reply) for _ in range(2)] == [b": open\n", b": ping\n"]
            await leave(reply)

    asyncio.run(scenario())


def test_an_unavailable_log_ends_the_stream_with_an_error_event() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _append(api, "w-1")
            reply = await api.send("GET", "/v1/events", headers=STREAM)
            assert [_ids(await first_piece(reply)) for _ in range(2)] == [[], [1]]
            api.log.select = _unavailable  # type: ignore[method-assign]  # the disk goes away
            assert b'event: error\ndata: {"code":"log_unavailable"' in await pieces_of(reply)

    asyncio.run(scenario())


def _unavailable(*_: object, **__: object) -> tuple[()]:
    raise LogUnavailable("the disk is gone")


@pytest.mark.parametrize("cursor", ["-1", "x", "1-2", "9223372036854775808", ""])
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("GET", "/v1/events", headers=STREAM | {"last-event-id": cursor})
            assert isinstance(reply, Reply)
            assert reply.status == 400

    asyncio.run(scenario())


def test_a_stream_with_an_end_has_the_events_before_it_and_ends() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            clock: Any = api.app.clock
            _append(api, "w-1", "w-2")
            clock.advance(60)
            _append(api, "w-1")
            target = "/v1/events?type=WorkerDraining&until=2026-01-01T00:01:00Z"
            reply = await api.send("GET", target, headers=STREAM)
            assert await first_piece(reply) == b": open\n"
            assert _ids(await first_piece(reply)) == [1, 2]
            # An event may still be on its way that was recorded before.
            clock.advance(WRITER_LAG_S + 1)
            assert await pieces_of(reply) == b""
            again = await api.send("GET", target, headers=STREAM | {"last-event-id": "2"})
            assert isinstance(again, Reply)
            assert again.status == 204

    asyncio.run(scenario())


def test_a_stream_of_an_agent_leaves_out_the_others() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("POST", "/v1/jobs", {"prompt": "a", "agent_id": "ann"}, status=202)
            await api.json("POST", "/v1/jobs", {"prompt": "b", "agent_id": "bob"}, status=202)
            reply = await api.send("GET", "/v1/events?agent_id=bob", headers=STREAM)
            await first_piece(reply)
            assert _ids(await first_piece(reply)) == [2]
            await api.json("POST", "/v1/jobs", {"prompt": "c", "agent_id": "ann"}, status=202)
            await api.json("POST", "/v1/jobs", {"prompt": "d", "agent_id": "bob"}, status=202)
            assert _ids(await first_piece(reply)) == [4]
            await leave(reply)

    asyncio.run(scenario())
