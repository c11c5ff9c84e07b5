"""Several answers to one request: as many jobs, one reply, and one fate."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from api.http.messages import Reply, StreamReply
from domain.chat.items import Body, Failed, Finished, Started, Text
from domain.chat.request import ChatRequest
from domain.events.job import JobCancelRequested
from domain.job.commit import commit
from domain.job.request_dedup import Readership
from domain.log.codec import decode_recorded
from domain.log.record import Draft
from domain.values import Digest, JobId, JobStatus, StopReason, StreamName, Usage
from tests.support.builders.api import FakeApi, fake_api, first_piece, leave, pieces_of
from tests.support.builders.generation_requests import BODY, CHAT, STREAM, any_request, status_of
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

TEXTS = "/v1/completions"
KEY = {"idempotency-key": "k 1"}
RETRY = {"x-stainless-retry-count": "1"}
THREE = BODY | {"n": 3, "seed": 5, "temperature": 1}
FAILED = Failed(error="engine_failure", message="the model broke", retryable=False)


def _answer(text: str) -> tuple[Body, ...]:
    return (
        Started(prompt_tokens=5, cached_tokens=2),
        Text(text=text, ids=(1,)),
        Finished(
            stop_reason=StopReason.END_TURN,
            usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=3),
        ),
    )


async def _jobs(api: FakeApi, count: int = 3) -> list[JobId]:
    await eventually(lambda: len(api.log.views.rows) == count)
    return sorted(api.log.views.rows)


async def _cancelled(api: FakeApi, jobs: list[JobId]) -> None:
    await eventually(lambda: {status_of(api, one) for one in jobs} == {JobStatus.CANCELLED})


def _asked(api: FakeApi, job_id: JobId) -> ChatRequest:
    return ChatRequest.from_bytes(api.log.get(Digest(api.log.views.rows[job_id].submitted.request)))


def _attached(api: FakeApi) -> int:
    return len(api.log.read_all(types=["JobAttached"]))


def test_answers_are_jobs_of_one_request_and_one_reply() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.send("POST", CHAT, THREE))
            jobs = await _jobs(api)
            for number, job_id in reversed(list(enumerate(jobs))):
                api.publish(job_id, *_answer(f"answer {number}"))
            reply = await waiting
            assert isinstance(reply, Reply)
            whole = ChatCompletion.model_validate_json(reply.body, strict=True)
            assert [choice.index for choice in whole.choices] == [0, 1, 2]
            texts = [choice.message.content for choice in whole.choices]
            assert texts == ["answer 0", "answer 1", "answer 2"]
            assert whole.usage is not None
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 9)
            assert reply.headers["x-semantic-job"] == ", ".join(jobs)
            assert [_asked(api, job_id).sampling.seed for job_id in jobs] == [5, 6, 7]
            assert len({api.log.views.rows[job_id].submitted.asked for job_id in jobs}) == 3
            assert {e.correlation_id for e in api.log.read_all()} == {"req-1"}

    asyncio.run(scenario())


def test_stream_interleaves_answers_and_ends_once() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            reply = await api.send("POST", CHAT, THREE | options)
            jobs = await _jobs(api)
            assert len(events_in(await first_piece(reply))) == 3
            for number in (2, 0, 1):
                api.publish(jobs[number], *_answer(f"answer {number}"))
            *chunks, usage, done = events_in(await pieces_of(reply))
            assert done.data == "[DONE]"
            assert usage.json["usage"]["completion_tokens"] == 9
            texts = {0: "", 1: "", 2: ""}
            for chunk in chunks:
                (choice,) = chunk.json["choices"]
                texts[choice["index"]] += choice["delta"].get("content", "")
            assert texts == {number: f"answer {number}" for number in range(3)}
            states = {api.app.connections.state(job_id) for job_id in jobs}
            assert states == {Readership.DELIVERED}

    asyncio.run(scenario())


def test_prompts_come_before_their_answers_in_order() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"model": "m", "prompt": ["a", "b"], "n": 2, "seed": 1}
            waiting = asyncio.create_task(api.send("POST", TEXTS, body))
            jobs = await _jobs(api, 4)
            for job_id in jobs:
                asked = _asked(api, job_id)
                assert asked.raw is not None
                api.publish(job_id, *_answer(f"{asked.raw.text}{asked.sampling.seed}"))
            reply = await waiting
            assert isinstance(reply, Reply)
            whole = json.loads(reply.body)
            assert [choice["text"] for choice in whole["choices"]] == ["a1", "a2", "b1", "b2"]
            assert whole["usage"]["prompt_tokens"] == 10

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [THREE, THREE | {"stream": True}])
def test_failed_answer_fails_the_request_and_ends_the_others(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.grace_over.set()
            asking = asyncio.create_task(api.send("POST", CHAT, body))
            jobs = await _jobs(api)
            if body.get("stream"):
                reply = await asking
                await first_piece(reply)
            api.publish(jobs[1], _answer("")[0], Text(text="half", ids=(1,)), FAILED)
            reply = await asking
            if isinstance(reply, StreamReply):
                events = events_in(await pieces_of(reply))
                assert events[-1].json["error"]["message"] == "the model broke"
                assert "half" in events[0].data
            else:
                assert reply.status == 500
                assert b"the model broke" in reply.body
            await _cancelled(api, [jobs[0], jobs[2]])

    asyncio.run(scenario())


def test_cancelled_answer_ends_the_request() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.send("POST", CHAT, THREE))
            jobs = await _jobs(api)
            await api.json("POST", f"/v1/jobs/{jobs[2]}/cancel")
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == 409
            api.grace_over.set()
            await _cancelled(api, jobs)

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [THREE, THREE | {"stream": True}])
def test_client_that_leaves_cancels_all_of_them(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            asking = asyncio.create_task(api.send("POST", CHAT, body, request=request))
            jobs = await _jobs(api)
            request.gone.set()
            await _cancelled(api, jobs)
            asked = api.log.read_all(types=["JobCancelRequested"])
            assert {event.data["reason"] for event in asked} == {"client_gone"}
            reply = await asking
            if isinstance(reply, StreamReply):
                await pieces_of(reply)

    asyncio.run(scenario())


# --- all or none ---------------------------------------------------------------------------


def _limit(api: FakeApi, jobs: int) -> None:
    api.use_limits(queue_limit=jobs)


def test_no_answer_is_accepted_without_room_for_all() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _limit(api, 3)
            waits = await api.send("POST", CHAT, STREAM)
            reply = await api.send("POST", CHAT, THREE)
            assert isinstance(reply, Reply)
            assert (reply.status, len(api.log.views.rows)) == (429, 1)
            assert b"1 of 3 jobs, no room for 3" in reply.body
            assert int(reply.headers["retry-after"]) >= 1
            await leave(waits)

    asyncio.run(scenario())


def test_more_answers_than_the_queue_holds_are_a_400() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _limit(api, 2)
            reply = await api.send("POST", CHAT, THREE)
            assert isinstance(reply, Reply)
            assert (reply.status, json.loads(reply.body)["error"]["param"]) == (400, "n")
            assert not api.log.views.rows

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", ["queue", "log"])
def test_failure_of_one_submission_cancels_the_others(trouble: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            drawn = api.app.ids.job_id
            names: list[JobId] = []

            def job_id() -> JobId:
                names.append(drawn())
                # The first id is drawn before it is known that several answers are wanted.
                if len(names) == 4:
                    api.broker.down = trouble == "queue"
                    api.log.unavailable = trouble == "log"
                return names[-1]

            ids = api.app.ids
            ids.job_id = job_id  # type: ignore[method-assign]  # a fake, for this test
            waiting = asyncio.create_task(api.send("POST", CHAT, THREE))
            reply = await waiting
            assert isinstance(reply, Reply)
            assert reply.status == 503
            api.log.unavailable = False
            if trouble == "queue":
                await eventually(lambda: len(api.log.read_all(types=["JobCancelRequested"])) == 3)

    asyncio.run(scenario())


# --- asked again ---------------------------------------------------------------------------


def test_same_key_finds_every_answer_and_another_number_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            replies = [
                await api.send("POST", CHAT, THREE | {"stream": True}, headers=KEY)
                for _ in range(2)
            ]
            jobs = await _jobs(api)
            assert _attached(api) == 3
            assert replies[1].headers["x-semantic-job"] == replies[0].headers["x-semantic-job"]
            assert replies[1].headers["x-semantic-attached"] == "idempotency_key"
            for other in (BODY | {"seed": 5, "temperature": 1}, THREE | {"n": 2}):
                reply = await api.send("POST", CHAT, other, headers=KEY)
                assert isinstance(reply, Reply)
                assert reply.status == 409
            assert await _jobs(api) == jobs
            for reply in replies:
                await leave(reply)

    asyncio.run(scenario())


def test_key_of_an_interrupted_request_is_completed() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            whole = await api.send("POST", CHAT, THREE | {"stream": True}, headers=KEY)
            (first, *_) = await _jobs(api)
            # As if the process had died after the first of them.
            events = [one for one in api.log.read_all() if one.stream == StreamName(first)]
            other = FakeApi()
            draft = Draft(
                event_id=events[0].event_id,
                event=decode_recorded(events[0]),
                correlation_id="req-1",
            )
            other.log.append(events[0].stream, [draft], expected_version=0)
            submission = replace(api.app.job_submission, log=other.log)
            api.use(
                log=other.log, views=other.log.views, payloads=other.log, job_submission=submission
            )
            again = await api.send("POST", CHAT, THREE | {"stream": True}, headers=KEY)
            names = again.headers["x-semantic-job"].split(", ")
            assert names[0] == first
            assert sorted(other.log.views.rows) == sorted(names)
            for reply in (again, whole):
                await leave(reply)
            other.executor.shutdown()

    asyncio.run(scenario())


def test_retry_finds_each_answer_that_was_lost() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(disconnect_grace_s=1)
            request = any_request()
            first = await api.send("POST", CHAT, THREE | {"stream": True}, request=request)
            jobs = await _jobs(api)
            await first_piece(first)
            request.gone.set()
            await leave(first)
            asking = asyncio.create_task(api.send("POST", CHAT, THREE, headers=RETRY))
            await eventually(lambda: _attached(api) == 3)
            for number, job_id in enumerate(jobs):
                api.publish(job_id, *_answer(f"answer {number}"))
            reply = await asking
            assert isinstance(reply, Reply)
            assert reply.headers["x-semantic-job"] == ", ".join(jobs)
            assert await _jobs(api) == jobs

    asyncio.run(scenario())


def test_retry_submits_only_the_answers_that_it_cannot_join() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use_limits(disconnect_grace_s=1)
            request = any_request()
            first = await api.send("POST", CHAT, THREE | {"stream": True}, request=request)
            jobs = await _jobs(api)
            await first_piece(first)
            request.gone.set()
            await leave(first)
            commit(jobs[1], JobCancelRequested(reason="api"), log=api.log, ids=api.app.ids)
            again = await api.send("POST", CHAT, THREE | {"stream": True}, headers=RETRY)
            names = again.headers["x-semantic-job"].split(", ")
            assert (names[0], names[2]) == (jobs[0], jobs[2])
            assert names[1] not in jobs
            await leave(again)

    asyncio.run(scenario())
