"""``/v1/embeddings`` on fake ports: a job of its own kind, bound to an embedding model."""

from __future__ import annotations

import asyncio
import base64
from array import array
from typing import Any

import pytest

from api.http.messages import Reply
from domain.chat.embedding import EmbeddingInputs, Vectors
from domain.chat.items import Finished, Started
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.job.commands import CompleteAttempt
from domain.job.ports import WorkerPulse
from domain.model.registry import ModelEntry, ModelKind, ModelRegistry
from domain.usecases.jobs.commit import commit
from domain.values import (
    Digest,
    JobId,
    Priority,
    StopReason,
    Timings,
    Usage,
    WorkerId,
    digest_of,
)
from tests.support.builders.api import CARD, FakeApi, fake_api

MODELS = ModelRegistry(
    [
        ModelEntry(name="demo", source="semantic-demo"),
        ModelEntry(name="notes", source="/models/notes", kind=ModelKind.EMBEDDING),
    ]
)
PATH = "/v1/embeddings"
BODY: dict[str, Any] = {"model": "notes", "input": ["a", "b"]}
VECTORS = [[0.0, 1.0], [0.5, -0.5]]
USAGE = Usage(prompt_tokens=5)


def _serve(api: FakeApi, *embeds: str) -> None:
    api.use(registry=lambda: MODELS)
    pulse = WorkerPulse(
        worker=WorkerId("w1"), pid=1, state="ready", model=CARD, target="demo", embeds=embeds
    )
    api.broker.pulses.beat(pulse)


def _complete(api: FakeApi, job_id: JobId) -> None:
    assert api.broker.queue.take(Priority.INTERACTIVE, model="notes") == job_id
    api.begin(job_id)
    data = b"".join(array("f", vector).tobytes() for vector in VECTORS)
    vectors = Vectors(dimensions=2, data=data)
    payload = StoredAnswer(text="", token_ids=(), vectors=vectors).to_bytes()
    command = CompleteAttempt(
        attempt=1,
        stop_reason=StopReason.END_TURN,
        stop_sequence=None,
        usage=USAGE,
        output=digest_of(payload),
        token_hash="0",
        timings=Timings(),
    )
    payloads = {command.output: payload}
    commit(job_id, command, log=api.log, ids=api.ports.ids, payloads=payloads)
    started = Started(prompt_tokens=5, cached_tokens=0)
    api.publish(job_id, started, Finished(stop_reason=StopReason.END_TURN, usage=USAGE))


async def _answered(api: FakeApi, body: dict[str, Any]) -> dict[str, Any]:
    asking = asyncio.ensure_future(api.json("POST", PATH, body))
    _complete(api, await api.only_job())
    return dict(await asking)


def test_a_request_is_a_job_of_its_own_kind() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            reply = await _answered(api, BODY | {"dimensions": 2, "user": "u"})
            assert [one["embedding"] for one in reply["data"]] == VECTORS
            assert [one["index"] for one in reply["data"]] == [0, 1]
            assert (reply["object"], reply["model"]) == ("list", "notes")
            assert reply["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
            assert api.event_types()[:2] == ["JobSubmitted", "EmbeddingRequested"]
            (view,) = api.log.views.rows.values()
            assert view.bound_model == "notes"
            request = ChatRequest.from_bytes(api.log.get(Digest(view.request)))
            assert request.embedding == EmbeddingInputs(texts=("a", "b"), dimensions=2)
            job = await api.json("GET", f"/v1/jobs/{view.id}")
            assert (job["kind"], job["output"]["embeddings"]) == ("embedding", VECTORS)

    asyncio.run(scenario())


def test_base64_holds_little_endian_floats() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            reply = await _answered(api, BODY | {"encoding_format": "base64"})
            found = [base64.b64decode(one["embedding"]) for one in reply["data"]]
            assert [array("f", one).tolist() for one in found] == VECTORS

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a", ("a",)),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_each_form_of_input_has_its_texts(given: Any, texts: tuple[Any, ...]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            await _answered(api, BODY | {"input": given})
            (view,) = api.log.views.rows.values()
            request = ChatRequest.from_bytes(api.log.get(Digest(view.request)))
            assert request.embedding == EmbeddingInputs(texts=texts)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        (PATH, BODY | {"model": "demo"}, 400, "computes no vectors"),
        (PATH, BODY | {"model": "gpt-4o"}, 404, "notes"),
        (PATH, BODY | {"input": []}, 400, "at least 1 item"),
        (PATH, BODY | {"input": ["a", 1]}, 400, "valid string"),
        (PATH, BODY | {"encoding_format": "hex"}, 400, "base64"),
        (PATH, BODY | {"dimensions": 0}, 400, "greater than or equal to 1"),
        (PATH, {"input": "a"}, 400, "required"),
        ("/v1/completions", {"model": "notes", "prompt": "a"}, 400, "computes vectors"),
        ("/admin/models/notes/load", {}, 400, "computes vectors"),
    ],
)
def test_the_wrong_model_and_the_wrong_input_are_refused(
    path: str, body: dict[str, Any], status: int, why: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            reply = await api.send("POST", path, body)
            assert isinstance(reply, Reply)
            assert (reply.status, why in reply.body.decode()) == (status, True), reply.body
            assert not api.log.views.rows

    asyncio.run(scenario())


def test_a_model_that_no_worker_embeds_with_is_not_loaded() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api)
            reply = await api.send("POST", PATH, BODY)
            assert isinstance(reply, Reply)
            assert reply.status == 409
            assert api.ports.models.is_absent("notes")

    asyncio.run(scenario())
