"""Batches and files where the clock, the limits and the worker are the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anthropic.types.messages
import openai.types
import pytest

from api.access.limits import BatchLimits
from api.dialects.batches.objects import blocks_of
from api.http.messages import Reply, StreamReply
from domain.chat.items import Failed
from domain.job.commit import commit
from domain.job.decisions import failed_attempt
from domain.values import JobId, Priority
from ops.clock import RandomIds
from tests.support.builders.api import FakeApi, fake_api, pieces_of
from tests.support.builders.batch_services import REGISTRY, advance
from tests.support.fakes.time import FakeClock

DAY_S = 24 * 3600
PARAMS = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
ABSENT = "0" * 32


def scenario(play: Callable[[FakeApi], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with fake_api() as api:
            api.use(ids=RandomIds(), registry=lambda: REGISTRY)
            await play(api)

    asyncio.run(run())


def limit(api: FakeApi, **limits: int) -> None:
    api.use(batch_limits=BatchLimits(**limits))


def wait(api: FakeApi, seconds: float) -> None:
    clock = api.app.clock
    assert isinstance(clock, FakeClock)
    clock.advance(seconds)


def requests(*names: str) -> dict[str, Any]:
    return {"requests": [{"custom_id": name, "params": PARAMS} for name in names]}


async def new_batch(api: FakeApi, *names: str) -> str:
    created = await api.json("POST", "/v1/messages/batches", requests(*names))
    anthropic.types.messages.MessageBatch.model_validate_json(json.dumps(created))
    advance(api.app)
    return f"/v1/messages/batches/{created['id']}"


def take(api: FakeApi) -> JobId:
    job_id = api.take(Priority.BATCH)
    assert job_id is not None
    return job_id


def answer(api: FakeApi, text: str) -> JobId:
    """Work on the next line as a worker does."""
    job_id = take(api)
    # The fake worker takes from the other queue.
    api.broker.queue.ack(job_id)
    api.broker.queue.enqueue(job_id, Priority.INTERACTIVE)
    api.start(job_id)
    api.complete(job_id, text)
    return job_id


LABELS = {"tags": ["night", "a"], "metadata": {"project": "x"}, "urgency": 7}


def test_lines_have_the_labels_and_the_urgency_of_their_jobs() -> None:
    async def play(api: FakeApi) -> None:
        plain = {"custom_id": "b", "params": PARAMS}
        body = {"requests": [{"custom_id": "a", "params": PARAMS, **LABELS}, plain]}
        await api.json("POST", "/v1/messages/batches", body)
        line = {"method": "POST", "url": "/v1/chat/completions", "body": PARAMS}
        await new_openai_batch(api, lines=[{"custom_id": "a", **line, **LABELS}])
        found = (await api.json("GET", "/v1/jobs?tag=night&metadata.project=x"))["data"]
        assert [(one["tags"], one["metadata"], one["urgency"]) for one in found] == [
            (["a", "night"], {"project": "x"}, 7)
        ] * 2
        everything = (await api.json("GET", "/v1/jobs"))["data"]
        assert sorted(one["urgency"] for one in everything) == [0, 7, 7]

    scenario(play)


def test_what_stands_beside_a_request_and_is_not_known_is_named_with_its_result() -> None:
    async def play(api: FakeApi) -> None:
        one = {"custom_id": "a", "params": PARAMS | {"safeguards": 1}, "urgenc": 7}
        created = await api.json("POST", "/v1/messages/batches", {"requests": [one]})
        advance(api.app)
        answer(api, "Hello")
        advance(api.app)
        (line,) = await lines_of(api, f"/v1/messages/batches/{created['id']}/results")
        named = "urgenc (did you mean urgency?), safeguards"
        assert line["warning"] == f"fields without effect: {named}"

    scenario(play)


def test_labels_that_are_not_valid_are_an_error_of_their_line() -> None:
    async def play(api: FakeApi) -> None:
        wrong = {"custom_id": "a", "params": PARAMS, "urgency": 10}
        refused = await api.send("POST", "/v1/messages/batches", {"requests": [wrong]})
        assert refused.status == 400
        line = {"method": "POST", "url": "/v1/chat/completions", "body": PARAMS}
        lines = [{"custom_id": "a", **line, "tags": ["="]}, {"custom_id": "b", **line}]
        await new_openai_batch(api, lines=lines)
        found = (await api.json("GET", "/v1/jobs"))["data"]
        assert sorted(one["status"] for one in found) == ["failed", "queued"]

    scenario(play)


async def lines_of(api: FakeApi, target: str) -> list[Any]:
    reply = await api.send("GET", target)
    return [json.loads(line) for line in (await pieces_of(reply)).splitlines()]


async def upload(api: FakeApi, content: bytes, **fields: str) -> Any:
    boundary = "xyz"
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in ({"purpose": "batch"} | fields).items()
    ]
    head = f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    reply = await api.send("POST", "/v1/files", body, headers=headers)
    assert isinstance(reply, Reply)
    return reply


async def new_openai_batch(
    api: FakeApi, *names: str, lines: list[dict[str, Any]] | None = None
) -> str:
    lines = lines or [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": PARAMS}
        for name in names
    ]
    reply = await upload(api, "\n".join(map(json.dumps, lines)).encode())
    body = {
        "input_file_id": json.loads(reply.body)["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    created = await api.json("POST", "/v1/batches", body)
    openai.types.Batch.model_validate_json(json.dumps(created))
    assert created["status"] == "validating"
    advance(api.app)
    return f"/v1/batches/{created['id']}"


def test_counts_stay_processing_until_the_end_while_progress_moves() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_batch(api, "a", "b")
        answer(api, "Hello")
        advance(api.app)
        shown = await api.json("GET", path)
        assert shown["request_counts"] == {
            "processing": 2, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
        }  # fmt: skip
        assert (shown["progress"]["succeeded"], shown["progress"]["processing"]) == (1, 1)

    scenario(play)


def test_results_of_an_open_batch_are_a_conflict() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_batch(api, "a")
        for method, target in (("GET", f"{path}/results"), ("DELETE", path)):
            reply = await api.send(method, target)
            assert isinstance(reply, Reply)
            assert reply.status == 409
            assert reply.headers["x-should-retry"] == "false"
            assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"

    scenario(play)


def test_lines_end_with_their_jobs_or_with_the_window() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_batch(api, "answered", "failed", "late")
        answer(api, "Hello")
        failed = Failed(error="engine_failure", message="out of luck", retryable=False)
        commit(take(api), failed_attempt(attempt=0, failure=failed), log=api.log, ids=api.app.ids)
        wait(api, DAY_S)
        assert advance(api.app) == 0
        first, second, third = await lines_of(api, f"{path}/results")
        assert first["result"]["message"]["content"] == [{"type": "text", "text": "Hello"}]
        assert second["result"]["error"]["error"] == {"type": "api_error", "message": "out of luck"}
        assert third == {"custom_id": "late", "result": {"type": "expired"}}
        for one in (first, second, third):
            anthropic.types.messages.MessageBatchIndividualResponse.model_validate_json(
                json.dumps(one)
            )
        counts = (await api.json("GET", path))["request_counts"]
        assert (counts["succeeded"], counts["errored"], counts["expired"]) == (1, 1, 1)

    scenario(play)


def test_results_are_archived_after_their_time() -> None:
    async def play(api: FakeApi) -> None:
        limit(api, results_kept_s=100)
        path = await new_batch(api, "a")
        answer(api, "Hello")
        advance(api.app)
        assert (await api.json("GET", path))["results_url"].endswith("/results")
        wait(api, 100)
        shown = await api.json("GET", path)
        assert shown["results_url"] is None
        assert shown["archived_at"] == "2026-01-01T00:01:40.000000Z"
        reply = await api.send("GET", f"{path}/results")
        assert isinstance(reply, Reply)
        assert reply.status == 404

    scenario(play)


def test_limits_are_refused_by_name() -> None:
    async def play(api: FakeApi) -> None:
        limit(api, lines_max=1, open_max=1, file_bytes_max=10)
        many = await api.send("POST", "/v1/messages/batches", requests("a", "b"))
        assert isinstance(many, Reply)
        assert (many.status, b"more than the 1 of one batch" in many.body) == (400, True)
        await new_batch(api, "a")
        full = await api.send("POST", "/v1/messages/batches", requests("a"))
        assert isinstance(full, Reply)
        assert (full.status, full.headers["retry-after"]) == (429, "60")
        large = await upload(api, b"x" * 11)
        assert (large.status, b"10 bytes" in large.body) == (413, True)

    scenario(play)


def test_url_of_the_results_has_the_host_of_the_request() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_batch(api, "a")
        answer(api, "Hello")
        advance(api.app)
        for headers, origin in (
            ({}, ""),
            ({"host": "there:1"}, "http://there:1"),
            ({"host": "there", "x-forwarded-proto": "https"}, "https://there"),
        ):
            reply = await api.send("GET", path, headers=headers)
            assert isinstance(reply, Reply)
            assert json.loads(reply.body)["results_url"] == f"{origin}{path}/results"

    scenario(play)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", f"/v1/messages/batches/msgbatch_{ABSENT}"),
        ("GET", f"/v1/messages/batches/batch_{ABSENT}"),
        ("DELETE", "/v1/messages/batches/x"),
        ("POST", f"/v1/messages/batches/msgbatch_{ABSENT}/cancel"),
        ("GET", f"/v1/batches/msgbatch_{ABSENT}"),
        ("POST", f"/v1/batches/batch_{ABSENT}/cancel"),
        ("GET", f"/v1/files/file-{ABSENT}"),
        ("GET", "/v1/files/x/content"),
        ("DELETE", f"/v1/files/file-{ABSENT}"),
    ],
)
def test_what_does_not_exist_is_404(method: str, target: str) -> None:
    async def play(api: FakeApi) -> None:
        reply = await api.send(method, target)
        assert isinstance(reply, Reply)
        assert reply.status == 404

    scenario(play)


def test_batch_of_one_dialect_is_404_in_the_other() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_batch(api, "a")
        digits = path.rpartition("_")[2]
        reply = await api.send("GET", f"/v1/batches/batch_{digits}")
        assert isinstance(reply, Reply)
        assert reply.status == 404
        assert (await api.json("GET", "/v1/batches"))["data"] == []

    scenario(play)


def test_openai_batch_expires_at_the_end_of_its_window() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_openai_batch(api, "a", "b")
        answer(api, "Hello")
        wait(api, DAY_S)
        advance(api.app)
        shown = await api.json("GET", path)
        openai.types.Batch.model_validate_json(json.dumps(shown))
        assert shown["status"] == "expired"
        assert shown["expired_at"] == shown["created_at"] + DAY_S
        assert shown["usage"]["total_tokens"] == 6
        (output,) = await lines_of(api, f"/v1/files/{shown['output_file_id']}/content")
        (error,) = await lines_of(api, f"/v1/files/{shown['error_file_id']}/content")
        assert output["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
        assert (error["custom_id"], error["error"]["code"]) == ("b", "batch_expired")

    scenario(play)


def test_files_expire_at_the_requested_time() -> None:
    async def play(api: FakeApi) -> None:
        fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        file = json.loads((await upload(api, b"{}", **fields)).body)
        assert (await api.json("GET", f"/v1/files/{file['id']}"))["expires_at"] == (
            file["created_at"] + 3600
        )
        wait(api, 3600)
        await api.json("GET", f"/v1/files/{file['id']}", status=404)
        assert (await api.json("GET", "/v1/files"))["data"] == []

    scenario(play)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"purpose": "other"}, "purpose"),
        ({"expires_after[anchor]": "last_active_at"}, "expires_after[anchor]"),
        ({"expires_after[seconds]": "soon"}, "expires_after[seconds]"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "59"},
            "expires_after[seconds]",
        ),
    ],
)
def test_invalid_form_is_refused_with_its_field(fields: dict[str, str], field: str) -> None:
    async def play(api: FakeApi) -> None:
        reply = await upload(api, b"{}", **fields)
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["param"] == field

    scenario(play)


def test_batch_of_a_missing_file_or_of_one_with_another_purpose_is_404() -> None:
    async def play(api: FakeApi) -> None:
        file = json.loads((await upload(api, b"{}", purpose="vision")).body)
        for file_id in (file["id"], f"file-{ABSENT}"):
            body = {
                "input_file_id": file_id,
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
            await api.json("POST", "/v1/batches", body, status=404)

    scenario(play)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_file_without_lines_fails_its_batch(content: bytes) -> None:
    async def play(api: FakeApi) -> None:
        file = json.loads((await upload(api, content)).body)
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        created = await api.json("POST", "/v1/batches", body)
        advance(api.app)
        failed = await api.json("GET", f"/v1/batches/{created['id']}")
        assert (failed["status"], failed["errors"]["data"][0]["code"]) == ("failed", "empty_file")

    scenario(play)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
    ],
)
def test_invalid_batch_body_is_refused_with_its_field(change: dict[str, Any], field: str) -> None:
    async def play(api: FakeApi) -> None:
        file = json.loads((await upload(api, b"{}")).body)
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        refused = await api.json("POST", "/v1/batches", body | change, status=400)
        assert refused["error"]["param"] == field

    scenario(play)


def test_many_lines_are_sent_in_blocks() -> None:
    async def call(function: Callable[[Iterator[bytes]], bytes], lines: Iterator[bytes]) -> bytes:
        return function(lines)

    async def read() -> list[bytes]:
        lines = (b"x" * 999 + b"\n" for _ in range(200))
        return [block async for block in blocks_of(lines, call)]

    blocks = asyncio.run(read())
    assert b"".join(blocks) == (b"x" * 999 + b"\n") * 200
    assert max(map(len, blocks)) <= 66_000


def test_results_reply_is_a_stream_of_json_lines() -> None:
    async def play(api: FakeApi) -> None:
        path = await new_batch(api, "a")
        answer(api, "Hello")
        advance(api.app)
        reply = await api.send("GET", f"{path}/results")
        assert isinstance(reply, StreamReply)
        assert reply.content_type == "application/x-jsonl"
        await pieces_of(reply)

    scenario(play)
