"""``/v1/embeddings`` through the official SDK, on a service whose worker is killed in between."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from tests.e2e.sdks.test_batches import over, upload
from tests.support.models.tiny_embedder import DIMENSIONS, plain_vector
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.data_directory import command, holders
from tests.support.processes.service import Service

TOLERANCE = 2e-4
CONTEXT = 4096
#: Keeps a small network busy for a while.
LONG: list[list[int]] = [[7] * 1500 for _ in range(5)]
#: Requests until one is being computed when the worker is killed; the first one nearly always is.
TRIES = 20
TURN: dict[str, Any] = {
    "model": "semantic-demo",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_completion_tokens": 9,
}


@pytest.fixture
def embedding(mortal: Service) -> Service:
    return mortal


# Not strict: this SDK asks for base64 where the caller names no form, and its own schema has lists
# of numbers only.
@pytest.fixture
def client(embedding: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{embedding.base_url}/v1",
        api_key="x",
        max_retries=0,
        timeout=scaled(120),
    ) as made:
        yield made


def test_all_forms_of_input_give_the_vectors_that_mlx_lm_computes(
    client: openai.OpenAI, embedder: Path
) -> None:
    ids = [[9, 8, 7], [5], list(range(20, 97))]
    many = client.embeddings.create(model="notes", input=ids)
    assert [one.index for one in many.data] == [0, 1, 2]
    assert many.usage.prompt_tokens == many.usage.total_tokens == sum(map(len, ids))
    for one, tokens in zip(many.data, ids, strict=True):
        plain = plain_vector(embedder, tokens, pooling="lasttoken", dimensions=DIMENSIONS)
        assert one.embedding == pytest.approx(plain, abs=TOLERANCE)
    texts = client.embeddings.create(model="notes", input=["Bees dance.", "Cells divide."])
    first = client.embeddings.create(model="notes", input="Bees dance.", encoding_format="float")
    assert first.data[0].embedding == pytest.approx(texts.data[0].embedding, abs=TOLERANCE)
    short = client.embeddings.create(model="text-embedding-3-small", input=ids[0], dimensions=16)
    plain = plain_vector(embedder, ids[0], pooling="lasttoken", dimensions=16)
    assert short.data[0].embedding == pytest.approx(plain, abs=TOLERANCE)
    assert short.model == "text-embedding-3-small"


def test_ollamas_client_gets_the_same_vectors(client: openai.OpenAI, embedding: Service) -> None:
    texts = ["Bees dance.", "Cells divide."]
    expected = client.embeddings.create(model="notes", input=texts)
    with ollama.Client(host=embedding.base_url, timeout=scaled(120)) as other:
        reply = other.embed("notes:latest", input=texts, dimensions=DIMENSIONS)
        older = other.embeddings("notes", prompt=texts[0])
        names = [one.model for one in other.list().models]
        with pytest.raises(ollama.ResponseError, match="too long"):
            other.embed("notes", input="a " * (CONTEXT + 1), truncate=True)
    for found, one in zip(reply.embeddings, expected.data, strict=True):
        assert list(found) == pytest.approx(one.embedding, abs=TOLERANCE)
    assert list(older.embedding) == pytest.approx(expected.data[0].embedding, abs=TOLERANCE)
    assert reply.prompt_eval_count == expected.usage.prompt_tokens
    assert "text-embedding-3-small" in names


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"input": ""}, "at least 1 character"),
        ({"input": []}, "at least 1 item"),
        ({"input": ["a", ""]}, "at least 1 character"),
        ({"input": ["a"] * 2049}, "at most 2048"),
        ({"input": 7}, "must be a text"),
        ({"input": [[1], [600]]}, "token id 600"),
        ({"input": [[1], [1] * (CONTEXT + 1)]}, "input 1 is too long: 4097 tokens > 4096"),
        ({"input": "a", "dimensions": DIMENSIONS + 1}, "at most 64"),
        ({"input": "a", "model": "semantic-demo"}, "computes no vectors"),
    ],
)
def test_what_cannot_be_computed_is_a_bad_request(
    embedding: Service, body: dict[str, Any], why: str
) -> None:
    reply = httpx.post(
        f"{embedding.base_url}/v1/embeddings",
        json={"model": "notes"} | body,
        timeout=scaled(WITHIN_S),
    )
    assert reply.status_code == 400, reply.text
    assert why in reply.json()["error"]["message"]


def test_names_of_other_models_and_other_uses_are_refused(
    client: openai.OpenAI, embedding: Service
) -> None:
    with pytest.raises(openai.NotFoundError, match="notes"):
        client.embeddings.create(model="gpt-4o", input="a")
    with pytest.raises(openai.BadRequestError, match="computes vectors"):
        client.chat.completions.create(**TURN | {"model": "notes"})
    with pytest.raises(openai.ConflictError, match="gone"):
        client.embeddings.create(model="gone", input="a")
    swap = httpx.post(f"{embedding.base_url}/admin/models/notes/load", timeout=scaled(WITHIN_S))
    assert (swap.status_code, "computes vectors" in swap.text) == (400, True)


def test_vectors_are_jobs_with_a_kind_and_a_repeated_key_gets_the_stored_ones(
    embedding: Service,
) -> None:
    with httpx.Client(base_url=embedding.base_url, timeout=scaled(60)) as http:
        body = {"model": "notes", "input": ["Bees dance."]}
        key = {"Idempotency-Key": "once"}
        replies = [http.post("/v1/embeddings", json=body, headers=key) for _ in range(2)]
        assert replies[0].json() == replies[1].json()
        assert replies[1].headers["x-semantic-attached"] == "idempotency_key"
        job = http.get(f"/v1/jobs/{replies[0].headers['x-semantic-job']}").json()
        assert (job["kind"], job["status"], job["bound_model"]) == (
            "embedding",
            "completed",
            "notes",
        )
        vector = replies[0].json()["data"][0]["embedding"]
        (stored,) = job["output"]["embeddings"]
        assert array("f", base64.b64decode(stored)).tolist() == pytest.approx(vector)
        assert job["usage"]["completion_tokens"] == 0
        events = http.get("/v1/events", params={"stream": job["id"]}).json()["data"]
        assert [event["type"] for event in events] == [
            "JobSubmitted",
            "EmbeddingRequested",
            "AttemptStarted",
            "JobCompleted",
            "JobAttached",
        ]


def test_a_killed_worker_computes_again_and_batches_have_vectors(
    client: openai.OpenAI, embedding: Service, embedder: Path
) -> None:
    body = {"model": "notes", "input": LONG, "dimensions": 8}
    line = {"custom_id": "l", "method": "POST", "url": "/v1/embeddings", "body": body}
    batch_id = client.batches.create(
        input_file_id=upload(client, [line]), endpoint="/v1/embeddings", completion_window="24h"
    ).id
    for _ in range(TRIES):
        job_id = _kill_during(client, embedding)
        events = httpx.get(
            f"{embedding.base_url}/v1/events?stream={job_id}", timeout=scaled(WITHIN_S)
        ).json()["data"]
        types = [event["type"] for event in events]
        assert types.count("JobCompleted") == 1
        if types.count("AttemptStarted") > 1:
            break
    else:
        pytest.fail("no request was being computed when the worker was killed")
    job = httpx.get(f"{embedding.base_url}/v1/jobs/{job_id}", timeout=scaled(WITHIN_S)).json()
    stored = job["output"]["embeddings"]
    plain = plain_vector(embedder, LONG[0], pooling="lasttoken", dimensions=DIMENSIONS)
    for vector in stored:
        found = array("f", base64.b64decode(vector)).tolist()
        assert found == pytest.approx(plain, abs=TOLERANCE)
    assert len(stored) == len(LONG)
    batch = over(client, batch_id)
    assert batch.output_file_id is not None
    (told,) = client.files.content(batch.output_file_id).text.splitlines()
    whole = CreateEmbeddingResponse.model_validate(json.loads(told)["response"]["body"])
    assert [len(one.embedding) for one in whole.data] == [8] * len(LONG)


def _kill_during(client: openai.OpenAI, service: Service) -> str:
    """Kill the worker while it computes a request, if it still does; return the job."""
    # The line of the batch is a job too, and may come later than the request before.
    listed = f"{service.base_url}/v1/jobs?limit=1&priority=interactive"
    before = httpx.get(listed, timeout=scaled(WITHIN_S)).json()["data"][0]["id"]

    def newest() -> dict[str, Any]:
        return dict(httpx.get(listed, timeout=scaled(WITHIN_S)).json()["data"][0])

    with ThreadPoolExecutor() as pool:
        vectors = pool.submit(client.embeddings.create, model="notes", input=LONG)
        job = wait_until(newest, lambda one: one["id"] != before and one["status"] != "queued")
        service.kill_part("worker")
        assert len(vectors.result().data) == len(LONG)
    return str(job["id"])


def test_a_sweep_erases_texts_and_vectors(client: openai.OpenAI, embedding: Service) -> None:
    secret = "what the heliotrope remembers, 7391"
    made = client.embeddings.with_raw_response.create(model="notes", input=secret)
    job = f"{embedding.base_url}/v1/jobs/{made.headers['x-semantic-job']}"
    (vector,) = httpx.get(job, timeout=scaled(WITHIN_S)).json()["output"]["embeddings"]
    for text in (secret, vector):
        assert holders(embedding.data_dir, text), "the test looks in the wrong place"
    assert command(embedding, "log", "erase", "--text-days", "0")["texts"] > 0
    for text in (secret, vector):
        assert not holders(embedding.data_dir, text)
    shown = httpx.get(job, timeout=scaled(WITHIN_S)).json()
    assert (shown["status"], shown["output"]) == ("completed", None)
    assert command(embedding, "log", "verify")["ok"]
