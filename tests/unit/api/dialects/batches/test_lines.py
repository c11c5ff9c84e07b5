from __future__ import annotations

import json

from api.dialects.anthropic.encode import MessageForm, assemble_message
from api.dialects.batches.lines import ANTHROPIC, MESSAGES_PATH, encode_result
from api.dialects.encoding import chat_logprobs
from api.dialects.openai_chat.completions import CompletionEnvelope, assemble
from api.dialects.openai_chat.parse import ChatKind
from api.generation import AssembledAnswer
from domain.batch.state import Batch, BatchId
from domain.chat.logprobs import Alternative, TokenLogprob, to_json
from domain.chat.request import canonical_json
from domain.chat.stored_answer import StoredAnswer
from domain.events.batch import BatchSubmitted
from domain.job.state import Job
from domain.values import JobId, JobStatus, StopReason, Usage, digest_of
from tests.support.builders.job_events import submitted

VIEW = Job(
    id=JobId("job-1"),
    status=JobStatus.COMPLETED,
    submitted=submitted(),
    correlation_id="batch-1",
    created_at="2026-01-01T00:00:00Z",
    stop_reason=StopReason.END_TURN,
    usage=Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=3),
)


def test_stored_output_becomes_the_message_that_a_call_alone_would_give() -> None:
    call = {"id": "toolu_1", "name": "look", "arguments": '{"at": 1}', "is_complete": True}
    output = {"thinking": "hm", "text": "I look.", "tool_calls": [call], "token_ids": [1]}
    answer = AssembledAnswer.from_stored(VIEW, StoredAnswer.from_bytes(canonical_json(output)))
    message = assemble_message(answer, MessageForm(model="m", thinking="whole"), VIEW.id)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][-1]["input"] == {"at": 1}
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["cache_read_input_tokens"] == 2


def test_a_line_of_a_batch_shows_toolsets_and_searches_as_a_call_alone_would() -> None:
    calls = [
        {"id": f"toolu_{n}", "name": name, "arguments": "{}", "is_complete": True}
        for n, name in enumerate(["browser__find", "tool_search_tool_bm25"])
    ]
    output = {"thinking": "", "text": "", "tool_calls": calls, "token_ids": [1]}
    answer = AssembledAnswer.from_stored(VIEW, StoredAnswer.from_bytes(canonical_json(output)))
    tools = [
        {"type": "browser_toolset_20260801"},
        {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"},
    ]
    params = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    raw = json.dumps({"custom_id": "a", "params": params}).encode()
    submitted = BatchSubmitted(
        protocol=ANTHROPIC,
        endpoint=MESSAGES_PATH,
        content=digest_of(raw),
        lines=1,
        expires_at="2026-01-02T00:00:00Z",
    )
    batch = Batch(id=BatchId("batch-1"), submitted=submitted)
    _, line = encode_result(batch, 1, raw, VIEW, answer)
    call, search, result = json.loads(line)["result"]["message"]["content"]
    assert (call["name"], call["toolset_name"]) == ("find", "browser")
    assert (search["type"], result["type"]) == ("server_tool_use", "tool_search_tool_result")


def test_output_of_an_older_program_has_no_calls() -> None:
    output = {"thinking": "", "text": "Hello", "token_ids": [1]}
    answer = AssembledAnswer.from_stored(VIEW, StoredAnswer.from_bytes(canonical_json(output)))
    message = assemble_message(answer, MessageForm(model="m", thinking="none"), VIEW.id)
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert message["stop_reason"] == "end_turn"


def test_likelihoods_of_a_stored_answer_are_those_of_its_text() -> None:
    value = TokenLogprob(2, b"Hello", -0.5, (Alternative(b"\xe2", -1.0),))
    output = {"thinking": "hm", "text": "Hello", "token_ids": [1, 2], "logprobs": to_json([value])}
    answer = AssembledAnswer.from_stored(VIEW, StoredAnswer.from_bytes(canonical_json(output)))
    completion = assemble(
        CompletionEnvelope(kind=ChatKind, jobs=(VIEW.id,), model="m", created=0), [answer]
    )
    logprobs = completion["choices"][0]["logprobs"]
    assert logprobs == chat_logprobs([value])
    assert logprobs is not None
    assert logprobs["content"][0]["top_logprobs"] == [
        {"token": "\\xe2", "logprob": -1.0, "bytes": [0xE2]}
    ]
