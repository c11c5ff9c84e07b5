from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from pydantic import TypeAdapter

from api.dialects.anthropic.encode import AnthropicEncoder, MessageForm, assemble_message
from api.dialects.encoding import sign_reasoning, signed_reasoning
from api.generation import ThinkingShown
from api.http.sse import Part, encode
from domain.chat.items import (
    Failed,
    Finished,
    Progress,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.errors import QueueUnavailable
from domain.values import JobId, StopReason, Usage
from tests.support.builders.item_streams import answer_of, item_streams
from tests.support.clients.sse import WireEvent, events_in

_JOB = JobId("job-" + "ab" * 16)
_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_USAGE = Usage(
    prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=1, kept_tokens=8
)


def _encoder(*, thinking: ThinkingShown = "whole") -> AnthropicEncoder:
    return AnthropicEncoder(
        MessageForm(model="m", thinking=thinking), job_id=_JOB, request_id="req-1"
    )


def _run(encoder: AnthropicEncoder, items: list[StreamItem]) -> list[WireEvent]:
    parts: list[Part] = encoder.open()
    for item in items:
        parts += encoder.item(item)
    return events_in(encode(parts))


def _items(*bodies: Any) -> list[StreamItem]:
    return [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(bodies)]


DOCUMENTED_ORDER = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_" + "ab" * 16,
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 0,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
                "output_tokens_details": {"thinking_tokens": 0},
            },
        },
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "hm"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {
            "type": "signature_delta",
            "signature": sign_reasoning(_JOB, 0, "hm", carried=False),
        },
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "text_delta", "text": "Hel"},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "text_delta", "text": "lo"},
    },
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 3,
            "output_tokens_details": {"thinking_tokens": 1},
        },
    },
    {"type": "message_stop"},
]


def test_answer_to_a_prompt_that_was_only_read_is_empty() -> None:
    ending = Finished(
        stop_reason=StopReason.MAX_TOKENS, usage=Usage(prompt_tokens=10, completion_tokens=0)
    )
    items = _items(Started(prompt_tokens=10, cached_tokens=4), ending)
    message = assemble_message(answer_of(items), MessageForm(model="m", thinking="none"), _JOB)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0
    events = [event.json for event in _run(_encoder(), items)]
    assert [event["type"] for event in events] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[1]["delta"]["stop_reason"] == "max_tokens"


def test_answer_with_reasoning_has_the_documented_event_order() -> None:
    events = _run(
        _encoder(),
        _items(
            Started(prompt_tokens=10, cached_tokens=4),
            Thinking(text="hm", ids=(1,)),
            Text(text="Hel", ids=(2,)),
            Text(text="lo", ids=(3,)),
            Finished(stop_reason=StopReason.STOP_SEQUENCE, usage=_USAGE, stop_sequence="END"),
        ),
    )
    assert [event.json for event in events] == DOCUMENTED_ORDER
    # The SDK skips events without a name in silence.
    assert all(event.event == event.json["type"] for event in events)


def test_reasoning_is_left_out_when_it_was_not_asked_for() -> None:
    items = _items(
        Thinking(text="hm", ids=()), Text(text="x", ids=()),
        Finished(stop_reason=StopReason.END_TURN, usage=_USAGE),
    )  # fmt: skip
    types = [event.json["type"] for event in _run(_encoder(thinking="none"), items)]
    assert types.count("content_block_start") == 1
    message = assemble_message(answer_of(items), MessageForm(model="m", thinking="none"), _JOB)
    assert message["content"] == [{"type": "text", "text": "x"}]


def test_omitted_reasoning_is_carried_by_its_signature_alone() -> None:
    items = _items(
        Thinking(text="first ", ids=()), Thinking(text="then", ids=()), Text(text="x", ids=()),
        Finished(stop_reason=StopReason.END_TURN, usage=_USAGE),
    )  # fmt: skip
    events = [event.json for event in _run(_encoder(thinking="omitted"), items)]
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds == ["signature_delta", "text_delta"]
    (signed,) = (event["delta"] for event in events if "signature" in event.get("delta", {}))
    assert signed_reasoning(signed["signature"]) == "first then"


def test_call_is_streamed_as_its_arguments_come() -> None:
    events = _run(
        _encoder(),
        _items(
            Started(prompt_tokens=10, cached_tokens=4),
            Text(text="Look.", ids=(1,)),
            ToolStart(id="toolu_1", name="Bash"),
            ToolInput(fragment='{"command"', ids=(2,)),
            ToolInput(fragment=': "ls"}', ids=(3,)),
            ToolEnd(),
            Finished(stop_reason=StopReason.END_TURN, usage=_USAGE),
        ),
    )
    assert [event.json for event in events[4:]] == [
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}},
        },
        *(
            {
                "type": "content_block_delta",
                "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }
            for piece in ('{"command"', ': "ls"}')
        ),
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": events[-2].json["usage"],
        },
        {"type": "message_stop"},
    ]


def test_truncated_call_has_invalid_arguments() -> None:
    items = _items(
        ToolStart(id="toolu_1", name="Bash"),
        ToolInput(fragment='{"command": "rm -rf /tmp', ids=(2,)),
        Finished(stop_reason=StopReason.MAX_TOKENS, usage=_USAGE),
    )
    events = [event.json for event in _run(_encoder(), items)]
    assert [event["type"] for event in events[-3:]] == [
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    message = assemble_message(answer_of(items), MessageForm(model="m", thinking="none"), _JOB)
    assert message["content"][0]["input"] == {"unparsed": '{"command": "rm -rf /tmp'}


def test_message_start_reports_the_known_prompt_tokens() -> None:
    encoder = AnthropicEncoder(
        MessageForm(model="m", thinking="none"),
        job_id=_JOB,
        request_id="req-1",
        started=Started(prompt_tokens=10, cached_tokens=4),
    )
    (event,) = events_in(encode(encoder.open()))
    usage = event.json["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (6, 4)


@pytest.mark.parametrize(
    ("kept", "created"), [(0, 0), (3, 0), (4, 0), (8, 4), (10, 6)], ids=lambda number: str(number)
)
def test_usage_reports_written_cache_tokens_upon_cache_control(kept: int, created: int) -> None:
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=1, kept_tokens=kept)
    items = _items(
        Text(text="Hi", ids=(1,)), Finished(stop_reason=StopReason.END_TURN, usage=usage)
    )
    whole = assemble_message(
        answer_of(items), MessageForm(model="m", thinking="none", has_cache_control=True), _JOB
    )
    reported = whole["usage"]
    assert reported["cache_creation_input_tokens"] == created
    assert reported["cache_read_input_tokens"] == 4
    assert reported["input_tokens"] == 6 - created
    unasked = assemble_message(answer_of(items), MessageForm(model="m", thinking="none"), _JOB)
    assert unasked["usage"]["cache_creation_input_tokens"] == 0
    assert unasked["usage"]["input_tokens"] == 6


def test_progress_has_no_event_and_a_ping_has_one() -> None:
    encoder = _encoder()
    progress = Progress(phase="queued", done=0, total=1)
    assert encoder.item(StreamItem(n=None, attempt=0, body=progress)) == []
    assert encode(encoder.ping()) == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_failure_is_an_error_event_of_the_right_type() -> None:
    (busy,) = events_in(encode(_encoder().fail(QueueUnavailable("no broker"))))
    assert busy.event == "error"
    assert busy.json == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "no broker"},
        "request_id": "req-1",
    }
    long = Failed(
        error="prompt_too_long",
        message="prompt is too long: 9 tokens > 5 maximum",
        retryable=False,
    )
    last = _run(_encoder(), _items(long))[-1]
    assert last.json["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 9 tokens > 5 maximum",
    }


def test_cancelled_job_does_not_pass_for_a_whole_answer() -> None:
    last = Finished(stop_reason=StopReason.CANCELLED, usage=_USAGE)
    assert [event.event for event in _run(_encoder(), _items(last))] == ["message_start", "error"]


@given(item_streams())
def test_any_valid_stream_nests_its_blocks_and_equals_the_whole_message(
    items: list[StreamItem],
) -> None:
    modes: tuple[ThinkingShown, ...] = ("none", "omitted", "whole")
    for thinking in modes:
        events = _run(_encoder(thinking=thinking), items)
        for event in events:
            _EVENTS.validate_json(event.data)
        accumulated = _accumulate([event.json for event in events])
        whole = assemble_message(answer_of(items), MessageForm(model="m", thinking=thinking), _JOB)
        Message.model_validate_json(json.dumps(whole))
        assert accumulated == whole


@given(item_streams(failing=True))
def test_any_failing_stream_ends_with_one_error(items: list[StreamItem]) -> None:
    names = [event.event for event in _run(_encoder(), items)]
    assert names[-1] == "error"
    assert names.count("error") == 1
    assert not {"message_delta", "message_stop"} & set(names)


def _accumulate(events: list[Any]) -> Any:
    """Put a message together as a client does, insisting on the order."""
    assert [event["type"] for event in events].count("message_start") == 1
    message = events[0]["message"]
    open_index: int | None = None
    inputs: dict[int, str] = {}
    for event in events[1:-2]:
        kind, index = event["type"], event["index"]
        if kind == "content_block_start":
            assert open_index is None
            assert index == len(message["content"])
            open_index = index
            message["content"].append(event["content_block"])
        else:
            assert open_index == index
        if kind == "content_block_delta":
            delta = {key: value for key, value in event["delta"].items() if key != "type"}
            ((key, value),) = delta.items()
            if key == "partial_json":
                inputs[index] = inputs.get(index, "") + value
            else:
                message["content"][index][key] += value
        if kind == "content_block_stop":
            open_index = None
    assert open_index is None
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    return message | events[-2]["delta"] | {"usage": events[-2]["usage"]}
