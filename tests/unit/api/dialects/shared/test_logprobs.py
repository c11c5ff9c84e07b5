"""Likelihoods as they go over the wire, held byte by byte and by the SDK's own strict models.

After a change that is meant, write them anew by running this file with ``SEMANTIC_GOLDEN=write``
and read the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.dialects import openai_completions
from api.dialects.encoding import token_text
from api.dialects.openai_chat import parse as openai_chat
from api.dialects.openai_chat.completions import CompletionEncoder, CompletionEnvelope, assemble
from api.dialects.openai_chat.parse import ChatKind
from api.dialects.openai_completions import TextKind, TextLogprobsRenderer
from api.dialects.openai_responses import parse as responses
from api.generation import ChoiceItem, RequestDefaults
from api.http.sse import Part, encode
from domain.chat.items import (
    Body,
    Finished,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolStart,
)
from domain.chat.logprobs import UNLIKELY, Alternative, TokenLogprob, from_json, to_json
from domain.errors import InvalidRequest
from domain.values import JobId, StopReason, Usage
from tests.support.builders.item_streams import answer_of
from tests.support.clients.sse import events_in
from tests.support.fakes.time import SequentialIds
from tests.support.golden.streams import FIXTURES, assert_golden

GOLDEN = FIXTURES / "openai"
JOB = JobId("job-" + "0123456789abcdef" * 2)
ENVELOPE = CompletionEnvelope(kind=ChatKind, jobs=(JOB,), model="m", created=1_767_225_600)
USAGE = Usage(prompt_tokens=12, cached_tokens=4, completion_tokens=7)
#: A euro sign in two tokens, and an alternative that the model rules out.
HELLO = TokenLogprob(3, b"Hello", -0.125, (Alternative(b"Hello", -0.125), Alternative(b"Hi", -2.5)))
EURO = (
    TokenLogprob(
        4, b" \xe2\x82", -1.5, (Alternative(b" \xe2\x82", -1.5), Alternative(b"", UNLIKELY))
    ),
    TokenLogprob(5, b"\xac", 0.0, (Alternative(b"\xac", 0.0), Alternative(b"!", -17.25))),
)
BODIES: list[Body] = [
    Started(prompt_tokens=12, cached_tokens=4),
    Thinking(text="hm", ids=(1, 2)),
    Text(text="Hello", ids=(3,), logprobs=(HELLO,)),
    Text(text=" €", ids=(4, 5), logprobs=EURO),
    ToolStart(id="toolu_1", name="Bash", ids=(6,)),
    ToolEnd(ids=(7,)),
    Finished(stop_reason=StopReason.END_TURN, usage=USAGE),
]
ITEMS = [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(BODIES)]


def chat_stream() -> bytes:
    encoder = CompletionEncoder(ENVELOPE, include_usage=True, request_id="req-1")
    parts: list[Part] = encoder.open()
    for item in ITEMS:
        parts += encoder.item(ChoiceItem(0, item))
    return encode(parts)


def test_chat_stream_reports_the_tokens_of_each_piece() -> None:
    wire = chat_stream()
    assert_golden(wire, GOLDEN / "chat_logprobs.sse")
    chunks = [ChatCompletionChunk.model_validate_json(e.data) for e in events_in(wire)[:-1]]
    logprobs = [chunk.choices[0].logprobs for chunk in chunks[:-1]]
    assert [None if one is None else len(one.content or ()) for one in logprobs] == [
        None,
        None,
        1,
        2,
        None,
        None,
    ]


def test_whole_completion_reports_only_the_tokens_of_the_content() -> None:
    whole = assemble(ENVELOPE, [answer_of(ITEMS)])
    assert_golden(
        json.dumps(whole, indent=1, ensure_ascii=False).encode(), GOLDEN / "chat_logprobs.json"
    )
    choice = ChatCompletion.model_validate(whole).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    octets = bytes(byte for one in content for byte in one.bytes or ())
    assert octets.decode() == choice.message.content == "Hello €"
    assert [one.token for one in content] == ["Hello", "\\x20\\xe2\\x82", "\\xac"]
    assert [top.token for top in content[0].top_logprobs] == ["Hello", "Hi"]


def test_text_completion_reports_them_member_by_member() -> None:
    envelope = replace(ENVELOPE, kind=TextKind)
    encoder = CompletionEncoder(envelope, include_usage=False, request_id="req-1")
    parts: list[Part] = encoder.open()
    for item in ITEMS:
        parts += encoder.item(ChoiceItem(0, item))
    assert_golden(encode(parts), GOLDEN / "text_logprobs.sse")
    whole = assemble(envelope, [answer_of(ITEMS)])
    logprobs = Completion.model_validate(whole).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", "bytes:\\x20\\xe2\\x82", "bytes:\\xac"]
    assert logprobs.token_logprobs == [-0.125, -1.5, 0.0]
    assert logprobs.text_offset == [0, 5, 6]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Hello": -0.125, "Hi": -2.5}
    pieces = [event.json["choices"][0]["logprobs"] for event in events_in(encode(parts))[:-1]]
    for name, values in logprobs.model_dump().items():
        assert [value for one in pieces if one for value in one[name]] == values


def test_emitted_token_is_reported_beside_the_likeliest() -> None:
    unlikely = TokenLogprob(0, b"c", -7.0, (Alternative(b"a", -0.5), Alternative(b"b", -1.0)))
    logprobs = TextLogprobsRenderer().render([unlikely], "c")
    assert logprobs is not None
    assert logprobs["top_logprobs"] == [{"a": -0.5, "b": -1.0, "c": -7.0}]


@given(words=st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6), data=st.data())
def test_places_are_those_of_the_tokens_in_the_text(words: list[str], data: st.DataObject) -> None:
    space = data.draw(st.sampled_from(["", " "]), label="dropped before the first word")
    assume(not words[0].startswith(" "))
    text, renderer, places = "".join(words), TextLogprobsRenderer(), []
    for number, word in enumerate(words):
        token = (space if number == 0 else "") + word
        logprobs = renderer.render([TokenLogprob(number, token.encode(), -1.0)], word)
        assert logprobs is not None
        places += logprobs["text_offset"]
    assert [text[a:b] for a, b in pairwise([*places, len(text)])] == words


@pytest.mark.parametrize(
    ("fields", "wanted"), [({}, None), ({"logprobs": 0}, 0), ({"logprobs": 5}, 5)]
)
def test_completion_of_a_text_asks_for_likelihoods(
    fields: dict[str, Any], wanted: int | None
) -> None:
    body = json.dumps({"model": "m", "prompt": "hi", "n": 2} | fields).encode()
    request = openai_completions.parse(body, {}, RequestDefaults(ids=SequentialIds(), max_tokens=9))
    assert [chat.logprobs for chat in request.chats] == [wanted, wanted]


def test_completion_of_an_echoed_text_asks_for_those_of_the_prompt() -> None:
    body = json.dumps(
        {"model": "m", "prompt": [[5, 6]], "echo": True, "logprobs": 1, "max_tokens": 0}
    ).encode()
    request = openai_completions.parse(body, {}, RequestDefaults(ids=SequentialIds(), max_tokens=9))
    assert (request.chat.is_scored, request.chat.max_tokens) == (True, 0)


@pytest.mark.parametrize(
    ("begin", "text", "places"), [("Once", "Once a", [0, 4]), ("<s>", " a", [0, 0])]
)
def test_first_token_of_an_echoed_prompt_has_no_log_probability(
    begin: str, text: str, places: list[int]
) -> None:
    values = [
        TokenLogprob(-2, begin.encode(), 0.0),
        TokenLogprob(-1, b" a", -2.0, (Alternative(b" b", -1.0),)),
    ]
    renderer = TextLogprobsRenderer()
    assert renderer.render(values, text) == {
        "tokens": [begin, " a"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {" b": -1.0, " a": -2.0}],
        "text_offset": places,
    }
    later = renderer.render([TokenLogprob(0, b"!", -3.0)], "!")
    assert later is not None
    assert (later["token_logprobs"], later["text_offset"]) == ([-3.0], [len(text)])


@pytest.mark.parametrize("fields", [{"logprobs": 6}, {"logprobs": -1}, {"logprobs": True}])
def test_text_completion_refuses_other_numbers_of_log_probabilities(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "prompt": "hi"} | fields).encode()
    with pytest.raises(InvalidRequest) as refusal:
        openai_completions.parse(body, {}, RequestDefaults(ids=SequentialIds(), max_tokens=9))
    assert refusal.value.field == "logprobs"


@pytest.mark.parametrize(
    ("token", "text"),
    [(b"a b", "a b"), (b"", ""), ("€".encode(), "€"), (b"\xe2\x82", "\\xe2\\x82")],
)
def test_token_that_is_no_text_is_spelled_out(token: bytes, text: str) -> None:
    assert token_text(token) == text


def parsed(**fields: Any) -> int | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    request = openai_chat.parse(
        json.dumps(body).encode(), {}, RequestDefaults(ids=SequentialIds(), max_tokens=9)
    )
    return request.chat.logprobs


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": None, "top_logprobs": None}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": True, "top_logprobs": 5.0}, 5),
    ],
)
def test_chat_asks_for_likelihoods(fields: Mapping[str, Any], wanted: int | None) -> None:
    assert parsed(**fields) == wanted


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
    ],
)
def test_wrong_wishes_are_refused_by_name(fields: Mapping[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parsed(**fields)
    assert refusal.value.field == field


def test_values_come_back_from_json_as_they_were() -> None:
    values = (HELLO, *EURO)
    assert from_json(json.loads(json.dumps(to_json(values)))) == values


@pytest.mark.parametrize("broken", [[[1, "a"]], [7], [[1, None, 0.0, []]], [[1, [999], 0.0, []]]])
def test_malformed_json_is_refused(broken: list[Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_json(broken)


def responses_wish(**fields: Any) -> int | None:
    wire = responses.read_body(json.dumps({"model": "m", "input": "hi"} | fields).encode())
    requested = responses.requested_fields(wire, responses.input_items(wire))
    request = responses.parse_request(
        wire, requested, requested.items, {}, RequestDefaults(ids=SequentialIds(), max_tokens=9)
    )
    return request.chat.logprobs


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        # The reply contains the included fields.
        ({"top_logprobs": 3}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 20}, 20),
    ],
)
def test_response_asks_for_likelihoods(fields: Mapping[str, Any], wanted: int | None) -> None:
    assert responses_wish(**fields) == wanted


@pytest.mark.parametrize("top", [-1, 21, "3"])
def test_response_cannot_ask_for_more_than_there_are(top: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        responses_wish(top_logprobs=top)
    assert refusal.value.field == "top_logprobs"
