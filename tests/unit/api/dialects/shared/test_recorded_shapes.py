"""Answers have the events and fields of the vendors' recorded ones (EXP-009).

``tests/fixtures/recorded_shapes`` has the shapes of answers of the real APIs which the vendors
publish with the tests of their SDKs; each file names its source. A shape was made by
``python -m tests.support.golden.shapes`` and has no text of the recording.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from api.dialects.anthropic.encode import MessageForm, assemble_message
from api.dialects.openai_chat.completions import CompletionEncoder, CompletionEnvelope
from api.dialects.openai_chat.parse import ChatKind
from api.errors import error_body
from api.generation import ChoiceItem
from api.http.messages import Dialect
from api.http.sse import encode
from domain.chat.items import Body, Finished, Started, Text
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.errors import RateLimited
from domain.values import StopReason, Usage
from tests.support.builders.item_streams import answer_of
from tests.support.golden.shapes import Step, fields_of, missing, shape_of_stream
from tests.support.golden.streams import FIXTURES, JOB, TEXT, call, items

RECORDED: Final = FIXTURES / "recorded_shapes"
#: What a hosted API has, and a local one has not: a tier, a region, a sandbox, a moderated refusal.
ABSENT: Final = (
    *("message.usage.service_tier", "message.usage.inference_geo", "message.usage.cache_creation"),
    *("usage.service_tier", "usage.inference_geo", "usage.cache_creation", "usage.server_tool_use"),
    *("content_block.caller", "content[].caller", "container", "context_management"),
    *("system_fingerprint", "choices[].delta.refusal", "choices[].logprobs.refusal"),
)
#: The first chunk has no token, and its log-probabilities are null and no empty list.
_ABSENT_AT: Final = {("chat_logprobs", "begin"): ("choices[].logprobs",)}
#: The arguments of a call are the model's.
_DATA: Final = ("content[].input",)
_USAGE: Final = Usage(prompt_tokens=12, cached_tokens=4, completion_tokens=3)


def _golden(path: str) -> Callable[[], bytes]:
    return lambda: (FIXTURES / path).read_bytes()


def _chat(*bodies: Body) -> Callable[[], bytes]:
    def stream() -> bytes:
        envelope = CompletionEnvelope(kind=ChatKind, jobs=(JOB,), model="m", created=17)
        encoder = CompletionEncoder(envelope, include_usage=True, request_id="req-1")
        parts = encoder.open()
        for item in items([Started(prompt_tokens=12, cached_tokens=4), *bodies])[1:]:
            parts += encoder.item(ChoiceItem(0, item))
        return encode(parts)

    return stream


def _end(reason: StopReason) -> Finished:
    return Finished(stop_reason=reason, usage=_USAGE)


_CALLS: Final = (*call(0, "weather", '{"city": ', '"Rome"}'), *call(1, "weather", "{}"))
_PROBABLE: Final = Text(
    text="Hello",
    ids=(3,),
    logprobs=(TokenLogprob(3, b"Hello", -0.5, (Alternative(b"Hello", -0.5),)),),
)
STREAMS: Final[dict[str, Callable[[], bytes]]] = {
    "anthropic_text": _golden("anthropic/text.sse"),
    "anthropic_call": _golden("anthropic/call.sse"),
    "anthropic_call_alone": _golden("anthropic/call_cut.sse"),
    "chat_text": _chat(*TEXT, _end(StopReason.END_TURN)),
    "chat_length": _chat(*TEXT, _end(StopReason.MAX_TOKENS)),
    "chat_calls": _chat(*_CALLS, _end(StopReason.END_TURN)),
    "chat_logprobs": _chat(_PROBABLE, _end(StopReason.END_TURN)),
}


def _recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", STREAMS)
def test_stream_has_the_events_and_fields_of_the_recorded_one(name: str) -> None:
    recorded = [Step(**step) for step in _recorded(name)["steps"]]
    ours = shape_of_stream(STREAMS[name]())
    assert [step.kind for step in ours] == [step.kind for step in recorded]
    faults = {
        there.kind: missing(
            there.fields, here.fields, (*ABSENT, *_ABSENT_AT.get((name, there.kind), ()))
        )
        for there, here in zip(recorded, ours, strict=True)
    }
    assert not any(faults.values()), faults


@pytest.mark.parametrize(
    ("name", "bodies"),
    [
        ("anthropic_whole_text", [*TEXT, _end(StopReason.END_TURN)]),
        ("anthropic_whole_call", [*_CALLS[:4], _end(StopReason.END_TURN)]),
    ],
)
def test_whole_message_has_the_fields_of_the_recorded_one(name: str, bodies: list[Body]) -> None:
    message = assemble_message(
        answer_of(items(bodies)), MessageForm(model="m", thinking="none"), JOB
    )
    faults = missing(_recorded(name)["fields"], fields_of(message), (*ABSENT, *_DATA))
    assert not faults


def test_refusal_has_the_fields_of_the_recorded_one() -> None:
    recorded = _recorded("anthropic_error")["fields"]
    ours = fields_of(error_body(RateLimited("too many requests"), Dialect.ANTHROPIC, "req_1"))
    assert ours == recorded


def test_every_recorded_shape_is_compared_and_names_its_source() -> None:
    names = {path.stem for path in RECORDED.glob("*.json")}
    assert names == {*STREAMS, "anthropic_whole_text", "anthropic_whole_call", "anthropic_error"}
    for name in names:
        assert set(_recorded(name)["source"]) == {"repository", "commit", "path", "licence"}


def test_a_changed_event_and_a_lost_field_are_found() -> None:
    stream = STREAMS["anthropic_text"]()
    recorded = shape_of_stream(stream)
    renamed = shape_of_stream(stream.replace(b'"stop_reason"', b'"reason"'))
    found = [missing(a.fields, b.fields, ()) for a, b in zip(recorded, renamed, strict=True)]
    assert ["delta.stop_reason is missing"] in found
    swapped = stream.replace(b"event: content_block_stop", b"event: content_block_end")
    assert [one.kind for one in shape_of_stream(swapped)] != [one.kind for one in recorded]
    assert missing({"a": "string"}, {"a": "number|null"}, ()) == [
        "a is ['number'] and not ['string']"
    ]
