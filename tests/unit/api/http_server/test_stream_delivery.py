"""Streams of jobs on a connection: however the reply ends, no reader of the job remains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from api.framework.answer import discard
from api.http.messages import Reply, Request, StreamReply
from api.http_server.connection import Connection
from api.http_server.limits import ServerLimits
from domain.job.request_dedup import Readership
from domain.values import JobId, JobStatus
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.generation_requests import ANSWER, MESSAGES, STREAM, status_of
from tests.support.builders.http_connection import MemoryHost, MemoryTransport
from tests.support.polling import eventually

LIMITS = ServerLimits()
STALLING = ServerLimits(stall_timeout_s=0.01)


@asynccontextmanager
async def _client(host: MemoryHost, head: str) -> AsyncIterator[tuple[Connection, MemoryTransport]]:
    """A client that has sent a request without a body; it leaves on exit."""
    connection = Connection(host)
    transport = MemoryTransport(connection)
    connection.connection_made(transport)
    connection.data_received(f"{head} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    yield connection, transport
    if not transport.is_closing():
        connection.eof_received()
    await eventually(lambda: not host.inside)


def _generating(api: FakeApi, limits: ServerLimits) -> MemoryHost:
    """A host whose every request asks for a streamed message."""

    async def answer(request: Request) -> Reply | StreamReply:
        return await api.send("POST", MESSAGES, STREAM, request=request)

    return MemoryHost(answer, limits)


def _following(api: FakeApi, job_id: JobId, *, only_once_gone: bool = False) -> MemoryHost:
    """A host whose every request follows a job."""

    async def answer(request: Request) -> Reply | StreamReply:
        if only_once_gone:
            await request.gone.wait()
        return await api.send("GET", f"/v1/jobs/{job_id}/stream", request=request)

    return MemoryHost(answer, LIMITS)


async def _running_job(api: FakeApi) -> JobId:
    job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
    api.start(job["id"])
    api.publish(job["id"], *ANSWER[:2])
    return JobId(job["id"])


def test_discarded_stream_of_a_job_closes_its_items() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            assert api.broker.items.followers == 1
            await discard(reply, limits=LIMITS, logger=structlog.stdlib.get_logger())
            assert api.broker.items.followers == 0
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_head_of_a_running_job_leaves_no_reader() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            host = _following(api, await _running_job(api))
            async with _client(host, "HEAD /stream") as (_, transport):
                await eventually(lambda: transport.sent.endswith(b"\r\n\r\n"))
                assert b"text/event-stream" in transport.sent
                assert api.broker.items.followers == 0

    asyncio.run(scenario())


def test_client_that_leaves_before_its_stream_begins_leaves_no_reader() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            host = _following(api, await _running_job(api), only_once_gone=True)
            async with _client(host, "GET /stream") as (connection, _):
                await eventually(lambda: bool(host.seen))
                connection.eof_received()
            assert api.broker.items.followers == 0

    asyncio.run(scenario())


def test_client_that_stops_reading_leaves_no_reader() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            host = _generating(api, STALLING)
            async with _client(host, "POST /stream") as (connection, transport):
                job_id = await api.only_job()
                await eventually(lambda: b"message_start" in transport.sent)
                connection.pause_writing()
                # The cut connection cancels the stream while it is being closed.
                api.publish(job_id, *ANSWER[:2])
                await eventually(lambda: not host.inside)
            assert api.broker.items.followers == 0
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_client_that_leaves_behind_the_last_piece_is_no_reader_any_more() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(disconnect_grace_s=1)
            host = _generating(api, LIMITS)
            async with _client(host, "POST /stream") as (connection, transport):
                job_id = await api.only_job()
                await eventually(lambda: b"message_start" in transport.sent)
                connection.pause_writing()
                api.publish(job_id, *ANSWER)
                await eventually(
                    lambda: any(one.pipe.under_way_bytes > 0 for one in host.exchanges.values())
                )
                assert api.app.connections.state(job_id) is Readership.READING
            assert api.app.connections.state(job_id) is Readership.LOST

    asyncio.run(scenario())
