"""The trace of a request stands in its job, and in the record of who joined it."""

from __future__ import annotations

import asyncio
import json

import structlog

from api.http.messages import Reply
from domain.log.trace import trace_id_of
from tests.support.builders.api import fake_api, pieces_of
from tests.support.builders.generation_requests import MESSAGES, STREAM, any_request

KEY = {"idempotency-key": "k 1"}


def test_a_job_has_the_trace_of_its_request() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            reply = await api.send("POST", "/v1/jobs", {"prompt": "hi"}, request=request)
            assert isinstance(reply, Reply)
            job = json.loads(reply.body)
            assert job["trace_id"] == request.trace.trace_id
            (submitted,) = api.log.read_all(types=["JobSubmitted"])
            assert submitted.data["trace"] == str(request.trace)
            listed = await api.json("GET", "/v1/jobs")
            assert listed["data"][0]["trace_id"] == request.trace.trace_id

    asyncio.run(scenario())


def test_who_joins_is_recorded_with_its_own_trace() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first, second = any_request(), any_request()
            for request in (first, second):
                await api.send("POST", "/v1/jobs", {"prompt": "x"}, request=request, headers=KEY)
            (joined,) = api.log.read_all(types=["JobAttached"])
            assert joined.data["trace"] == str(second.trace)
            job = await api.json("GET", f"/v1/jobs/{await api.only_job()}")
            assert job["trace_id"] == first.trace.trace_id != second.trace.trace_id

    asyncio.run(scenario())


def test_log_lines_of_a_request_name_its_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            structlog.contextvars.clear_contextvars()
            reply = await api.send("POST", MESSAGES, STREAM)
            job_id = await api.only_job()
            assert structlog.contextvars.get_contextvars()["job_id"] == job_id
            in_thread = await api.app.call(structlog.contextvars.get_contextvars)
            assert in_thread["job_id"] == job_id
            api.start(job_id)
            api.complete(job_id, "done")
            await pieces_of(reply)

    asyncio.run(scenario())


def test_each_line_of_a_batch_has_a_trace_of_its_own() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            params = {"model": "demo", "max_tokens": 4, "messages": []}
            body = {"requests": [{"custom_id": "a", "params": params}]}
            await api.send("POST", "/v1/messages/batches", body, request=request)
            (batch,) = api.log.read_all(types=["BatchSubmitted"])
            assert trace_id_of(batch.data["trace"]) == request.trace.trace_id

    asyncio.run(scenario())
