"""Batches through the official SDKs, unmodified and with strict response validation."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from openai.types import Batch

from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.service import Service

FRANCE = "What is the capital of France?"
PARAMS: Any = {
    "model": "semantic-demo",
    "max_tokens": 24,
    "temperature": 0,
    "messages": [{"role": "user", "content": FRANCE}],
}
BAD_PARAMS: Any = {"model": "semantic-demo", "max_tokens": 0, "messages": []}


def ended(client: anthropic.Anthropic, batch_id: str) -> MessageBatch:
    return wait_until(
        lambda: client.messages.batches.retrieve(batch_id),
        lambda batch: batch.processing_status == "ended",
    )


def results(
    client: anthropic.Anthropic, batch_id: str
) -> dict[str, MessageBatchIndividualResponse]:
    found = list(client.messages.batches.results(batch_id))
    by_id = {one.custom_id: one for one in found}
    assert len(by_id) == len(found)
    return by_id


def upload(client: openai.OpenAI, lines: list[Any]) -> str:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return client.files.create(file=("in.jsonl", text.encode()), purpose="batch").id


def chat_line(custom_id: str, **changes: Any) -> dict[str, Any]:
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": PARAMS,
    }
    return line | changes


def over(client: openai.OpenAI, batch_id: str) -> Batch:
    goes_on = {"validating", "in_progress", "finalizing", "cancelling"}
    return wait_until(
        lambda: client.batches.retrieve(batch_id), lambda batch: batch.status not in goes_on
    )


def test_message_batch_is_created_polled_read_listed_and_deleted(
    claude: anthropic.Anthropic,
) -> None:
    batches = claude.messages.batches
    created = batches.create(
        requests=[
            {"custom_id": "good", "params": PARAMS},
            {"custom_id": "bad", "params": BAD_PARAMS},
            {"custom_id": "streams", "params": PARAMS | {"stream": True}},
        ]
    )
    assert created.id.startswith("msgbatch_")
    assert (created.processing_status, created.request_counts.processing) == ("in_progress", 3)
    assert created.results_url is None
    assert round((created.expires_at - created.created_at).total_seconds()) == 24 * 3600
    done = ended(claude, created.id)
    assert done.request_counts.to_dict() == {
        "processing": 0,
        "succeeded": 1,
        "errored": 2,
        "canceled": 0,
        "expired": 0,
    }
    assert done.ended_at is not None
    found = results(claude, created.id)
    assert found.keys() == {"good", "bad", "streams"}
    good = found["good"].result
    assert good.type == "succeeded"
    assert "Paris" in "".join(block.text for block in good.message.content if block.type == "text")
    assert good.message.usage.output_tokens > 0
    for name, field in (("bad", "messages"), ("streams", "stream")):
        refused = found[name].result
        assert refused.type == "errored"
        assert refused.error.error.type == "invalid_request_error"
        assert field in refused.error.error.message
    assert [batch.id for batch in batches.list(limit=1).data] == [created.id]
    assert batches.delete(created.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(created.id)
    with pytest.raises(anthropic.NotFoundError):
        batches.cancel(created.id)


def test_cancelled_message_batch_ends_with_canceled_results(
    endless_claude: anthropic.Anthropic,
) -> None:
    claude, count = endless_claude, 30  # more than run at once
    long = PARAMS | {"max_tokens": 2000}
    created = claude.messages.batches.create(
        requests=[{"custom_id": f"c{n}", "params": long} for n in range(count)]
    )
    with pytest.raises(anthropic.ConflictError):
        claude.messages.batches.delete(created.id)
    canceling = claude.messages.batches.cancel(created.id)
    assert canceling.cancel_initiated_at is not None
    done = ended(claude, created.id)
    counts = done.request_counts
    assert counts.canceled == count
    kinds = [one.result.type for one in results(claude, created.id).values()]
    assert kinds.count("canceled") == counts.canceled
    assert claude.messages.batches.cancel(created.id).processing_status == "ended"


def test_pages_of_message_batches_follow_each_other(claude: anthropic.Anthropic) -> None:
    ids = [
        claude.messages.batches.create(requests=[{"custom_id": "one", "params": BAD_PARAMS}]).id
        for _ in range(3)
    ]
    listed = [
        batch.id for batch, _ in zip(claude.messages.batches.list(limit=1), ids, strict=False)
    ]
    assert listed == ids[::-1]
    newer = claude.messages.batches.list(limit=1, before_id=ids[0])
    assert [batch.id for batch in newer.data] == [ids[1]]
    assert newer.has_more


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "requests"),
        ([{"custom_id": "a b", "params": {}}], "requests.0.custom_id"),
        ([{"custom_id": "a", "params": {}}, {"custom_id": "a", "params": {}}], "custom_id"),
    ],
)
def test_message_batch_that_is_none_is_refused_whole(
    claude: anthropic.Anthropic, requests: Any, field: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.batches.create(requests=requests)
    assert field in str(refused.value)


def test_batch_of_a_file_goes_from_upload_to_download(oai: openai.OpenAI) -> None:
    bad = chat_line("bad", body=BAD_PARAMS)
    file_id = upload(oai, [chat_line("one"), bad, chat_line("two")])
    assert oai.files.retrieve(file_id).purpose == "batch"
    created = oai.batches.create(
        input_file_id=file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"for": "a test"},
    )
    assert created.status in {"validating", "in_progress"}
    done = over(oai, created.id)
    assert done.status == "completed"
    assert done.metadata == {"for": "a test"}
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert done.usage is not None
    assert done.usage.total_tokens > 0
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    output = [json.loads(line) for line in oai.files.content(done.output_file_id).iter_lines()]
    assert [line["custom_id"] for line in output] == ["one", "two"]
    for line in output:
        assert (line["response"]["status_code"], line["error"]) == (200, None)
        answer = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
        assert "Paris" in (answer.choices[0].message.content or "")
    errors = [json.loads(line) for line in oai.files.content(done.error_file_id).iter_lines()]
    assert [line["custom_id"] for line in errors] == ["bad"]
    assert errors[0]["response"]["status_code"] == 400
    for name in (done.output_file_id, done.error_file_id):
        file = oai.files.retrieve(name)
        assert file.purpose == "batch_output"
        assert file.bytes == len(oai.files.content(name).read())
    assert [batch.id for batch in oai.batches.list(limit=1).data] == [created.id]
    with pytest.raises(openai.ConflictError):
        oai.batches.cancel(created.id)


def test_file_with_faulty_lines_fails_its_batch(oai: openai.OpenAI) -> None:
    lines = [chat_line("a"), chat_line("a"), chat_line("b", url="/v1/other"), {"method": "GET"}]
    created = oai.batches.create(
        input_file_id=upload(oai, lines),
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )
    done = over(oai, created.id)
    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.errors is not None
    assert [(fault.line, fault.code, fault.param) for fault in done.errors.data or ()] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "mismatched_endpoint", "url"),
        (4, "missing_required_parameter", "custom_id"),
    ]


def test_cancelled_batch_of_a_file_tells_of_its_lines(oai: openai.OpenAI) -> None:
    long = PARAMS | {"max_tokens": 2000, "temperature": 1.0}
    created = oai.batches.create(
        input_file_id=upload(oai, [chat_line(f"c{n}", body=long) for n in range(12)]),
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )
    assert oai.batches.cancel(created.id).status in {"cancelling", "cancelled"}
    done = over(oai, created.id)
    assert (done.status, done.cancelled_at is not None) == ("cancelled", True)
    assert done.error_file_id is not None
    errors = [json.loads(line) for line in oai.files.content(done.error_file_id).iter_lines()]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert oai.batches.cancel(created.id).status == "cancelled"


def test_files_are_listed_read_and_deleted(oai: openai.OpenAI) -> None:
    content = b'{"a": 1}\r\n\r\n--not a boundary\r\n'
    kept = oai.files.create(
        file=('in "1".jsonl', content),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert kept.expires_at == kept.created_at + 3600
    assert (kept.filename, kept.bytes) == ('in "1".jsonl', len(content))
    assert oai.files.content(kept.id).read() == content
    assert [file.id for file in oai.files.list(purpose="user_data")] == [kept.id]
    assert oai.files.delete(kept.id).deleted
    with pytest.raises(openai.NotFoundError):
        oai.files.content(kept.id)
    with pytest.raises(openai.NotFoundError):
        oai.batches.create(
            input_file_id=kept.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    with pytest.raises(openai.BadRequestError):
        oai.files.create(file=b"x", purpose="nothing")  # type: ignore[arg-type]  # refused


def test_what_is_not_there_is_404_in_both_dialects(service: Service) -> None:
    with httpx.Client(base_url=service.base_url, timeout=scaled(WITHIN_S)) as client:
        missing = "0" * 32
        theirs = client.get(f"/v1/batches/batch_{missing}")
        ours = client.get(f"/v1/messages/batches/msgbatch_{missing}/results")
        assert (theirs.status_code, ours.status_code) == (404, 404)
        assert theirs.json()["error"]["code"] == "batch_not_found"
        assert ours.json()["error"]["type"] == "not_found_error"
