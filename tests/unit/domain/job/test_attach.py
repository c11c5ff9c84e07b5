"""Repeats of a request that join an earlier job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.chat.embedding import EmbeddingInputs
from domain.chat.request import ChatRequest, Message
from domain.events.job import JobSubmitted
from domain.job.submit import idempotency_digest
from domain.log.codec import decode_recorded
from domain.values import (
    AgentId,
    JobId,
    JobStatus,
    Owner,
    Priority,
    SamplingWish,
    StreamName,
    digest_of,
)
from tests.support.builders.job_world import JobWorld
from tests.support.builders.new_jobs import new_job
from tests.support.fakes.job_queue import QueueTables

KEY = {"idempotency": idempotency_digest("k-1")}


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": "An answer."}) as world:
        yield world


def test_repeat_records_its_trace_and_learns_that_of_the_job(world: JobWorld) -> None:
    first = world.accept(command=KEY | {"trace": "00-first"})
    second = world.accept(command=KEY | {"trace": "00-second"})
    assert (first.attached, first.joined_trace) == (None, None)
    assert (second.attached, second.joined_trace) == ("idempotency_key", "00-first")
    assert world.log.read_all(types=["JobAttached"])[0].data["trace"] == "00-second"


def test_repeat_enqueues_a_job_that_the_queue_lost(world: JobWorld) -> None:
    first = world.accept(command=KEY)
    world.broker.queue.tables = QueueTables()
    second = world.accept(command=KEY)
    assert second.queued is True
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == [first.job_id]


def test_repeat_is_not_queued_while_the_broker_is_away(world: JobWorld) -> None:
    assert world.accept(command=KEY).queued is True
    world.broker.down = True
    assert world.accept(command=KEY).queued is False
    assert world.accept().queued is False


def test_repeat_enqueues_no_job_that_has_ended(world: JobWorld) -> None:
    first = world.accept(command=KEY)
    assert world.broker.queue.take() == first.job_id
    world.run(first.job_id)
    world.broker.queue.ack(first.job_id)
    assert world.accept(command=KEY).queued is True
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == []


@pytest.mark.parametrize(
    ("key", "keyspace", "text"),
    [
        ("k", "", b"idempotency-key\nk"),
        ("k", "alice", b"idempotency-key\nalice\nk"),
        ("ü", "", b"idempotency-key\n\xc3\xbc"),
        ("\ud800", "", b"idempotency-key\n\xed\xa0\x80"),
    ],
)
def test_digest_of_a_key_stays_what_older_logs_have(key: str, keyspace: str, text: bytes) -> None:
    assert idempotency_digest(key, keyspace) == digest_of(text)


def test_key_without_a_keyspace_is_that_of_the_empty_one() -> None:
    assert idempotency_digest("k") == idempotency_digest("k", "")


def test_every_term_of_a_request_is_recorded(world: JobWorld) -> None:
    terms = {
        "protocol": "anthropic",
        "priority": Priority.BATCH,
        "attempts_max": 5,
        "agent": AgentId("planner"),
        "idempotency": idempotency_digest("k"),
        "deadline": "2026-01-01T00:00:05.000000Z",
        "finish_deadline": "2026-01-01T00:00:10.000000Z",
        "ordered": False,
        "worker_deaths_max": 4,
        "webhook": "https://example.org/hook",
        "bound_model": "night",
        "waits_for_model": True,
        "trace": "00-first",
        "trace_link": "00-batch",
        "owner": Owner("alice"),
        "cache_owner": Owner("team"),
    }
    job_id = world.accept(command=terms | {"wire": b"{}", "client": "nightly"}, max_tokens=7).job_id
    (first,) = world.log.load(StreamName(job_id))
    submitted = decode_recorded(first)
    assert isinstance(submitted, JobSubmitted)
    assert {name: getattr(submitted, name) for name in terms} == terms
    assert (submitted.model, submitted.max_tokens) == ("m", 7)
    assert submitted.sampling.seed == 1
    assert submitted.asked is not None
    assert submitted.wire == digest_of(b"{}")
    assert world.log.get(submitted.wire) == b"{}"
    assert submitted.client_name == digest_of(b"nightly")
    assert world.log.get(submitted.client_name) == b"nightly"
    assert first.correlation_id == "req_1"


def test_job_of_an_agent_waits_in_the_line_of_the_agent(world: JobWorld) -> None:
    other = world.accept(command={"agent": AgentId("coder")}).job_id
    job_id = world.accept(command={"agent": AgentId("planner")}).job_id
    assert world.cancel(job_id).status is JobStatus.CANCELLED
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == [other]


def test_fresh_job_is_claimed_when_it_stands_in_the_log_and_not_in_the_queue(
    world: JobWorld,
) -> None:
    claimed: list[tuple[JobId, list[str], list[JobId]]] = []

    def claim(job_id: JobId) -> None:
        waiting = world.broker.queue.waiting(Priority.INTERACTIVE)
        claimed.append((job_id, world.types(job_id), waiting))

    request = ChatRequest(
        model="m",
        messages=(Message(role="user", content="hi"),),
        max_tokens=9,
        sampling=SamplingWish(seed=1),
    )
    command = new_job(request, idempotency=KEY["idempotency"], asked=digest_of(b"hi"))
    first = world.submission.submit(command, job_id=JobId("job-1"), claim=claim)
    world.submission.submit(command, job_id=JobId("job-2"), claim=claim)
    assert first.queued
    assert claimed == [(JobId("job-1"), ["JobSubmitted"], [])]


def test_request_for_vectors_records_how_many_it_asks_for(world: JobWorld) -> None:
    texts = EmbeddingInputs(texts=("a", "b", "c"), dimensions=64)
    job_id = world.accept(embedding=texts).job_id
    submitted, asked = world.log.load(StreamName(job_id))
    assert (submitted.type, asked.type) == ("JobSubmitted", "EmbeddingRequested")
    assert dict(asked.data) == {"texts": 3, "dimensions": 64}
