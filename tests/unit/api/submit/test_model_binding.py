"""Which model a request is bound to, and what happens where no worker has it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.http.messages import Reply, StreamReply
from domain.engine.workers import WorkerPulse
from domain.model.registry import ModelEntry, ModelRegistry
from domain.values import JobId, Priority, WorkerId
from tests.support.builders.api import CARD, FakeApi, fake_api, leave
from tests.support.builders.generation_requests import ANSWER
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

STRICT = ModelRegistry(
    [
        ModelEntry(name="demo", source="semantic-demo", aliases=("small",)),
        ModelEntry(name="night", source="/models/night"),
    ]
)
USER = {"role": "user", "content": "hi"}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 9, "messages": [USER]},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/jobs": {"prompt": "hi"},
}
#: Paths whose client waits for the answer.
WAITING = [path for path in PATHS if path != "/v1/jobs"]


def strict(api: FakeApi, *, target: str | None = None, state: str = "ready") -> None:
    """Know two models and no other name; have a worker with or on its way to ``target``."""
    api.use(registry=lambda: STRICT)
    if target is not None:
        pulse = WorkerPulse(worker=WorkerId("w1"), pid=1, state=state, model=CARD, target=target)
        api.broker.pulses.beat(pulse)


async def accept(api: FakeApi, model: str | None) -> dict[str, Any]:
    body = PATHS["/v1/jobs"] | ({} if model is None else {"model": model})
    return dict(await api.json("POST", "/v1/jobs", body, status=202))


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("demo", "demo"),
        ("small", "demo"),
        ("/models/night", "night"),
        ("claude-haiku-4-5", None),
        ("o3-mini", None),
        (None, None),
    ],
)
def test_name_binds_at_acceptance(name: str | None, bound: str | None) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api)
            job = await accept(api, name)
            assert (job["model"], job["bound_model"]) == (name or "demo", bound)
            (event,) = api.log.read_all()
            assert (event.data["bound_model"], event.data["waits_for_model"]) == (bound, True)
            assert api.broker.queue.waiting(Priority.INTERACTIVE, bound) == [job["id"]]

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_unknown_name_is_refused_with_the_names_that_exist(path: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api)
            reply = await api.send("POST", path, PATHS[path] | {"model": "nothing"})
            assert isinstance(reply, Reply)
            assert reply.status == 404
            assert b"demo, night" in reply.body
            assert not api.log.views.rows

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", WAITING)
def test_waiting_client_is_refused_where_no_worker_has_the_model(
    path: str, *, stream: bool
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api, target="demo")
            body = PATHS[path] | {"model": "night", "stream": stream}
            reply = await api.send("POST", path, body)
            assert isinstance(reply, Reply)
            assert reply.status == 409
            assert b"semantic models swap night" in reply.body
            assert b"demo is" in reply.body
            assert reply.headers["x-should-retry"] == "false"
            assert not api.log.views.rows

    asyncio.run(scenario())


@pytest.mark.parametrize("state", ["loading", "swapping", "unloaded"])
def test_waiting_client_waits_while_a_worker_is_on_its_way_to_the_model(state: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api, target="night", state=state)
            body = PATHS["/v1/messages"] | {"model": "night", "stream": True}
            reply = await api.send("POST", "/v1/messages", body)
            assert isinstance(reply, StreamReply)
            await leave(reply)

    asyncio.run(scenario())


def test_waiting_client_waits_while_no_worker_is_known() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api)
            body = PATHS["/v1/messages"] | {"model": "night", "stream": True}
            reply = await api.send("POST", "/v1/messages", body)
            assert isinstance(reply, StreamReply)
            await leave(reply)

    asyncio.run(scenario())


def test_async_job_waits_for_its_model_and_shows_it() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.01) as api:
            strict(api, target="demo")
            job = await accept(api, "night")
            assert (job["status"], job["waiting_for"]) == ("queued", "model")
            (listed,) = (await api.json("GET", "/v1/jobs"))["data"]
            assert (listed["waiting_for"], listed["bound_model"]) == ("model", "night")
            assert listed["queue_position"] is None
            reply = await api.send("GET", f"/v1/jobs/{job['id']}/stream")
            assert isinstance(reply, StreamReply)
            seen: list[dict[str, Any]] = []
            while not seen:
                seen = [event.json for event in events_in(await anext(reply.pieces))]
            assert (seen[0]["waiting_for"], seen[0]["model"]) == ("model", "night")
            await leave(reply)
            # It holds no place of a job that can run.
            other = await accept(api, "demo")
            assert (other["waiting_for"], other["queue_position"]) == ("place", 0)
            assert api.take() == other["id"]

    asyncio.run(scenario())


def test_repeat_of_a_waiting_job_returns_its_state() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api, target="demo")
            key = {"idempotency-key": "k"}
            body = PATHS["/v1/jobs"] | {"model": "night"}
            first, second = [
                await api.send("POST", "/v1/jobs", body, headers=key) for _ in range(2)
            ]
            assert isinstance(first, Reply)
            assert isinstance(second, Reply)
            assert second.status == 202
            assert json.loads(second.body)["id"] == json.loads(first.body)["id"]
            assert json.loads(second.body)["waiting_for"] == "model"

    asyncio.run(scenario())


def test_waiting_client_never_joins_a_waiting_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api)
            body = PATHS["/v1/messages"] | {"model": "night", "stream": True}
            for headers in ({"idempotency-key": "k"}, {"x-stainless-retry-count": "1"}):
                api.broker.pulses.fade()
                api.app.clock.advance(1)  # type: ignore[attr-defined]  # a fake clock
                first = await api.send("POST", "/v1/messages", body, headers=headers)
                assert isinstance(first, StreamReply)
                strict(api, target="demo")
                api.app.clock.advance(1)  # type: ignore[attr-defined]  # a fake clock
                again = await api.send("POST", "/v1/messages", body, headers=headers)
                assert isinstance(again, Reply)
                assert again.status == 409
                assert b"model_not_loaded" in again.body or b"is not loaded" in again.body
                await leave(first)

    asyncio.run(scenario())


def test_equal_request_of_another_binding_gets_a_job_of_its_own() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = PATHS["/v1/messages"] | {"model": "claude-x", "stream": True}
            retry = {"x-stainless-retry-count": "1"}
            first = await api.send("POST", "/v1/messages", body, headers=retry)
            bound = ModelRegistry([ModelEntry(name="claude-x", source="x")])
            api.use(registry=lambda: bound)
            second = await api.send("POST", "/v1/messages", body, headers=retry)
            assert len(api.log.views.rows) == 2
            for reply in (first, second):
                await leave(reply)

    asyncio.run(scenario())


def test_agent_without_a_model_follows_the_loaded_one() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api, target="demo")
            agent = await api.json("POST", "/v1/agents", {}, status=201)
            path = f"/v1/agents/{agent['id']}/generate"
            await api.send("POST", path, {"prompt": "hi"})
            (job,) = api.log.views.rows.values()
            assert job.submitted.bound_model is None
            waiting = await api.json("POST", "/v1/agents", {"model": "night"}, status=201)
            path = f"/v1/agents/{waiting['id']}/generate"
            streamed = await api.send("POST", path, {"prompt": "hi", "stream": True})
            assert isinstance(streamed, Reply)
            assert streamed.status == 409
            await api.send("POST", path, {"prompt": "hi"})
            parked = list(api.log.views.rows.values())[-1]
            assert (parked.submitted.bound_model, parked.submitted.waits_for_model) == (
                "night",
                True,
            )

    asyncio.run(scenario())


def test_reply_names_the_model_that_answered() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            strict(api, target="demo")
            body = PATHS["/v1/messages"] | {"model": "small"}
            asking = asyncio.create_task(api.send("POST", "/v1/messages", body))
            (job_id,) = await eventually(lambda: list(api.log.views.rows))
            await eventually(
                lambda: JobId(job_id) in api.broker.queue.waiting(Priority.INTERACTIVE, "demo")
            )
            api.start(JobId(job_id))
            api.publish(JobId(job_id), *ANSWER)
            reply = await asking
            assert isinstance(reply, Reply)
            assert json.loads(reply.body)["model"] == "small"
            assert reply.headers["x-semantic-model"] == "demo"

    asyncio.run(scenario())
