"""Whole answers as they go over the wire, held byte by byte and by the SDK's own strict models.

After a change that is meant, write them anew by running this file with ``SEMANTIC_GOLDEN=write``
and read the difference.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from api.dialects.anthropic.encode import AnthropicEncoder, MessageForm, assemble_message
from api.generation import ThinkingShown
from api.http.sse import encode
from domain.chat.items import Body, Failed, Finished
from domain.values import StopReason, Usage
from tests.support.builders.item_streams import answer_of
from tests.support.clients.sse import events_in
from tests.support.golden.streams import (
    FIXTURES,
    JOB,
    STARTED,
    TEXT,
    THOUGHT,
    assert_golden,
    call,
    items,
    replaying_transport,
)

GOLDEN = FIXTURES / "anthropic"
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_USAGE = Usage(prompt_tokens=1200, cached_tokens=1100, completion_tokens=42, kept_tokens=1024)
_THOUGHT_USAGE = Usage(
    prompt_tokens=1200,
    cached_tokens=300,
    completion_tokens=42,
    reasoning_tokens=17,
    kept_tokens=1024,
)
_THOUGHT_END = Finished(stop_reason=StopReason.END_TURN, usage=_THOUGHT_USAGE)
#: Requests that mark what to keep.
_MARKED = frozenset({"cache_marked"})


def _end(reason: StopReason = StopReason.END_TURN, stop_sequence: str | None = None) -> Finished:
    return Finished(stop_reason=reason, usage=_USAGE, stop_sequence=stop_sequence)


_BASH = ('{"command"', ': "ls </tool_call>"}')

ANSWERS: dict[str, tuple[ThinkingShown, list[Body]]] = {
    "text": ("none", [*TEXT, _end()]),
    "empty": ("none", [_end()]),
    "stop_sequence": ("none", [*TEXT, _end(StopReason.STOP_SEQUENCE, "END")]),
    "max_tokens": ("none", [*TEXT, _end(StopReason.MAX_TOKENS)]),
    "context_window": ("none", [*TEXT, _end(StopReason.CONTEXT_WINDOW)]),
    "thinking": ("whole", [*THOUGHT, *TEXT, _THOUGHT_END]),
    "cache_marked": ("whole", [*THOUGHT, *TEXT, _THOUGHT_END]),
    "thinking_omitted": ("omitted", [*THOUGHT, *TEXT, _end()]),
    "thinking_unasked": ("none", [*THOUGHT, *TEXT, _end()]),
    "call": ("none", [*TEXT, *call(0, "Bash", *_BASH), _end()]),
    "call_without_arguments": ("none", [*call(0, "ExitPlanMode", "{}"), _end()]),
    "parallel_calls": (
        "whole",
        [
            *THOUGHT,
            *call(0, "Bash", *_BASH),
            *call(1, "Read", '{"file_path": "/a"}'),
            *TEXT,
            _end(),
        ],
    ),
    "call_cut": (
        "none",
        [*call(0, "Bash", '{"command": "rm -r', whole=False), _end(StopReason.MAX_TOKENS)],
    ),
}
BROKEN: dict[str, list[Body]] = {
    "failed": [*TEXT, Failed(error="engine_failure", message="it broke", retryable=True)],
    "cancelled": [*TEXT, _end(StopReason.CANCELLED)],
}


def _transcript(name: str, shown: ThinkingShown, bodies: list[Body]) -> bytes:
    encoder = AnthropicEncoder(
        MessageForm(model="m", thinking=shown, has_cache_control=name in _MARKED),
        job_id=JOB,
        request_id="req_1",
        started=STARTED if name in _MARKED else None,
    )
    parts = [*encoder.open(), *encoder.ping()]
    for item in items(bodies):
        parts += encoder.item(item)
    return encode(parts)


@pytest.mark.parametrize("name", [*ANSWERS, *BROKEN])
def test_transcript_is_the_golden_one(name: str) -> None:
    shown, bodies = ANSWERS[name] if name in ANSWERS else ("none", BROKEN[name])
    assert_golden(_transcript(name, shown, bodies), GOLDEN / f"{name}.sse")


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.sse")} == {*ANSWERS, *BROKEN}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_event_fits_the_sdks_model_and_has_no_field_it_does_not_know(name: str) -> None:
    for event in events_in((GOLDEN / f"{name}.sse").read_bytes()):
        if event.event == "ping":
            continue
        assert event.event == event.json["type"]
        _only_known(_EVENT.validate_json(event.data, strict=True), event.json)


def _only_known(model: BaseModel, value: dict[str, Any]) -> None:
    assert set(value) <= set(type(model).model_fields)
    for name, inner in value.items():
        parsed = getattr(model, name)
        if isinstance(parsed, BaseModel):
            _only_known(parsed, inner)


@pytest.mark.parametrize("name", ANSWERS)
def test_sdk_puts_the_stream_together_as_the_whole_message(name: str) -> None:
    shown, bodies = ANSWERS[name]
    whole = assemble_message(
        answer_of(items(bodies)),
        MessageForm(model="m", thinking=shown, has_cache_control=name in _MARKED),
        JOB,
    )
    expected = Message.model_validate(whole)
    final = _parsed_by_the_sdk(_transcript(name, shown, bodies))
    if name == "call_cut":
        # The SDK completes partial arguments; the whole message marks them as unparsed.
        assert [block.type for block in final.content] == ["tool_use"]
        assert whole["content"][0]["input"] == {"unparsed": '{"command": "rm -r'}
    else:
        assert _plain(final.content) == _plain(expected.content)
    assert final.stop_reason == expected.stop_reason
    assert final.stop_sequence == expected.stop_sequence
    assert final.usage.model_dump() == expected.usage.model_dump()
    assert final.usage.output_tokens == 42
    usage = final.usage
    created, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
    assert usage.input_tokens + created + read == STARTED.prompt_tokens
    assert (created > 0) == (name in _MARKED)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_stream_is_an_error_to_the_sdk(name: str) -> None:
    transcript = _transcript(name, "none", BROKEN[name])
    with pytest.raises(anthropic.APIStatusError):
        _parsed_by_the_sdk(transcript)


def _plain(blocks: list[Any]) -> list[Any]:
    return [block.model_dump(exclude_none=True) for block in blocks]


def _parsed_by_the_sdk(transcript: bytes) -> Any:
    with (
        httpx2.Client(transport=replaying_transport(transcript)) as transport,
        anthropic.Anthropic(
            base_url="http://127.0.0.1:1",
            api_key="local",
            http_client=transport,
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        return stream.get_final_message()
