"""Models, health and the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import cache
from typing import Any

import anthropic.types
import jsonschema_rs
import openai.types
import pytest
from pydantic import TypeAdapter

from api.http.messages import UNIDENTIFIED, Reply, Request
from api.operate.openapi import openapi_document
from api.operations import OPERATIONS, openapi
from domain.chat.items import Finished, Text
from domain.events.model import ModelLoaded, ModelLoadFailed
from domain.model.registry import ModelEntry, ModelFiles, ModelRegistry
from domain.values import Priority, SamplingWish, StopReason, StreamName, Usage, WorkerId
from tests.support.builders.api import CARD, REGISTRY, FakeApi, fake_api
from tests.support.builders.job_events import draft
from tests.support.polling import eventually

FILES = ModelFiles(
    directory="/models/other",
    size_bytes=7,
    context_length=512,
    written_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def _load_model(api: FakeApi) -> None:
    loaded = ModelLoaded(
        worker=WorkerId("w1"),
        model=CARD.id,
        fingerprint=CARD.fingerprint,
        context_length=CARD.context_length,
        description=CARD.description,
        created_at=CARD.created_at,
        load_ms=1.0,
    )
    api.log.append(StreamName("model-demo"), [draft(loaded)], expected_version=0)


def test_models_fit_both_clients_and_have_their_card() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.worker_is("ready")
            page = await api.json("GET", "/v1/models?limit=1000")
            assert [model["id"] for model in page["data"]] == ["demo", "claude-demo"]
            assert (page["has_more"], page["first_id"], page["last_id"]) == (
                False, "demo", "claude-demo",
            )  # fmt: skip
            for model in page["data"]:
                anthropic.types.ModelInfo.model_validate_json(json.dumps(model))
                openai.types.Model.model_validate_json(json.dumps(model))
            one = await api.json("GET", "/v1/models/demo")
            assert one["description"] == CARD.description
            assert one["context_length"] == 2048
            assert one["created_at"] == "2026-01-02T03:04:05Z"

    asyncio.run(scenario())


def test_a_client_of_anthropic_sees_names_for_its_picker() -> None:
    registry = ModelRegistry(
        [ModelEntry(name="notes", source="org/Notes")], following=("claude-*",)
    )

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(registry=lambda: registry)
            headers = {"anthropic-version": "2023-06-01"}
            reply = await api.send("GET", "/v1/models?limit=1000", headers=headers)
            assert isinstance(reply, Reply)
            models = json.loads(reply.body)["data"]
            assert [model["id"] for model in models if "notes" in model["id"]] == [
                "notes", "claude-notes",
            ]  # fmt: skip
            listed = (await api.json("GET", "/v1/models"))["data"]
            assert "claude-notes" not in [model["id"] for model in listed]
            assert registry.bind("claude-notes") == "notes"
            assert registry.bind("claude-other") is None

    asyncio.run(scenario())


def test_a_model_states_what_requests_may_ask_of_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.worker_is("ready")
            one = await api.json("GET", "/v1/models/demo")
            model = anthropic.types.ModelInfo.model_validate_json(json.dumps(one))
            assert model.capabilities is not None
            assert model.capabilities.structured_outputs.supported
            assert not model.capabilities.image_input.supported
            assert not model.capabilities.thinking.types.between_tools.supported

    asyncio.run(scenario())


def test_a_model_states_what_the_engine_does_with_it_and_why_not() -> None:
    limit = {"degree": "no", "why": "states cannot take tokens back"}

    async def scenario() -> None:
        async with fake_api() as api:
            unknown = await api.json("GET", "/v1/models/demo")
            assert unknown["capabilities"]["engine"] is None
            api.worker_is("ready")
            engine = (await api.json("GET", "/v1/models/demo"))["capabilities"]["engine"]
            assert engine["speculation"] == limit | {"supported": False}
            assert engine["prefix_cache"] == {"supported": True, "degree": "yes", "why": ""}
            (demo,) = (await api.json("GET", "/admin/models"))["data"]
            assert demo["abilities"]["speculation"] == limit

    asyncio.run(scenario())


def test_models_are_known_from_the_log_while_no_worker_is_alive() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            (unknown, _) = (await api.json("GET", "/v1/models"))["data"]
            assert (unknown["state"], unknown["context_length"]) == ("missing", None)
            _load_model(api)
            api.broker.down = True
            page = await api.json("GET", "/v1/models")
            assert [model["id"] for model in page["data"]] == ["demo", "claude-demo"]
            assert page["data"][0]["description"] == CARD.description

    asyncio.run(scenario())


def test_operators_see_every_registered_model_and_the_loaded_one_first() -> None:
    other = ModelEntry(name="other", source="org/Other", sampling=SamplingWish(temperature=0.2))

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(
                registry=lambda: ModelRegistry([other, *REGISTRY.entries()], following=("my-*",)),
                inspect_model=lambda entry: FILES if entry is other else None,
            )
            api.worker_is("ready")
            page = await api.json("GET", "/admin/models")
            demo, listed = page["data"]
            assert (demo["name"], demo["state"], demo["aliases"]) == (
                "demo", "loaded", ["claude-demo"],
            )  # fmt: skip
            assert (demo["digest"], demo["context_length"]) == ("f", 2048)
            assert (listed["name"], listed["state"], listed["size_bytes"]) == (
                "other", "available", 7,
            )  # fmt: skip
            assert listed["sampling"]["temperature"] == 0.2
            assert page["follow"] == ["my-*"]
            names = [model["id"] for model in (await api.json("GET", "/v1/models"))["data"]]
            assert names == ["demo", "claude-demo", "other"]
            assert (await api.json("GET", "/v1/models/claude-demo"))["state"] == "loaded"

    asyncio.run(scenario())


def test_a_load_that_failed_shows_why_until_the_next_load() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(inspect_model=lambda _: FILES)
            failed = ModelLoadFailed(worker=WorkerId("w1"), model="demo", message="no memory")
            api.log.append(StreamName("w1"), [draft(failed)], expected_version=0)
            (model,) = (await api.json("GET", "/admin/models"))["data"]
            assert (model["state"], model["failure"]) == ("failed", "no memory")
            own = Request(id="req-1", method="GET", path="/", caller=UNIDENTIFIED)
            shown = await api.send("GET", "/admin/models", request=own)
            assert isinstance(shown, Reply)
            (model,) = json.loads(shown.body)["data"]
            assert (model["source"], model["directory"]) == ("demo", None)
            assert (model["state"], model["failure"]) == ("failed", "its last load failed")
            _load_model(api)
            (model,) = (await api.json("GET", "/admin/models"))["data"]
            assert (model["state"], model["failure"]) == ("available", None)

    asyncio.run(scenario())


def test_unknown_model_is_404_in_the_dialect_of_the_header() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            theirs = await api.send("GET", "/v1/models/x")
            ours = await api.send("GET", "/v1/models/x", headers={"anthropic-version": "1"})
            assert isinstance(theirs, Reply)
            assert isinstance(ours, Reply)
            assert theirs.status == ours.status == 404
            assert json.loads(theirs.body)["error"]["code"] == "model_not_found"
            assert "there is: demo" in json.loads(theirs.body)["error"]["message"]
            assert json.loads(ours.body)["type"] == "error"

    asyncio.run(scenario())


def test_readiness_names_the_unavailable_part() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            assert (await api.json("GET", "/health/live"))["status"] == "ok"
            missing = await api.json("GET", "/health/ready", status=503)
            assert missing["status"] == "unavailable"
            assert missing["reasons"] == ["model: no worker with a model is alive"]
            others = ("log", "broker", "memory", "disk", "admission")
            assert [missing["checks"][name] for name in others] == ["ok"] * 5
            api.worker_is("loading")
            loading = await api.json("GET", "/health/ready", status=503)
            assert loading["checks"]["model"] == "a worker is loading the model"
            api.worker_is("ready")
            assert (await api.json("GET", "/health/ready"))["status"] == "ok"
            api.broker.down = True
            await api.json("GET", "/health/ready", status=503)
            startup = await api.json("GET", "/health/startup", status=503)
            assert startup["checks"] == {"log": "ok", "broker": "the broker is down"}
            assert (await api.json("GET", "/health/live"))["status"] == "ok"

    asyncio.run(scenario())


def test_root_has_the_name_and_the_version() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            root = await api.json("GET", "/")
            assert (root["name"], root["version"], root["model"]) == ("semantic", "1.2.3", "demo")
            assert "Ollama is running" in json.dumps(root)

    asyncio.run(scenario())


def test_root_leads_a_browser_to_the_page() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            headers = {"accept": "text/html,*/*;q=0.8"}
            reply = await api.send("GET", "/", headers=headers)
            assert (reply.status, reply.headers["location"]) == (307, "ui")

    asyncio.run(scenario())


def test_replies_conform_to_the_document() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.worker_is("ready")
            body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
            job = await _checked(api, "POST", "/v1/jobs", {"prompt": "hi"})
            for target in ("/v1/messages", "/v1/chat/completions"):
                answering = asyncio.create_task(_checked(api, "POST", target, body))
                waiting = await eventually(
                    lambda: api.broker.queue.waiting(Priority.INTERACTIVE),
                    lambda jobs: len(jobs) > 1,
                )
                job_id = max(waiting)
                api.broker.queue.remove(job_id, Priority.INTERACTIVE)
                api.publish(
                    job_id,
                    Text(text="x", ids=(1,)),
                    Finished(stop_reason=StopReason.END_TURN, usage=Usage()),
                )
                await answering
            await _checked(api, "GET", "/v1/models")
            await _checked(api, "GET", "/admin/models")
            await _checked(api, "GET", "/v1/models/{model_id}", model_id="demo")
            await _checked(api, "GET", "/v1/models/{model_id}", model_id="x")
            await _checked(api, "GET", "/v1/jobs")
            await _checked(api, "GET", "/v1/jobs?limit=x")
            await _checked(api, "POST", "/v1/jobs", {"prompt": 5})
            await _checked(api, "GET", "/v1/jobs/{job_id}", job_id=job["id"])
            await _checked(api, "GET", "/v1/jobs/{job_id}", job_id="job-0")
            await _checked(api, "POST", "/v1/jobs/{job_id}/cancel", job_id=job["id"])
            for plain in ("/v1/events", "/health/live", "/health/startup", "/openapi.json", "/"):
                await _checked(api, "GET", plain)
            await _checked(api, "GET", "/health/ready")
            api.broker.down = True
            await _checked(api, "GET", "/health/ready")
            await _checked(api, "POST", "/v1/messages", body)

    asyncio.run(scenario())


@cache
def _document() -> dict[str, Any]:
    """Return the document; a build takes half a second."""
    return openapi_document(OPERATIONS, "1")


async def _checked(api: FakeApi, method: str, pattern: str, body: Any = None, **params: str) -> Any:
    """Send a request and validate its reply against the document."""
    reply = await api.send(method, pattern.format(**params), body)
    assert isinstance(reply, Reply)
    document = _document()
    operation = document["paths"][pattern.partition("?")[0]][method.lower()]
    content = operation["responses"][str(reply.status)]["content"]
    schema = content[reply.content_type]["schema"] | {"components": document["components"]}
    value = json.loads(reply.body)
    jsonschema_rs.Draft202012Validator(schema).validate(value)
    return value


def test_many_requests_for_the_document_build_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One build takes half a second of a processor; 1,800 requests held the service for minutes."""
    builds, build = list[None](), TypeAdapter.json_schemas

    def count(*arguments: Any, **options: Any) -> Any:
        builds.append(None)
        return build(*arguments, **options)

    monkeypatch.setattr(TypeAdapter, "json_schemas", count)

    async def scenario() -> None:
        async with fake_api() as api:
            app, request = api.app, Request(id="r", method="GET", path="/")
            replies = await asyncio.gather(*(openapi(app, request) for _ in range(4)))
            (body,) = {reply.body for reply in replies}
            assert json.loads(body)["openapi"] == "3.1.0"

    asyncio.run(scenario())
    assert len(builds) == 1


def test_every_reference_in_the_document_is_defined() -> None:
    document = _document()
    names = document["components"]["schemas"]
    references = set(_references(document))
    assert references
    assert {one.removeprefix("#/components/schemas/") for one in references} <= set(names)
    operation_ids = [operation.id for operation in OPERATIONS]
    assert len(set(operation_ids)) == len(operation_ids)


def test_every_pattern_of_a_parameter_covers_the_whole_value() -> None:
    patterns = [
        parameter.schema["pattern"]
        for operation in OPERATIONS
        for parameter in operation.parameters
        if "pattern" in parameter.schema
    ]
    assert len(patterns) > 5
    assert [one for one in patterns if not (one.startswith("^") and one.endswith("$"))] == []


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [one for child in node.values() for one in _references(child)]
    if isinstance(node, list):
        return [one for child in node for one in _references(child)]
    return []
