from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.dialects.openai_chat.completions import CompletionEncoder, CompletionEnvelope, assemble
from api.dialects.openai_chat.parse import ChatKind
from api.generation import ChoiceItem
from api.http.sse import Part, encode
from domain.chat.items import Finished, Started, StreamItem, Text, Thinking
from domain.errors import Draining
from domain.values import JobId, StopReason, Usage
from tests.support.builders.item_streams import answer_of, item_streams
from tests.support.clients.sse import WireEvent, events_in

_JOB = JobId("job-" + "cd" * 16)
_USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=2)
_HEAD = CompletionEnvelope(kind=ChatKind, jobs=(_JOB,), model="m", created=17)


def _encoder(*, include_usage: bool = True) -> CompletionEncoder:
    return CompletionEncoder(_HEAD, include_usage=include_usage, request_id="req-1")


def _run(encoder: CompletionEncoder, items: list[StreamItem]) -> list[WireEvent]:
    parts: list[Part] = encoder.open()
    for item in items:
        parts += encoder.item(ChoiceItem(0, item))
    return events_in(encode(parts))


def _items(*bodies: Any) -> list[StreamItem]:
    return [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(bodies)]


_PLAIN = _items(
    Started(prompt_tokens=10, cached_tokens=4),
    Thinking(text="hm", ids=(1,)),
    Text(text="Hi", ids=(2,)),
    Finished(stop_reason=StopReason.MAX_TOKENS, usage=_USAGE),
)


def test_answer_is_streamed_in_chunks_up_to_done() -> None:
    events = _run(_encoder(), _PLAIN)
    assert events[-1].data == "[DONE]"
    chunks = [event.json for event in events[:-1]]
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in chunks} == {
        ("chatcmpl-" + "cd" * 16, "chat.completion.chunk", 17, "m")
    }
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Hi"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, None, "length"]
    assert all(c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert all(event.event is None for event in events)


def test_usage_chunk_comes_only_on_request() -> None:
    events = _run(_encoder(include_usage=False), _PLAIN)
    assert all("usage" not in event.json for event in events[:-1])


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        (StopReason.END_TURN, "stop"),
        (StopReason.STOP_SEQUENCE, "stop"),
        (StopReason.MAX_TOKENS, "length"),
        (StopReason.CONTEXT_WINDOW, "length"),
    ],
)
def test_finish_reason_is_one_that_clients_know(reason: StopReason, finish: str) -> None:
    events = _run(_encoder(), _items(Finished(stop_reason=reason, usage=_USAGE)))
    assert events[1].json["choices"][0]["finish_reason"] == finish


def test_ping_is_a_comment_and_failure_is_an_error_object() -> None:
    encoder = _encoder()
    assert encode(encoder.ping()) == b": ping\n"
    (event,) = events_in(encode(encoder.fail(Draining("later"))))
    assert event.json["error"]["message"] == "later"
    assert event.json["error"]["code"] == "draining"


@given(item_streams())
def test_any_valid_stream_equals_the_whole_completion(items: list[StreamItem]) -> None:
    events = _run(_encoder(), items)
    assert events[-1].data == "[DONE]"
    for event in events[:-1]:
        ChatCompletionChunk.model_validate_json(event.data)
    whole = assemble(_HEAD, [answer_of(items)])
    ChatCompletion.model_validate_json(json.dumps(whole))
    deltas = [event.json["choices"][0]["delta"] for event in events[:-2]]
    message = whole["choices"][0]["message"]
    assert "".join(d.get("content", "") for d in deltas) == (message["content"] or "")
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message.get(
        "reasoning_content", ""
    )
    calls: list[str] = []
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        assert call["index"] in (len(calls), len(calls) - 1)
        calls += [""] * ("id" in call)
        calls[call["index"]] += call["function"]["arguments"]
    assert [call or "{}" for call in calls] == [
        call["function"]["arguments"] for call in message.get("tool_calls", [])
    ]
    streamed = [event.json["choices"][0]["logprobs"] for event in events[:-2]]
    whole_logprobs = whole["choices"][0]["logprobs"]
    assert [one for piece in streamed if piece for one in piece["content"]] == (
        whole_logprobs["content"] if whole_logprobs else []
    )
    last = events[-3].json["choices"][0]["finish_reason"]
    assert last == whole["choices"][0]["finish_reason"]
    assert events[-2].json["usage"] == whole["usage"]


@given(item_streams(failing=True))
def test_any_failing_stream_ends_with_one_error_and_no_finish(items: list[StreamItem]) -> None:
    events = _run(_encoder(), items)
    assert "error" in events[-1].json
    assert all("error" not in event.json for event in events[:-1])
    assert all(event.json["choices"][0]["finish_reason"] is None for event in events[:-1])
