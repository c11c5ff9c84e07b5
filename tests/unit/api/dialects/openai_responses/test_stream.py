"""Responses as they go over the wire, held byte by byte and by the SDK's own strict models.

After a change that is meant, write them anew by running this file with ``SEMANTIC_GOLDEN=write``
and read the difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from api.dialects.openai_responses.encode import ResponseEnvelope, ended_response
from api.dialects.openai_responses.parse import read_body, requested_fields, stored_items
from api.dialects.openai_responses.requested import RequestedFields, decode_fields, encode_fields
from api.dialects.openai_responses.stream import ResponsesEncoder
from api.http.sse import Comment, Frame, Part, encode
from domain.chat.items import Body, Failed, Finished, StreamItem, Text
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.errors import ItemsLost
from domain.values import StopReason, Usage
from tests.support.builders.item_streams import answer_of, item_streams
from tests.support.clients.sse import WireEvent, events_in
from tests.support.golden.streams import (
    FIXTURES,
    JOB,
    TEXT,
    THOUGHT,
    assert_golden,
    call,
    items,
    replaying_transport,
)

GOLDEN = FIXTURES / "responses"
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_USAGE = Usage(prompt_tokens=1200, cached_tokens=1100, completion_tokens=42, reasoning_tokens=17)
_TOOL = {"type": "function", "name": "Bash", "parameters": {"type": "object", "properties": {}}}
_GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" /[^\\n]*/ "\\n"'}
_PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": _GRAMMAR}
_CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [_TOOL, _PATCH]}
_CLIENTS = [
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    {"type": "computer"},
]
_SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}


def _envelope(**fields: Any) -> ResponseEnvelope:
    body = {"model": "m", "input": "hi"} | fields
    wire = read_body(json.dumps(body).encode())
    requested: RequestedFields = requested_fields(wire, stored_items(wire.input))
    return ResponseEnvelope(job_id=JOB, created_s=1_767_225_600, requested=requested)


def _end(reason: StopReason = StopReason.END_TURN) -> Finished:
    return Finished(stop_reason=reason, usage=_USAGE, stop_sequence=None)


_TEXTS: list[Body] = [
    Text(
        text=text,
        ids=(n,),
        logprobs=(
            TokenLogprob(n, token, -n / 4, (Alternative(token, -n / 4), Alternative(b"!", -9.5))),
        ),
    )
    for n, (text, token) in enumerate([("Hel", b"Hel"), ("lo", b"lo"), ("€", b"\xac")])
]
_BASH = ('{"command"', ': "ls"}')
_PATCH_CALL = '{"operation": {"type": "create_file", "path": "a", "diff": "+b"}}'

ANSWERS: dict[str, tuple[dict[str, Any], list[Body]]] = {
    "text": ({"instructions": "Be brief.", "metadata": {"a": "b"}}, [*TEXT, _end()]),
    "empty": ({}, [_end()]),
    "background": ({"background": True}, [*TEXT, _end()]),
    "stop_sequence": ({"store": False}, [*TEXT, _end(StopReason.STOP_SEQUENCE)]),
    "max_tokens": ({"max_output_tokens": 9}, [*TEXT, _end(StopReason.MAX_TOKENS)]),
    "context_window": ({}, [*TEXT, _end(StopReason.CONTEXT_WINDOW)]),
    "reasoning": ({"reasoning": {"effort": "low"}}, [*THOUGHT, *TEXT, _end()]),
    "reasoning_signed": (
        {"include": ["reasoning.encrypted_content"]},
        [*THOUGHT, *TEXT, _end()],
    ),
    "call": ({"tools": [_TOOL]}, [*TEXT, *call(0, "Bash", *_BASH), _end()]),
    "call_without_arguments": ({}, [*call(0, "Stop"), _end()]),
    "parallel_calls": (
        {"tools": [_TOOL], "tool_choice": "required"},
        [*THOUGHT, *call(0, "Bash", *_BASH), *call(1, "Bash", "{}"), *TEXT, _end()],
    ),
    "call_cut": (
        {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "Bash"}},
        [*call(0, "Bash", '{"command": "rm -r', whole=False), _end(StopReason.MAX_TOKENS)],
    ),
    "custom_call": (
        {"tools": [_TOOL, _PATCH], "tool_choice": {"type": "custom", "name": "apply_patch"}},
        [
            *call(0, "apply_patch", '{"inp', 'ut": "ad', "d\\", "n\\ud83d", "\\ude00", '"', "}"),
            _end(),
        ],
    ),
    "custom_call_in_other_words": (
        {"tools": [{"type": "custom", "name": "note"}]},
        [*call(0, "note", '{"text":', ' "x"}'), *call(1, "note", '{"a":1,"input":"y"}'), _end()],
    ),
    "custom_call_cut": (
        {"tools": [_PATCH]},
        [*call(0, "apply_patch", '{"input": "ab\\', whole=False), _end(StopReason.MAX_TOKENS)],
    ),
    "custom_call_gone_bad": (
        {"tools": [_PATCH]},
        [*call(0, "apply_patch", '{"input": "rm -r', "\n"), *TEXT, _end()],
    ),
    "namespaced_calls": (
        {"tools": [_CRM], "prompt_cache_key": "k", "user": "u", "safety_identifier": "s"},
        [*call(0, "crm__Bash", *_BASH), *call(1, "crm__apply_patch", '{"input":"a"}'), _end()],
    ),
    "tool_search": (
        {
            "tools": [_TOOL, _SEARCH, _TOOL | {"name": "Late", "defer_loading": True}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "Bash"}, {"type": "tool_search"}],
            },
            "max_tool_calls": 3,
        },
        [*call(0, "tool_search", '{"query"', ': "x"}'), _end()],
    ),
    "client_calls": (
        {"tools": _CLIENTS, "tool_choice": {"type": "shell"}},
        [
            *TEXT,
            *call(0, "shell", '{"commands": ["ls",', ' "pwd"], "timeout_ms": 9}'),
            *call(1, "local_shell", '{"command": ["ls"]}'),
            *call(2, "apply_patch", _PATCH_CALL[:20], _PATCH_CALL[20:]),
            *call(3, "computer", '{"actions": [{"type": "wait"}]}'),
            _end(),
        ],
    ),
    "client_call_in_other_words": (
        {"tools": _CLIENTS},
        [*call(0, "shell", '{"commands":', ' "ls"}'), *call(1, "apply_patch", "{}"), _end()],
    ),
    "client_call_cut": (
        {"tools": _CLIENTS},
        [*call(0, "shell", '{"commands": ["rm -r', whole=False), _end(StopReason.MAX_TOKENS)],
    ),
    "preview": (
        {
            "tools": [
                {
                    "type": "computer_use_preview",
                    "display_width": 800,
                    "display_height": 600,
                    "environment": "browser",
                }
            ],
            "tool_choice": {"type": "computer_use_preview"},
        },
        [*call(0, "computer_use_preview", '{"action": {"type": "type", "text": "x"}}'), _end()],
    ),
    "logprobs": (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": [_TOOL]},
        [*THOUGHT, *_TEXTS[:2], *call(0, "Bash", *_BASH), *_TEXTS[2:], _end()],
    ),
    "schema": (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        [Text(text="{}", ids=(1,)), _end()],
    ),
}
BROKEN: dict[str, tuple[dict[str, Any], list[Body]]] = {
    "failed": ({}, [*TEXT, Failed(error="engine_failure", message="broke", retryable=True)]),
    "cancelled": ({"background": True}, [*TEXT, _end(StopReason.CANCELLED)]),
}
ALL = ANSWERS | BROKEN
#: The SDK gives no final response unless it is complete.
CUT = {"max_tokens", "context_window", "call_cut", "custom_call_cut", "client_call_cut"}


def _parts(
    envelope: ResponseEnvelope, items: Sequence[StreamItem], *, after: int = -1
) -> list[Part]:
    encoder = ResponsesEncoder(envelope, request_id="req_1", after=after)
    parts = encoder.open()
    for item in items:
        parts += encoder.item(item)
    return parts


def _transcript(name: str) -> bytes:
    fields, bodies = ALL[name]
    return encode(_parts(_envelope(**fields), items(bodies)))


def _whole(name: str) -> Any:
    fields, bodies = ALL[name]
    return ended_response(_envelope(**fields), answer_of(items(bodies)))


@pytest.mark.parametrize("name", ALL)
def test_transcript_is_the_golden_one(name: str) -> None:
    assert_golden(_transcript(name), GOLDEN / f"{name}.sse")


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.glob("*.sse")} == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_event_fits_the_sdks_model_and_has_no_field_it_does_not_know(name: str) -> None:
    for event in events_in((GOLDEN / f"{name}.sse").read_bytes()):
        assert event.event == event.json["type"]
        _only_known(_EVENT.validate_json(event.data, strict=True), event.json)


def _only_known(model: BaseModel, value: dict[str, Any]) -> None:
    known = {info.alias or name for name, info in type(model).model_fields.items()}
    # The vendor sends the first member, which its SDK lacks; Open Responses demands the others.
    unknown = {"store", "presence_penalty", "frequency_penalty"} | (
        {"status"} if value.get("type") == "custom_tool_call" else set()
    )
    assert set(value) - unknown <= known
    for name, inner in value.items():
        parsed = getattr(model, name, None)
        for one, member in zip(parsed, inner, strict=True) if isinstance(parsed, list) else ():
            if isinstance(one, BaseModel):
                _only_known(one, member)
        if isinstance(parsed, BaseModel):
            _only_known(parsed, inner)


@pytest.mark.parametrize("name", sorted(set(ANSWERS) - CUT))
def test_sdk_puts_the_stream_together_as_the_whole_response(name: str) -> None:
    whole = _whole(name)
    expected = Response.model_validate(whole)
    # The SDK gives what it parsed back without what it does not know.
    final = _parsed_by_the_sdk(_transcript(name))
    assert final.model_dump(exclude_unset=True, exclude={"output"}, by_alias=True) == (
        expected.model_dump(exclude_unset=True, exclude={"output"}, by_alias=True)
    )
    assert [item.type for item in final.output] == [item["type"] for item in whole["output"]]
    assert final.output_text == expected.output_text
    assert [item.id for item in final.output] == [item["id"] for item in whole["output"]]


@pytest.mark.parametrize("name", sorted(CUT))
def test_cut_response_is_incomplete(name: str) -> None:
    last = _events(name)[-1].json
    assert last["type"] == "response.incomplete"
    assert last["response"] == _whole(name)
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("name", BROKEN)
def test_broken_response_ends_in_its_own_event(name: str) -> None:
    last = events_in(_transcript(name))[-1].json
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == name
    assert last["response"] == _whole(name)


def test_events_come_in_the_order_that_the_sdk_wants() -> None:
    types = [event.json["type"].removeprefix("response.") for event in _events("parallel_calls")]
    reasoning = ["content_part.added", *["reasoning_text.delta"] * 2, "reasoning_text.done"]
    call = ["output_item.added", "function_call_arguments.delta"]
    done = ["function_call_arguments.done", "output_item.done"]
    text = ["content_part.added", *["output_text.delta"] * 2, "output_text.done"]
    assert types == [
        *("created", "in_progress"),
        *("output_item.added", *reasoning, "content_part.done", "output_item.done"),
        *(*call, "function_call_arguments.delta", *done),
        *(*call, *done),
        *("output_item.added", *text, "content_part.done", "output_item.done"),
        "completed",
    ]


@given(item_streams() | item_streams(failing=True), st.booleans(), st.integers(-1, 60))
def test_resumed_events_are_those_of_the_first_stream(
    items: list[StreamItem],
    background: bool,  # noqa: FBT001 - drawn
    after: int,
) -> None:
    envelope = _envelope(background=background)
    first = _frames(_parts(envelope, items))
    numbers = [frame.data["sequence_number"] for frame in first]  # type: ignore[index]  # JSON
    assert numbers == list(range(len(first)))
    again = _parts(envelope, items, after=after)
    assert _frames(again) == first[after + 1 :]
    assert again  # a stream without a byte would look like a broken one


@given(item_streams())
def test_stream_equals_the_whole_answer(items: list[StreamItem]) -> None:
    envelope = _envelope()
    last = _frames(_parts(envelope, items))[-1].data
    assert last["response"] == ended_response(envelope, answer_of(items))  # type: ignore[index]  # JSON


@given(item_streams())
def test_done_items_are_those_of_the_whole_response(items: list[StreamItem]) -> None:
    events = [event.json for event in events_in(encode(_parts(_envelope(), items)))]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in added] == [item["id"] for item in done]


def test_items_without_numbers_cannot_be_resumed_from_within() -> None:
    lost = [StreamItem(n=None, attempt=1, body=body) for body in [*TEXT, _end()]]
    encoder = ResponsesEncoder(_envelope(), request_id="req_1", after=9)
    assert encoder.open() == [Comment("going on")]
    with pytest.raises(ItemsLost) as caught:
        encoder.item(lost[0])
    (event,) = events_in(encode(encoder.fail(caught.value)))
    assert event.json["type"] == "error"
    assert event.json["sequence_number"] == 10
    # Who has nothing yet gets all of it.
    assert len(_frames(_parts(_envelope(), lost))) > len(lost)


def test_stored_fields_of_a_request_survive_a_round_trip() -> None:
    wire = read_body(b'{"model": "m", "input": "hi", "metadata": {"k": "v"}, "store": false}')
    requested = requested_fields(wire, stored_items(wire.input))
    assert decode_fields(encode_fields(requested)) == requested
    assert not requested.is_stored


def _frames(parts: Sequence[Part]) -> list[Frame]:
    return [part for part in parts if isinstance(part, Frame)]


def _events(name: str) -> list[WireEvent]:
    return events_in(_transcript(name))


def _parsed_by_the_sdk(transcript: bytes) -> Any:
    with (
        httpx2.Client(transport=replaying_transport(transcript)) as transport,
        openai.OpenAI(
            base_url="http://127.0.0.1:1/v1",
            api_key="local",
            http_client=transport,
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        return stream.get_final_response()
