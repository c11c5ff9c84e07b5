"""One trace over api, Redis and worker, at a real receiver; and what the logs say of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from domain.log.trace import new_trace, parse_traceparent
from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.clients.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.support.clients.webhook_receiver import receiver as webhook_receiver
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

TOKENS = 600


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver) -> Iterator[Service]:
    model = make_tiny_llama(
        tmp_path_factory.mktemp("models") / "tiny", hidden=128, layers=4, context=4096
    )
    service = Service(
        tmp_path_factory.mktemp("traced") / "data",
        env={
            "SEMANTIC_MODEL__ID": str(model),
            "SEMANTIC_TRACING__ENDPOINT": receiver.url,
            "SEMANTIC_LOG__FORMAT": "json",
            "SEMANTIC_LOG__LEVEL": "DEBUG",
            "SEMANTIC_WEBHOOKS__ALLOW_HOSTS": '["127.0.0.1"]',
        },
    ).start()
    yield service
    assert service.stop() == 0, service.log()


@pytest.fixture
def http(traced: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=traced.base_url, timeout=scaled(WAIT_S)) as client:
        yield client


def body(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me a long story. " * 40}]
    return {"model": "claude-any", "max_tokens": 20, "messages": messages} | more


def named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name.split(" ")[0] == name]


def spans_of(receiver: OtlpReceiver, trace_id: str, *names: str) -> list[ReceivedSpan]:
    """Wait for spans of these names, and return all of the trace."""

    def all_there(spans: list[ReceivedSpan]) -> bool:
        return set(names) <= {one.name.split(" ")[0] for one in spans if one.trace_id == trace_id}

    receiver.wait_for(all_there)
    return receiver.of(trace_id)


def test_a_stream_is_one_trace_from_its_client_to_its_last_byte(
    http: httpx.Client, receiver: OtlpReceiver
) -> None:
    client = new_trace(sampled=True)
    with http.stream(
        "POST",
        "/v1/messages",
        json=body(stream=True, temperature=0),
        headers={"traceparent": str(client)},
    ) as reply:
        assert reply.headers["x-semantic-trace"] == client.trace_id
        job_id = reply.headers["x-semantic-job"]
        reply.read()
    job = http.get(f"/v1/jobs/{job_id}").json()
    assert job["trace_id"] == client.trace_id
    spans = spans_of(receiver, client.trace_id, "POST", "chat", "deliver")
    (request,), (attempt,) = named(spans, "POST"), named(spans, "chat")
    assert (request.name, request.kind) == ("POST /v1/messages", "SERVER")
    assert (request.part, attempt.part) == ("api", "worker")
    assert request.parent_id == client.span_id
    parents = {span.name: span.parent_id for span in spans if span is not request}
    assert parents["submit"] == parents["queue"] == parents["deliver"] == request.span_id
    assert attempt.parent_id == request.span_id
    assert parents["prefill"] == parents["decode"] == attempt.span_id
    assert attempt.attributes["gen_ai.usage.output_tokens"] == job["usage"]["completion_tokens"] > 0
    assert attempt.attributes["semantic.job.id"] == job_id
    starts = {span.name.split(" ")[0]: span.start_ns for span in spans}
    assert starts["POST"] <= starts["submit"] <= starts["chat"] <= starts["prefill"]
    assert starts["prefill"] <= starts["decode"]
    assert all(span.start_ns <= span.end_ns for span in spans)
    texts = json.dumps([dict(span.attributes) for span in spans])
    assert "long story" not in texts


def trace_of_a_job_with_a_lost_attempt(traced: Service, http: httpx.Client) -> str:
    """Kill the worker in the middle of an answer; on a busy machine an answer may end before."""
    for _ in range(5):
        reply = http.post("/v1/jobs", json=body(max_tokens=TOKENS, temperature=0))
        with JobReader(traced.base_url, reply.json()["id"]) as reader:
            reader.wait_for(20)
            traced.kill_part("worker")
            reader.whole()
            if len(reader.attempts) == 2:
                return reply.headers["x-semantic-trace"]
    raise AssertionError("each answer ended before its worker")


def test_an_attempt_that_dies_with_its_worker_is_linked(
    traced: Service, http: httpx.Client, receiver: OtlpReceiver
) -> None:
    trace_id = trace_of_a_job_with_a_lost_attempt(traced, http)

    def has_both(spans: list[ReceivedSpan]) -> bool:
        return len(named([one for one in spans if one.trace_id == trace_id], "chat")) == 2

    receiver.wait_for(has_both)
    first, second = named(receiver.of(trace_id), "chat")
    assert (first.error, second.error) == ("worker_lost", None)
    assert second.links == ((trace_id, first.span_id),)
    assert first.parent_id == second.parent_id
    assert first.end_ns <= second.start_ns
    assert [span.attributes["semantic.attempt"] for span in (first, second)] == [1, 2]
    assert second.attributes["semantic.resumed_tokens"] > 0
    (queue,) = named(receiver.of(trace_id), "queue")
    assert queue.start_ns == first.end_ns


def test_who_joins_a_job_is_linked_to_its_trace(http: httpx.Client, receiver: OtlpReceiver) -> None:
    key = {"idempotency-key": "once"}
    first, second = (http.post("/v1/jobs", json=body(), headers=key) for _ in range(2))
    assert first.json()["id"] == second.json()["id"]
    traces = [reply.headers["x-semantic-trace"] for reply in (first, second)]
    (request,) = named(spans_of(receiver, traces[0], "POST"), "POST")
    (submit,) = named(spans_of(receiver, traces[1], "submit"), "submit")
    assert submit.links == ((traces[0], request.span_id),)
    assert submit.attributes["semantic.attached"] == "idempotency_key"


def test_a_line_of_a_batch_is_linked_to_the_batch(
    http: httpx.Client, receiver: OtlpReceiver
) -> None:
    lines = {"requests": [{"custom_id": "a", "params": body()}]}
    reply = http.post("/v1/messages/batches", json=lines)
    assert reply.status_code == 200, reply.text
    trace_id = reply.headers["x-semantic-trace"]
    (request,) = named(spans_of(receiver, trace_id, "POST"), "POST")
    link = ((trace_id, request.span_id),)
    spans = receiver.wait_for(
        lambda spans: any(one.links == link for one in named(spans, "chat")), scaled(WAIT_S)
    )
    (attempt,) = [one for one in named(spans, "chat") if one.links == link]
    (root,) = named(receiver.of(attempt.trace_id), "submit")
    assert (root.span_id, root.parent_id, root.links) == (attempt.parent_id, "", link)


def test_a_webhook_carries_the_trace(http: httpx.Client) -> None:
    with ExitStack() as stack:
        hook = stack.enter_context(webhook_receiver())
        reply = http.post("/v1/jobs", json=body(webhook={"url": hook.url()}))
        (received,) = hook.wait_for(1)
        sent = parse_traceparent(received.headers["traceparent"])
        assert sent is not None
        assert sent.trace_id == reply.headers["x-semantic-trace"]


def test_a_page_that_polls_makes_no_spans(http: httpx.Client, receiver: OtlpReceiver) -> None:
    polled = http.get("/v1/jobs").headers["x-semantic-trace"]
    asked = new_trace(sampled=True)
    http.get("/v1/jobs", headers={"traceparent": str(asked)})
    spans_of(receiver, asked.trace_id, "GET")
    assert receiver.of(polled) == []


def test_lines_of_a_job_name_request_job_and_trace(traced: Service, http: httpx.Client) -> None:
    trace = new_trace(sampled=False)
    reply = http.post("/v1/messages", json=body(), headers={"traceparent": str(trace)})
    names = {
        "request_id": reply.headers["request-id"],
        "job_id": reply.headers["x-semantic-job"],
        "trace_id": trace.trace_id,
    }

    def logged() -> list[dict[str, Any]]:
        return [json.loads(line) for line in traced.log().splitlines() if trace.trace_id in line]

    def are_all(lines: list[dict[str, Any]]) -> bool:
        is_answered = any(line["message"] == "request_answered" for line in lines)
        return is_answered and {line["part"] for line in lines} == {"api", "worker"}

    # The worker's lines and the last of the api follow the answer.
    for line in wait_until(logged, are_all, within_s=WAIT_S):
        assert line.items() >= names.items(), line
