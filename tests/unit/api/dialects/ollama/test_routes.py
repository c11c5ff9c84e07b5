"""Ollama's API on fake ports: from a body to its lines, and every way an answer can end early."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from ollama import ChatResponse, GenerateResponse, ListResponse, ProcessResponse, ShowResponse

from api.errors import TransportError, error_reply
from api.http.messages import Caller, Dialect, Reply, StreamReply
from api.operations import RouteTable, routes
from domain.chat.items import Failed, Finished, Started
from domain.chat.request import ChatRequest
from domain.model.registry import ModelEntry, ModelFiles, ModelKind, ModelRegistry
from domain.values import JobStatus, StopReason, Usage
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api, first_piece, leave, pieces_of
from tests.support.builders.generation_requests import ANSWER, any_request, status_of
from tests.support.polling import eventually

CHAT, GENERATE = "/api/chat", "/api/generate"
BODY: dict[str, Any] = {"model": "demo:latest", "messages": [{"role": "user", "content": "hi"}]}
PROMPT: dict[str, Any] = {"model": "demo:latest", "prompt": "hi"}
BOTH = pytest.mark.parametrize(("path", "body"), [(CHAT, BODY), (GENERATE, PROMPT)])
FILES = ModelFiles(
    directory="/models/demo",
    size_bytes=5,
    context_length=4096,
    written_at=datetime(2026, 1, 2, tzinfo=UTC),
    family="qwen3",
)
MODELS = ModelRegistry(
    [
        ModelEntry(name="demo", source="semantic-demo", aliases=("small",)),
        ModelEntry(name="notes", source="/models/notes", kind=ModelKind.EMBEDDING),
    ]
)


def lines_in(stream: bytes) -> list[dict[str, Any]]:
    assert stream.endswith(b"\n")
    return [json.loads(line) for line in stream.decode().splitlines()]


@BOTH
def test_an_answer_is_a_stream_of_lines_unless_it_is_forbidden(
    path: str, body: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.worker_is("ready")
            reply = await api.send("POST", path, body)
            assert isinstance(reply, StreamReply)
            assert reply.content_type == "application/x-ndjson"
            job_id = await api.only_job()
            assert reply.headers["x-semantic-job"] == job_id
            api.publish(job_id, *ANSWER)
            first, last = lines_in(await pieces_of(reply))
            assert first["model"] == "demo"
            assert "Hello" in json.dumps(first)
            assert (last["done_reason"], last["prompt_eval_count"]) == ("stop", 5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "shape", "protocol"),
    [
        (CHAT, BODY, ChatResponse, "ollama-chat"),
        (GENERATE, PROMPT, GenerateResponse, "ollama-generate"),
    ],
)
def test_a_whole_answer_fits_the_clients_types(
    path: str, body: dict[str, Any], shape: Any, protocol: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.json("POST", path, body | {"stream": False}))
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER)
            reply = await waiting
            shape.model_validate(reply)
            assert "Hello" in json.dumps(reply)
            assert reply["done_reason"] == "stop"
            parts = ("load_duration", "prompt_eval_duration", "eval_duration")
            assert sum(reply[name] for name in parts) <= reply["total_duration"]
            submitted = api.log.views.rows[job_id].submitted
            assert (submitted.protocol, submitted.model) == (protocol, "demo")

    asyncio.run(scenario())


def test_a_load_is_a_job_without_an_answer() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            waiting = asyncio.create_task(api.json("POST", GENERATE, {"model": "demo"}))
            job_id = await api.only_job()
            request = ChatRequest.from_bytes(
                api.log.get(api.log.views.rows[job_id].submitted.request)
            )
            assert request.max_tokens == 0
            ending = Finished(stop_reason=StopReason.MAX_TOKENS, usage=Usage(prompt_tokens=3))
            api.publish(job_id, Started(prompt_tokens=3, cached_tokens=0), ending)
            reply = await waiting
            assert (reply["done_reason"], reply["response"]) == ("load", "")

    asyncio.run(scenario())


def test_a_silent_stream_has_lines_without_output() -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.01) as api:
            reply = await api.send("POST", CHAT, BODY)
            assert await first_piece(reply) == b""
            ping = json.loads(await first_piece(reply))
            assert ping["message"] == {"role": "assistant", "content": ""}
            assert not ping["done"]
            await leave(reply)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@BOTH
def test_client_that_leaves_cancels_its_job(
    path: str, body: dict[str, Any], *, stream: bool
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            sent = body | {"stream": stream}
            answering = asyncio.create_task(api.send("POST", path, sent, request=request))
            job_id = await api.only_job()
            request.gone.set()
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)
            (asked,) = api.log.read_all(types=["JobCancelRequested"])
            assert asked.data == {"reason": "client_gone"}
            reply = await answering
            if isinstance(reply, StreamReply):
                assert await pieces_of(reply) == b""

    asyncio.run(scenario())


def test_end_of_the_process_is_a_last_line() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            request = any_request()
            reply = await api.send("POST", CHAT, BODY, request=request)
            job_id = await api.only_job()
            request.ending.set()
            (line,) = lines_in(await pieces_of(reply))
            assert list(line) == ["error"]
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())


def test_a_failure_before_the_first_line_is_a_status() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(opening_s=60.0)
            waiting = asyncio.create_task(api.send("POST", CHAT, BODY))
            failed = Failed(error="invalid_request", message="no", retryable=False)
            api.publish(await api.only_job(), failed)
            reply = await waiting
            assert isinstance(reply, Reply)
            assert (reply.status, json.loads(reply.body)) == (400, {"error": "no"})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        (CHAT, {"model": "demo", "messages": [{"role": "x"}]}, 400, "messages.0.role"),
        (CHAT, {"messages": []}, 400, "model"),
        (GENERATE, {"model": "absent", "prompt": "hi"}, 404, "absent"),
        (CHAT, {"model": "notes", "messages": []}, 400, "notes"),
        ("/api/embed", {"model": "demo", "input": "a"}, 400, "demo"),
        ("/api/embed", {"model": "notes"}, 400, "input"),
        ("/api/show", {"model": "absent"}, 404, "absent"),
        ("/api/show", {"verbose": True}, 400, "model"),
    ],
    ids=str,
)
def test_an_error_is_one_text(path: str, body: dict[str, Any], status: int, named: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(registry=lambda: MODELS)
            reply = await api.send("POST", path, body)
            assert isinstance(reply, Reply)
            assert reply.content_type == "application/json"
            error = json.loads(reply.body)
            assert (reply.status, list(error)) == (status, ["error"])
            assert named in error["error"]

    asyncio.run(scenario())


def listing(api: FakeApi) -> None:
    api.worker_is("ready")
    api.use(registry=lambda: MODELS, inspect_model=lambda _: FILES)


def test_models_are_listed_under_all_their_names() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            listing(api)
            tags = await api.json("GET", "/api/tags")
            ListResponse.model_validate(tags)
            demo, small, notes = tags["models"]
            assert [demo["name"], small["model"], notes["name"]] == ["demo", "small", "notes"]
            assert demo["details"]["family"] == "qwen3"
            assert demo["digest"] == small["digest"] != notes["digest"]
            assert len(demo["digest"]) == 64
            assert demo["capabilities"] == ["completion", "tools", "thinking"]
            assert notes["capabilities"] == ["embedding"]
            loaded = await api.json("GET", "/api/ps")
            (one,) = ProcessResponse.model_validate(loaded).models
            assert (one.name, one.size_vram, one.context_length) == ("demo", 5, 2048)

    asyncio.run(scenario())


@pytest.mark.parametrize("named", [{"model": "demo"}, {"model": "small:latest"}, {"name": "demo"}])
def test_a_model_is_shown_by_each_of_its_names(named: dict[str, str]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            listing(api)
            shown = await api.json("POST", "/api/show", named)
            model = ShowResponse.model_validate(shown)
            assert model.capabilities == ["completion", "tools", "thinking"]
            assert model.modelinfo == {
                "general.architecture": "qwen3",
                "general.basename": "demo",
                "qwen3.context_length": 2048,
            }

    asyncio.run(scenario())


def test_the_version_is_that_of_the_api() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            version = (await api.json("GET", "/api/version"))["version"]
            assert [part.isdigit() for part in version.split(".")] == [True] * 3

    asyncio.run(scenario())


@pytest.mark.parametrize("scope", [KeyScope.READ, KeyScope.OWN])
def test_a_key_needs_the_scope_of_the_route(scope: KeyScope) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            listing(api)
            request = replace(any_request(), caller=Caller(name="k", scope=scope, is_alone=False))
            shown = await api.send("POST", "/api/show", {"model": "demo"}, request=request)
            assert shown.status == 200
            refused = await api.send("POST", CHAT, {"model": "x"}, request=request)
            assert isinstance(refused, Reply)
            assert refused.status == (403 if scope is KeyScope.READ else 404)
            assert list(json.loads(refused.body)) == ["error"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "command"),
    [
        ("POST", "/api/pull", "semantic models pull NAME"),
        ("POST", "/api/create", "semantic models add NAME SOURCE"),
        ("POST", "/api/copy", "--alias"),
        ("DELETE", "/api/delete", "semantic models rm NAME"),
        ("POST", "/api/push", "semantic models ls"),
        ("POST", "/api/blobs/sha256:00", "semantic models add"),
    ],
)
def test_the_management_of_models_names_its_command(method: str, path: str, command: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            table = RouteTable(routes(api.app))
            with pytest.raises(TransportError) as refused:
                table.unrouted(method, path)
            reply = error_reply(refused.value, Dialect.OLLAMA, "req-1")
            assert reply.status == 501
            assert command in json.loads(reply.body)["error"]
            with pytest.raises(TransportError) as absent:
                table.unrouted(method, "/api/nothing")
            assert absent.value.status == 404
            assert "/api/chat, /api/embed" in absent.value.message

    asyncio.run(scenario())
