from __future__ import annotations

from api.dialects.anthropic.encode import assemble_message
from api.dialects.encoding import chat_logprobs
from api.dialects.openai_chat.completions import CompletionEnvelope, assemble
from api.dialects.openai_chat.parse import CHAT
from api.generation import AssembledAnswer
from domain.chat.logprobs import Alternative, TokenLogprob, to_json
from domain.chat.request import canonical_json
from domain.chat.stored_answer import StoredAnswer
from domain.job.state import Job
from domain.values import JobId, JobStatus, StopReason, Usage
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
    message = assemble_message(answer, job_id=VIEW.id, model="m", thinking="whole")
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][-1]["input"] == {"at": 1}
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["cache_read_input_tokens"] == 2


def test_output_of_an_older_program_has_no_calls() -> None:
    output = {"thinking": "", "text": "Hello", "token_ids": [1]}
    answer = AssembledAnswer.from_stored(VIEW, StoredAnswer.from_bytes(canonical_json(output)))
    message = assemble_message(answer, job_id=VIEW.id, model="m", thinking="none")
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert message["stop_reason"] == "end_turn"


def test_likelihoods_of_a_stored_answer_are_those_of_its_text() -> None:
    value = TokenLogprob(2, b"Hello", -0.5, (Alternative(b"\xe2", -1.0),))
    output = {"thinking": "hm", "text": "Hello", "token_ids": [1, 2], "logprobs": to_json([value])}
    answer = AssembledAnswer.from_stored(VIEW, StoredAnswer.from_bytes(canonical_json(output)))
    completion = assemble(
        CompletionEnvelope(kind=CHAT, jobs=(VIEW.id,), model="m", created=0), [answer]
    )
    logprobs = completion["choices"][0]["logprobs"]
    assert logprobs == chat_logprobs([value])
    assert logprobs is not None
    assert logprobs["content"][0]["top_logprobs"] == [
        {"token": "\\xe2", "logprob": -1.0, "bytes": [0xE2]}
    ]
