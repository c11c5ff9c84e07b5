"""``/v1/embeddings`` on fake ports: a job of its own kind, bound to an embedding model."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ollama import EmbedResponse

from api.http.messages import Caller, Reply
from domain.audit.recorded_answers import JobRecords
from domain.chat.embedding import EmbeddingInputs, Vectors
from domain.chat.items import Finished, Started, Text
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.engine.presence import LoadedModels
from domain.engine.workers import WorkerPulse
from domain.errors import LogUnavailable
from domain.events.job import JobCompleted
from domain.job.commit import commit
from domain.job.request_dedup import Readership
from domain.job.state import Job
from domain.model.registry import ModelEntry, ModelKind, ModelRegistry
from domain.values import (
    Digest,
    JobId,
    JobStatus,
    Priority,
    StopReason,
    Timings,
    Usage,
    WorkerId,
    digest_of,
)
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import CARD, FakeApi, fake_api
from tests.support.builders.generation_requests import any_request, status_of
from tests.support.polling import eventually

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


def _complete(api: FakeApi, job_id: JobId, of_texts: Sequence[Sequence[float]] = VECTORS) -> None:
    assert api.broker.queue.take(Priority.INTERACTIVE, model="notes") == job_id
    api.begin(job_id)
    data = b"".join(array("f", vector).tobytes() for vector in of_texts)
    vectors = Vectors(dimensions=2, data=data)
    payload = StoredAnswer(text="", token_ids=(), vectors=vectors).to_bytes()
    command = JobCompleted(
        attempt=1,
        stop_reason=StopReason.END_TURN,
        stop_sequence=None,
        usage=USAGE,
        output=digest_of(payload),
        token_hash="0",
        timings=Timings(),
    )
    payloads = {command.output: payload}
    commit(job_id, command, log=api.log, ids=api.app.ids, payloads=payloads)
    started = Started(prompt_tokens=5, cached_tokens=0)
    api.publish(job_id, started, Finished(stop_reason=StopReason.END_TURN, usage=USAGE))


def _decoded(vectors: list[str]) -> list[list[float]]:
    return [array("f", base64.b64decode(vector)).tolist() for vector in vectors]


def _data(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    return list(json.loads(reply.body)["data"])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize(
    ("fields", "order", "texts"),
    [
        ({}, [2, 0, 1], ["c", "a", "b"]),
        ({"top_n": 2, "return_documents": True}, [2, 0], ["c", "a"]),
        ({"top_n": 9, "return_documents": False}, [2, 0, 1], [None, None, None]),
    ],
)
def test_documents_are_ranked_by_the_cosine_with_the_query(
    path: str, fields: dict[str, Any], order: list[int], texts: list[str | None]
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            body = {"model": "notes", "query": "q", "documents": ["a", {"text": "b"}, "c"]}
            asking = asyncio.ensure_future(api.json("POST", path, body | fields))
            job = await api.only_job()
            _complete(api, job, [[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.6, 0.8]])
            reply = await asking
            results = reply["results"]
            assert [one["index"] for one in results] == order
            scores = [0.0, -1.0, 0.6]
            assert [one["relevance_score"] for one in results] == pytest.approx(
                [scores[index] for index in order]
            )
            assert [one.get("document", {}).get("text") for one in results] == texts
            assert reply["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
            assert (reply["id"], reply["model"]) == (f"rerank-{job}", "notes")

    asyncio.run(scenario())


def _judged(chances: Mapping[str, float]) -> Text:
    top = tuple(Alternative(word.encode(), math.log(one)) for word, one in chances.items())
    token = TokenLogprob(index=0, token=top[0].token, logprob=top[0].logprob, top=top)
    return Text(text="x", ids=(1,), logprobs=(token,))


@pytest.mark.parametrize("last", [{"no": 0.5, "yes": 0.3}, {"perhaps": 0.999}])
def test_a_chat_model_ranks_documents_by_its_share_of_yes(last: dict[str, float]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api)
            body = {"model": "demo", "query": "q", "documents": ["a", "b"]}
            is_ranked = "yes" in last
            status = 200 if is_ranked else 400
            asking = asyncio.ensure_future(api.json("POST", "/v1/rerank", body, status=status))
            prompts = []
            # The first document alone, then all others.
            for chances in ({"yes": 0.1, "no": 0.9}, last):
                job = await eventually(api.take)
                submitted = api.log.views.rows[job].submitted
                prompts.append(ChatRequest.from_bytes(api.log.get(Digest(submitted.request))))
                api.begin(job)
                end = Finished(stop_reason=StopReason.END_TURN, usage=USAGE)
                api.publish(job, Started(prompt_tokens=5, cached_tokens=0), _judged(chances), end)
                api.complete(job, "x")
            reply = await asking
            assert prompts[0].messages[0] == prompts[1].messages[0]
            first, second = (one.messages[1].content for one in prompts)
            assert (first[-1], second[-1], first[:-1]) == ("a", "b", second[:-1])
            if not is_ranked:
                assert "document 1" in reply["error"]["message"]
                return
            assert [one["index"] for one in reply["results"]] == [1, 0]
            scores = [one["relevance_score"] for one in reply["results"]]
            assert scores == pytest.approx([0.375, 0.1])
            assert reply["usage"]["prompt_tokens"] == 10

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"documents": []}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"query": ""}, "query"),
        ({"model": "absent"}, "model"),
        ({"model": "demo", "documents": ["a"] * 129}, "documents"),
    ],
)
def test_ranking_that_cannot_be_made_is_refused(fields: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            body = {"model": "notes", "query": "q", "documents": ["a"]} | fields
            status = 404 if body["model"] == "absent" else 400
            reply = await api.json("POST", "/v1/rerank", body, status=status)
            assert field in json.dumps(reply)

    asyncio.run(scenario())


async def _answered(api: FakeApi, body: dict[str, Any], path: str = PATH) -> dict[str, Any]:
    asking = asyncio.ensure_future(api.json("POST", path, body))
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
            assert view.submitted.bound_model == "notes"
            request = ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))
            assert request.embedding == EmbeddingInputs(texts=("a", "b"), dimensions=2)
            job = await api.json("GET", f"/v1/jobs/{view.id}")
            assert job["kind"] == "embedding"
            assert _decoded(job["output"]["embeddings"]) == VECTORS

    asyncio.run(scenario())


def test_base64_holds_little_endian_floats() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            reply = await _answered(api, BODY | {"encoding_format": "base64"})
            assert _decoded([one["embedding"] for one in reply["data"]]) == VECTORS

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
            request = ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))
            assert request.embedding == EmbeddingInputs(texts=texts)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        (PATH, BODY | {"model": "demo"}, 400, "computes no vectors"),
        (PATH, BODY | {"model": "gpt-4o"}, 404, "notes"),
        ("/v1/completions", {"model": "notes", "prompt": "a"}, 400, "computes vectors"),
        ("/admin/models/notes/load", {}, 400, "computes vectors"),
    ],
)
def test_models_of_the_other_kind_are_refused(
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


@pytest.mark.parametrize(
    ("change", "param", "why"),
    [
        ({"input": []}, "input", "at least 1 item"),
        ({"input": ""}, "input", "at least 1 character"),
        ({"input": ["a", ""]}, "input.1", "at least 1 character"),
        ({"input": [[1], []]}, "input.1", "at least 1 item"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": [[1]] * 2049}, "input", "at most 2048"),
        ({"input": ["a", 1]}, "input.1", "valid string"),
        ({"input": ["a", [1]]}, "input.1", "valid string"),
        ({"input": [[1], "a"]}, "input.1", "valid list"),
        ({"input": [[[1]]]}, "input.0.0", "valid integer"),
        ({"input": [1, -1]}, "input.1", "greater than or equal to 0"),
        ({"input": [1, 2**31]}, "input.1", "less than or equal to"),
        ({"input": [1, 2**70]}, "input.1", "less than or equal to"),
        ({"input": [1, 0.5]}, "input.1", "valid integer"),
        ({"input": [True]}, "input.0", "valid integer"),
        ({"input": 7}, "input", "must be a text, token ids, or a list of either"),
        ({"input": {"text": "a"}}, "input", "must be a text"),
        ({"input": None}, "input", "must be a text"),
        ({"encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"encoding_format": 32}, "encoding_format", "'float' or 'base64'"),
        ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"dimensions": 1 << 17}, "dimensions", "less than or equal to"),
        ({"dimensions": "8"}, "dimensions", "valid integer"),
        ({"dimensions": True}, "dimensions", "valid integer"),
        ({"model": ""}, "model", "at least 1 character"),
        ({"model": None}, "model", "valid string"),
    ],
)
def test_rubbish_is_a_typed_error_that_names_its_place(
    change: dict[str, Any], param: str, why: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            reply = await api.send("POST", PATH, BODY | change)
            assert isinstance(reply, Reply)
            error = json.loads(reply.body)["error"]
            assert (reply.status, error["type"]) == (400, "invalid_request_error")
            assert (error["code"], error["param"]) == ("invalid_request", param)
            assert why in error["message"]
            assert not api.log.views.rows

    asyncio.run(scenario())


def test_a_model_that_no_worker_embeds_with_is_not_loaded() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api)
            reply = await api.send("POST", PATH, BODY)
            assert isinstance(reply, Reply)
            assert reply.status == 409
            assert api.app.models.is_absent("notes")
            swapping = LoadedModels(api.broker.pulses, api.app.clock, swaps_on_demand=True)
            api.use(models=swapping)
            again = await api.send("POST", PATH, BODY)
            assert isinstance(again, Reply)
            assert again.status == 409, "no swap serves vectors"

    asyncio.run(scenario())


def test_a_client_that_leaves_cancels_its_job() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            request = any_request()
            asking = asyncio.create_task(api.send("POST", PATH, BODY, request=request))
            job_id = await api.only_job()
            request.gone.set()
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)
            await asking

    asyncio.run(scenario())


def test_a_repeated_key_gets_its_vectors_until_they_are_erased_and_only_for_its_owner() -> None:
    callers = {
        name: Caller(name=name, scope=KeyScope.OWN, is_alone=False) for name in ("ann", "bob")
    }

    async def ask(api: FakeApi, name: str) -> Reply:
        request = replace(any_request(), caller=callers[name])
        reply = await api.send(
            "POST", PATH, BODY, request=request, headers={"idempotency-key": "once"}
        )
        assert isinstance(reply, Reply)
        return reply

    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            asking = asyncio.create_task(ask(api, "ann"))
            first = await api.only_job()
            _complete(api, first)
            assert [one["embedding"] for one in _data(await asking)] == VECTORS
            again = await ask(api, "ann")
            assert again.headers["x-semantic-attached"] == "idempotency_key"
            assert [one["embedding"] for one in _data(again)] == VECTORS
            foreign = asyncio.create_task(ask(api, "bob"))
            (other,) = await eventually(lambda: api.log.views.rows.keys() - {first})
            _complete(api, other)
            assert "x-semantic-attached" not in (await foreign).headers
            output = api.log.views.rows[first].output
            assert output is not None
            api.log.lose_payload(Digest(output))
            gone = await ask(api, "ann")
            assert gone.status == 404
            assert json.loads(gone.body)["error"]["code"] == "payload_missing"

    asyncio.run(scenario())


def test_vectors_are_delivered_once_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[Readership] = []
    read_stored = JobRecords.read_stored

    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            api.use_limits(disconnect_grace_s=1)

            def noted(records: JobRecords, view: Job) -> StoredAnswer | None:
                states.append(api.app.connections.state(view.id))
                if len(states) == 1:
                    raise LogUnavailable("the test took the log away")
                return read_stored(records, view)

            monkeypatch.setattr(JobRecords, "read_stored", noted)
            asking = asyncio.create_task(api.send("POST", PATH, BODY))
            job_id = await api.only_job()
            _complete(api, job_id)
            failed = await asking
            assert isinstance(failed, Reply)
            assert failed.status == 503
            assert api.app.connections.state(job_id) is Readership.LOST
            # The repeat of the client gets the vectors of the same job.
            again = await api.send("POST", PATH, BODY, headers={"x-stainless-retry-count": "1"})
            assert isinstance(again, Reply)
            assert [one["embedding"] for one in _data(again)] == VECTORS
            assert list(api.log.views.rows) == [job_id]
            assert api.app.connections.state(job_id) is Readership.DELIVERED
            assert states == [Readership.READING, Readership.READING]

    asyncio.run(scenario())


def test_waiting_vectors_take_no_place_of_waiting_answers() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            api.use_limits(queue_limit=1)
            request = any_request()
            waiting = asyncio.create_task(api.send("POST", PATH, BODY, request=request))
            await api.only_job()
            refused = await api.send("POST", PATH, BODY | {"input": "another"})
            assert isinstance(refused, Reply)
            assert (refused.status, int(refused.headers["retry-after"]) > 0) == (429, True)
            answers = [await api.send("POST", "/v1/jobs", {"prompt": one}) for one in "ab"]
            assert [one.status for one in answers] == [202, 429]
            request.gone.set()
            await waiting

    asyncio.run(scenario())


def test_ollama_gets_the_same_vectors() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            body = {"model": "notes:latest", "input": ["a", "b"], "truncate": True, "dimensions": 2}
            reply = EmbedResponse.model_validate(await _answered(api, body, "/api/embed"))
            assert reply.embeddings == VECTORS
            assert (reply.model, reply.prompt_eval_count) == ("notes", 5)
            assert (reply.total_duration or 0) >= (reply.load_duration or 0) > 0
            (view,) = api.log.views.rows.values()
            request = ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))
            assert request.embedding == EmbeddingInputs(texts=("a", "b"), dimensions=2)

    asyncio.run(scenario())


def test_ollamas_older_route_has_one_vector() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            _serve(api, "notes")
            body = {"model": "notes", "prompt": "a"}
            assert await _answered(api, body, "/api/embeddings") == {"embedding": VECTORS[0]}

    asyncio.run(scenario())
