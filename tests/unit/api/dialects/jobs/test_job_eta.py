"""Jobs that wait have a place, an estimate and a time to ask again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from api.http.messages import Reply, StreamReply
from api.loops.forecasts import FRESH_S
from domain.chat.items import Finished, Started, Text
from domain.engine.workers import TurnState, WorkerPulse
from domain.events.job import JobCompleted
from domain.job.commit import commit
from domain.values import (
    CacheFigures,
    JobId,
    StopReason,
    Timings,
    Usage,
    WaitingFor,
    WaitingJob,
    WorkerId,
    digest_of,
)
from tests.support.builders.api import CARD, FakeApi, fake_api, first_piece, leave, pieces_of
from tests.support.clients.sse import events_in

#: A job of the pace that ``measured`` leaves: a second to read its prompt, two to answer.
JOB_S = 3.0


def worker_is_ready(api: FakeApi, *waiting: WaitingJob, places: int = 1) -> None:
    turns = TurnState(slots=places, interactive_reserved=0)
    pulse = WorkerPulse(worker=WorkerId("w1"), pid=1, state="ready", model=CARD, turns=turns)
    api.broker.pulses.beat(replace(pulse, waiting=waiting))


async def new_job(api: FakeApi, agent: str | None = None) -> Any:
    body = {"prompt": "hi", "max_tokens": 100} | ({"agent_id": agent} if agent else {})
    return await api.json("POST", "/v1/jobs", body, status=202)


async def measured(api: FakeApi) -> None:
    """Let one job have run: 3 of 5 tokens of its prompt in a second, 10 tokens in two."""
    job_id = JobId((await new_job(api))["id"])
    api.start(job_id)
    output = b"{}"
    command = JobCompleted(
        attempt=1,
        stop_reason=StopReason.END_TURN,
        stop_sequence=None,
        usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=10),
        output=digest_of(output),
        token_hash="0",
        timings=Timings(prefill_ms=1000, decode_ms=2000),
    )
    ids, payloads = api.app.ids, {command.output: output}
    commit(job_id, command, log=api.log, ids=ids, payloads=payloads)
    api.broker.queue.ack(job_id)


def test_waiting_jobs_have_a_place_and_an_estimate_after_the_first_measurement() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            unmeasured = await new_job(api)
            assert (unmeasured["queue_position"], unmeasured["estimate"]) == (0, None)
            await api.json("POST", f"/v1/jobs/{unmeasured['id']}/cancel")
            await measured(api)
            worker_is_ready(api)
            jobs = [await new_job(api, agent) for agent in ("a", "a", "b")]
            # The worker has the first two in its hands and has begun none.
            assert api.take() is not None
            assert api.take() is not None
            places, starts, ends = [], [], []
            for job in jobs:
                shown = await api.json("GET", f"/v1/jobs/{job['id']}")
                places.append(shown["queue_position"])
                starts.append(shown["estimate"]["starts_in_s"])
                ends.append(shown["estimate"]["finishes_in_s"])
            assert places == [0, 2, 1]
            first, last, second = starts
            assert first == 0
            assert 0 < second < last
            assert ends[0] == pytest.approx(JOB_S, rel=0.2)
            listed = await api.json("GET", "/v1/jobs?status=queued")
            assert [job["queue_position"] for job in listed["data"]] == [1, 2, 0]

    asyncio.run(scenario())


def test_running_job_has_an_estimate_and_an_ended_one_has_none() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await measured(api)
            worker_is_ready(api)
            job_id = JobId((await new_job(api))["id"])
            api.start(job_id)
            shown = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (shown["queue_position"], shown["waiting_for"]) == (None, None)
            assert shown["estimate"]["starts_in_s"] is None
            assert shown["estimate"]["finishes_in_s"] == pytest.approx(JOB_S, rel=0.2)
            await api.json("POST", f"/v1/jobs/{job_id}/cancel")
            api.complete(job_id, "x")
            ended = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (ended["queue_position"], ended["estimate"]) == (None, None)

    asyncio.run(scenario())


def test_job_that_waits_in_an_engine_has_a_reason_and_a_position() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.02) as api:
            await measured(api)
            job_id = JobId((await new_job(api))["id"])
            api.start(job_id)
            worker_is_ready(api, WaitingJob(id=job_id, waiting_for=WaitingFor.MEMORY, position=0))
            queued = await new_job(api)
            shown = await api.json("GET", f"/v1/jobs/{job_id}")
            assert (shown["status"], shown["queue_position"]) == ("running", 0)
            assert shown["waiting_for"] == "memory"
            behind = await api.json("GET", f"/v1/jobs/{queued['id']}")
            assert (behind["queue_position"], behind["waiting_for"]) == (1, "place")

            api.publish(job_id, Started(prompt_tokens=5, cached_tokens=2))
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream")
            assert isinstance(reply, StreamReply)
            pieces = [await first_piece(reply) for _ in range(3)]
            progress = events_in(pieces[-1])[0].json
            assert (progress["kind"], progress["total"]) == ("progress", 0)
            assert progress["waiting_for"] == "memory"
            await leave(reply)

    asyncio.run(scenario())


def test_jobs_have_no_estimate_while_no_worker_is_ready() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await measured(api)
            job = await new_job(api)
            assert (job["queue_position"], job["estimate"]) == (0, None)

    asyncio.run(scenario())


def test_retry_after_is_the_estimate_of_a_full_queue_and_of_an_open_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(queue_limit=2)
            await measured(api)
            worker_is_ready(api)
            running = JobId((await new_job(api))["id"])
            api.start(running)
            for _ in range(2):
                reply = await api.send("POST", "/v1/jobs", {"prompt": "hi"})
                assert isinstance(reply, Reply)
                done_s = json.loads(reply.body)["estimate"]["finishes_in_s"]
                assert done_s <= int(reply.headers["retry-after"]) < done_s + 1.1
            refused = await api.send("POST", "/v1/jobs", {"prompt": "hi"})
            assert isinstance(refused, Reply)
            assert (refused.status, refused.headers["retry-after"]) == (429, "3")
            clock: Any = api.app.clock
            clock.advance(FRESH_S + 1.5)
            later = await api.send("POST", "/v1/jobs", {"prompt": "hi"})
            assert isinstance(later, Reply)
            assert later.headers["retry-after"] == "2"

    asyncio.run(scenario())


def test_native_stream_has_the_wait_with_its_pings_until_the_first_item() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.02) as api:
            await measured(api)
            worker_is_ready(api)
            await new_job(api)
            job_id = JobId((await new_job(api))["id"])
            reply = await api.send("GET", f"/v1/jobs/{job_id}/stream")
            assert isinstance(reply, StreamReply)
            assert await first_piece(reply) == b": open\n"
            (event,) = events_in(await first_piece(reply))
            assert (event.id, event.event) == (None, "progress")
            progress = event.json
            assert (progress["phase"], progress["done"], progress["total"]) == ("queued", 0, 1)
            assert 0 < progress["starts_in_s"] < progress["finishes_in_s"]
            api.publish(job_id, Started(prompt_tokens=5, cached_tokens=2), Text(text="x", ids=(1,)))
            while events_in(piece := await first_piece(reply))[-1].event != "text":
                assert b"progress" in piece
            assert await first_piece(reply) == b": ping\n"
            api.publish(job_id, Finished(stop_reason=StopReason.END_TURN, usage=Usage()), first=2)
            assert b"progress" not in await pieces_of(reply)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("full_s", "priority", "is_refused"),
    [(119.0, "interactive", False), (120.0, "batch", False), (120.0, "interactive", True)],
)
def test_full_memory_refuses_interactive_requests_after_a_wait(
    full_s: float,
    priority: str,
    is_refused: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(memory_wait_s=120.0)
            cache = CacheFigures(ram_blocks=1, ram_used_bytes=1, ram_budget_bytes=1, full_s=full_s)
            pulse = WorkerPulse(worker=WorkerId("w1"), pid=1, state="ready", model=CARD)
            api.broker.pulses.beat(replace(pulse, cache=cache))
            if not is_refused:
                await api.json(
                    "POST", "/v1/jobs", {"prompt": "hi", "priority": priority}, status=202
                )
                return
            messages = [{"role": "user", "content": "hi"}]
            body = {"model": "demo", "max_tokens": 5, "messages": messages}
            reply = await api.send("POST", "/v1/messages", body)
            assert isinstance(reply, Reply)
            assert reply.status == 429
            assert int(reply.headers["retry-after"]) >= 1
            assert b"the memory is full" in reply.body
            refused = await api.json("POST", "/v1/chat/completions", body, status=429)
            assert refused["error"]["code"] == "memory_full"

    asyncio.run(scenario())
